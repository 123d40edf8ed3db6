"""``kubectl otelgpu diagnose``: all pods of a job recorded side by side, and what ``otelgpu diagnose`` says of that.

In: a job. Out: a folder with a recording of each pod and pages of the verdicts, the verdicts on standard output.

Ranks are compared where this program runs, by an ``otelgpu`` that is installed there: all recordings are needed at
once, and what reads them (DuckDB, 70 MB) is not in the image. The other diagnoses are of one pod each: without an
``otelgpu`` here its own Job makes it, beside the recording.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from kubectl_otelgpu.client import Client
from kubectl_otelgpu.faults import Fault, Interrupted
from kubectl_otelgpu.job import FOLDER, PROGRAM, new_name
from kubectl_otelgpu.members import Members, Missing, members_of, pods_of
from kubectl_otelgpu.observation import Observation, Say, printable
from kubectl_otelgpu.side_by_side import faults_of, fetch_all, observing, order, report, say
from kubectl_otelgpu.target import Target

RANKS: Final = "ranks"
FOUND: Final = 3
UNDECIDED: Final = 4
"""Exit codes of ``otelgpu diagnose``."""
OTELGPU_VARIABLE: Final = "OTELGPU_PROGRAM"
"""Names the ``otelgpu`` of this machine; without it, it is looked for on PATH."""
_PROFILE: Final = "profile"


class Recording(NamedTuple):
    """What ``otelgpu diagnose KIND FILE`` reads: the command that writes it, and variables of its container."""

    command: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str]


RECORDINGS: Final[Mapping[str, Recording]] = {
    RANKS: Recording("agent", ("--profiles", "cpu,offcpu"), {}),
    "stall": Recording(
        _PROFILE, ("-t", "cpu,offcpu,syscall,file,block"), {"OTELGPU_PROFILE_OFF_CPU_US": "50"}
    ),
    "utilization": Recording(
        _PROFILE,
        ("-t", "cpu,offcpu,syscall,file,cuda,nccl"),
        {"OTELGPU_DETAIL": "all", "OTELGPU_PROFILE_OFF_CPU_US": "50"},
    ),
    "memory": Recording(
        _PROFILE, ("-t", "mem"), {"OTELGPU_PROFILE_INTERVAL_S": "1", "OTELGPU_METRIC_INTERVAL_MS": "1000"}
    ),
}
"""By kind. With profiles, so that ``otelgpu diff --slow auto FOLDER`` goes on from a slow rank to its lines."""


class Verdict(NamedTuple):
    """What ``otelgpu diagnose`` of a pod's Job said, and its exit code."""

    text: str
    code: int


def diagnose(client: Client, options: Namespace, stop: threading.Event) -> int:
    """``kubectl otelgpu diagnose``."""
    namespace = options.namespace or client.namespace()
    pods = pods_of(client, options.job, options.selector, namespace)
    members = members_of(pods, options.container)
    program = _installed()
    folder = _folder(options)
    recorded: dict[str, tuple[str, str]] = {}
    verdicts: dict[str, Verdict] = {}

    def act(target: Target, tell: Say) -> None:
        job = new_name("diagnose")
        name = f"{job}.jsonl"
        recording = RECORDINGS[options.kind]
        arguments = [recording.command, "--container", target.container_id, *recording.arguments]
        arguments += ["-d", f"{options.duration:g}", "--export", f"file:{FOLDER}/{name}"]
        page = {f"{job}.html": folder / f"{target.pod}.html"}
        by_itself = program is None and options.kind != RANKS
        results = (name, *(page if by_itself else ()))
        wanted = order(options, "diagnose", arguments, options.duration, results)
        wanted = wanted._replace(variables=recording.variables)
        with observing(client, options, job, target, wanted, tell, stop) as observation:
            fetch_all(observation, {name: folder / f"{target.pod}.jsonl"}, tell)
            recorded[target.pod] = observation.lasted
            if by_itself:
                verdicts[target.pod] = _judge_there(observation, options.kind, name)
                if verdicts[target.pod].code in (0, FOUND, UNDECIDED):
                    fetch_all(observation, page, tell)

    faults = faults_of(members.targets, act, stop)
    if not recorded:
        with suppress(OSError):  # what was there before stays
            folder.rmdir()
    if stop.is_set():
        raise Interrupted
    missing = [*members.missing, *_failed(faults, members)]
    names = [each.pod for each in members.targets if each.pod in recorded]
    if not names:
        raise Fault("nothing was recorded: " + "; ".join(each.line for each in missing[:3]))
    tell_partial(names, missing, recorded, options.duration, is_compared=options.kind == RANKS)
    return _judged(program, options.kind, folder, names, verdicts, is_whole=not missing)


def _installed() -> str | None:
    """The ``otelgpu`` of this machine."""
    named = os.environ.get(OTELGPU_VARIABLE) or "otelgpu"
    found = shutil.which(named)
    if found is None and os.environ.get(OTELGPU_VARIABLE):
        raise Fault(f"there is no program {named}", f"{OTELGPU_VARIABLE} names it")
    return found


def _folder(options: Namespace) -> Path:
    """Where recordings go: made, or empty, so that what is in it afterwards is of one job and one time."""
    name = re.sub(r"[^\w.-]+", "-", (options.job or options.selector).rpartition("/")[2]).strip("-.")
    folder: Path = options.output or Path(f"{name}-{options.kind}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not options.force:
            raise Fault(f"there is something in {folder}", "--force overwrites files of the same names")
    except OSError as error:
        raise Fault(f"cannot write to {folder}: {error.strerror}") from None
    return folder


def _failed(faults: Mapping[str, Fault], members: Members) -> list[Missing]:
    return [Missing(pod, members.numbers.get(pod, ""), fault.message) for pod, fault in faults.items()]


def _judge_there(observation: Observation, kind: str, name: str) -> Verdict:
    """In the pod that has the recording, beside it. Raises :class:`Fault` where it does not say how it ended."""
    page = f"{FOLDER}/{name.removesuffix('.jsonl')}.html"
    script = '"$@" 2>&1; echo "exit code $?"'
    said = observation.execute(
        "/bin/sh", "-c", script, PROGRAM, PROGRAM, "diagnose", kind, f"{FOLDER}/{name}", "-o", page, "--force"
    )
    found = re.search(r"exit code (\d+)\s*\Z", said)
    if found is None:
        raise Fault("otelgpu diagnose did not say how it ended")
    lines = said[: found.start()].splitlines()
    return Verdict("\n".join(map(printable, lines)), int(found[1]))


def tell_partial(
    names: Sequence[str],
    missing: Iterable[Missing],
    recorded: Mapping[str, tuple[str, str]],
    seconds: float,
    *,
    is_compared: bool,
) -> None:
    """Who is missing and why, and how much of the time all recordings have in common."""
    absent = list(missing)
    if absent:
        say(f"{len(names)} of {len(names) + len(absent)} pods were recorded; missing:")
        for each in absent:
            say(f"  {printable(each.line)}")
        if is_compared:
            say("  their ranks are not compared; who waits for them is still seen to wait")
    common = common_seconds([recorded[name] for name in names])
    if is_compared and common is not None and common < seconds / 2:
        say(
            f"the recordings have {max(common, 0):.0f} of {seconds:g} s in common: the Jobs did not start together "
            "(images that are pulled, busy nodes); -d takes longer ones"
        )


def common_seconds(spans: Sequence[tuple[str, str]]) -> float | None:
    """How long all went on at once, by beginnings and ends as the API server writes them; None: nobody knows."""
    try:
        begins = [datetime.fromisoformat(begin) for begin, _ in spans]
        ends = [datetime.fromisoformat(end) for _, end in spans]
        return (min(ends) - max(begins)).total_seconds()
    except (ValueError, TypeError):
        return None


def _judged(
    program: str | None,
    kind: str,
    folder: Path,
    names: Sequence[str],
    verdicts: Mapping[str, Verdict],
    *,
    is_whole: bool,
) -> int:
    """Print what is found; the exit code."""
    files = [folder / f"{name}.jsonl" for name in names]
    if kind == RANKS:
        if program is None:
            say(f"the recordings are in {folder}; there is no otelgpu here to compare them:")
            say(f"  pip install 'otelgpu[diagnose]'; otelgpu diagnose ranks {folder}")
            return UNDECIDED
        code = _judge_here(program, kind, files, folder / "report.html")
        say(f"{folder / 'report.html'}: the page; otelgpu diff --slow auto {folder} goes on from a slow rank")
        return code if is_whole or code else UNDECIDED
    codes = []
    for name, file in zip(names, files, strict=True):
        print(f"{name}:", flush=True)
        if name in verdicts:
            print(verdicts[name].text, flush=True)
            codes.append(verdicts[name].code)
        elif program is not None:
            codes.append(_judge_here(program, kind, [file], folder / f"{name}.html"))
    return worst([*codes, *([] if is_whole else [UNDECIDED])])


def _judge_here(program: str, kind: str, files: Sequence[Path], page: Path) -> int:
    command = [program, "diagnose", kind, *map(str, files), "-o", str(page), "--force"]
    try:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    except OSError as error:
        raise Fault(f"cannot run {program}: {error.strerror}") from None
    if code not in (0, FOUND, UNDECIDED):
        report(
            Fault(
                f"otelgpu diagnose {kind} ended with exit code {code}; the recordings are in {page.parent}",
                "ranks are compared by pip install 'otelgpu[diagnose]'"
                if kind == RANKS
                else f"it says why; {OTELGPU_VARIABLE} names another otelgpu than {program}",
            )
        )
        return 1
    return code


def worst(codes: Sequence[int]) -> int:
    """Of several: what was found, else what failed, else what is not decided."""
    return next((code for code in (FOUND, 1, UNDECIDED) if code in codes), 0 if not any(codes) else 1)
