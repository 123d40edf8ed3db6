"""``otelgpu diagnose stall``: takes a profile of a while, or reads one, and says what a program stands still for."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from msgspec import Struct, structs

from otelgpu.cli import stall_surroundings
from otelgpu.cli.batch import BatchRun, batch_command
from otelgpu.cli.file_or_program import (
    FileOrProgram,
    input_options,
    profile_given,
    program_of,
    report_options,
)
from otelgpu.cli.options import common_options, configure
from otelgpu.cli.page_files import stall_page_files
from otelgpu.cli.parameters import refuse_overwriting
from otelgpu.cli.profile import Request, families_for
from otelgpu.cli.profile_inputs import read_profiles_of
from otelgpu.cli.profile_outputs import Output
from otelgpu.cli.socket_waits import SocketWaits
from otelgpu.cli.verdict_events import verdict_event
from otelgpu.cli.verdict_text import (
    FOUND,
    UNDECIDED,
    Lines,
    counted,
    say_limits,
    say_verdict,
    spent_table,
)
from otelgpu.config import Config
from otelgpu.diagnose.stall.diagnosis import Judged, diagnose
from otelgpu.diagnose.stall.observations import observe
from otelgpu.diagnose.stall.sentences import sentence
from otelgpu.diagnose.stall.surroundings import Surroundings
from otelgpu.diagnose.stall.verdicts import INCONCLUSIVE, StallReport
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.quantities import duration as written_duration
from otelgpu.processes.listing import descendants

if TYPE_CHECKING:
    from otelgpu.export.memory import MemoryExporter

KINDS: Final = frozenset(
    (ProfileKind.CPU, ProfileKind.OFFCPU, ProfileKind.SYSCALL, ProfileKind.FILE, ProfileKind.BLOCK)
)
"""What is recorded."""
DEVICE_KINDS: Final = frozenset((ProfileKind.CUDA, ProfileKind.NCCL))
"""The same with ``--device-calls``."""
SHORTEST_WAIT_US: Final = 50
"""Of waits: a thousand page faults of a disk are none of them 1 ms long."""
CLOCK_HZ: Final = 99
"""Of CPU samples: a garbage collection and page faults of 50 ms are known by them alone."""


class _Found(Struct):
    """What was recorded, and of whom."""

    profiles: Sequence[ProfileColumns] = ()
    subjects: Collection[int] = ()
    surroundings: Mapping[int, Surroundings] | None = None
    title: str = ""


@click.command(cls=FileOrProgram)
@common_options
@input_options("Record")
@click.option(
    "--device-calls",
    is_flag=True,
    help="Record calls of CUDA and NCCL too: synchronising, copies, collectives. Each costs the program a probe.",
)
@report_options("the verdicts, and the thread's steps with what they went into")
@batch_command("diagnose stall")
def stall(
    run: BatchRun,
    /,
    files: tuple[Path, ...],
    pids: tuple[int, ...],
    duration: float | None,
    device_calls: bool,
    as_json: bool,
    output: Path | None,
    force: bool,
    **options: Any,
) -> None:
    """Why a program stands still, time and again: which line, which file, how long, how often, and what to do.

    The steps of the thread that the program waits for are found by what it does at regular times; what makes some of
    them longer is explained by what the thread waited for: a file, input, a lock, the interpreter's lock, a CPU, a
    quota, memory, a garbage collection, another program, a sleep. Nothing in the program has to be changed.

    FILE: what otelgpu profile -t cpu,offcpu,syscall,file,block --export file:FILE wrote, or a capture.

    Exit code: 0 nothing was found, 3 verdicts, 4 inconclusive: it says what is missing.

    \b
    Examples:
      otelgpu diagnose stall -p 4242
      otelgpu diagnose stall -p 4242 -d 60 -o report.html
      otelgpu diagnose stall -- python train.py
      otelgpu diagnose stall profile.jsonl --json
    """
    program = program_of(files, pids, duration)
    if output is not None:
        refuse_overwriting([output], force=force)
    if files and device_calls:
        raise click.UsageError("--device-calls cannot be combined with a FILE: it was recorded already")
    config, kinds = configure(options), KINDS | DEVICE_KINDS if device_calls else KINDS
    if files:
        run.read(*files)
        found = _Found(profiles=read_profiles_of(files[0], config).profiles, title=files[0].name)
    else:
        config = structs.replace(
            config,
            families=families_for(kinds),
            profiles=tuple(sorted(kinds)),
            profile_off_cpu_us=min(config.profile_off_cpu_us, SHORTEST_WAIT_US),
            profile_frequency_hz=max(config.profile_frequency_hz, CLOCK_HZ),
            source="uprobe",
            export=(),
        )
        found = _record(config, pids, program, duration)
    report, judged = diagnose(
        observe(found.profiles), subjects=found.subjects, surroundings=found.surroundings
    )
    run.skip(report.input.rejected)
    stalls = [each for each in report.verdicts if each.klass != INCONCLUSIVE]
    run.conclude(
        verdict_event(each, sentence(each), each.cost.seconds if each.cost else 0.0) for each in stalls
    )
    if output is not None:
        _write_page(output, report, judged, found.title)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(report), indent=2, ensure_ascii=False))
    else:
        _write(report)
    sys.exit(FOUND if stalls else UNDECIDED if report.verdicts else 0)


def _record(config: Config, pids: tuple[int, ...], program: tuple[str, ...], seconds: float | None) -> _Found:
    before: dict[int, stall_surroundings.Reading] = {}
    found, sockets = _Found(), SocketWaits()

    def begin(pid: int) -> None:
        before[pid] = stall_surroundings.read(pid)

    def finish(request: Request, memory: MemoryExporter, what: str) -> None:
        sockets.stop()
        found.profiles, found.title, found.subjects = memory.profiles, what, tuple(before)
        mine = frozenset((*before, *descendants(*before)))
        found.surroundings = {
            pid: structs.replace(
                stall_surroundings.between(reading, stall_surroundings.read(pid), mine, pid=pid),
                socket_waits=sockets.seen(pid),
            )
            for pid, reading in before.items()
        }

    def watch() -> None:
        sockets.start(before)

    try:
        profile_given(config, program, pids, seconds, finish, begun=begin, attached=watch)
    finally:
        sockets.stop()
    return found


def _write_page(output: Path, report: StallReport, judged: Sequence[Judged], title: str) -> None:
    from otelgpu.diagnose.stall.stall_page import stall_page

    with closing(Output(output)) as file:
        file.write(stall_page(report, judged, stall_page_files(), title=title))


def _write(report: StallReport) -> None:
    lines = Lines()
    say = lines.say
    if not report.verdicts:
        say("Nothing was found: no gap that recurs, and no wait that takes a share of the time.", "bold")
    for verdict in report.verdicts:
        undecided = verdict.klass == INCONCLUSIVE
        say_verdict(
            lines, sentence(verdict), verdict.evidence, undecided_next=verdict.next if undecided else None
        )
        if not undecided:
            say(f"  · confidence {verdict.confidence:.0%}")
        for line in verdict.code.splitlines():
            say(f"      {line}")
        if verdict.spans:
            say(f"  spans: {', '.join(verdict.spans[:4])}")
    say("")
    if report.table:
        lines.show(spent_table("The thread's time", report.table, cause="cause"))
        say("")
    seen = report.input
    if seen.thread is not None:
        rhythm = (
            f"{counted(seen.steps, 'step')} of {written_duration(seen.usual_step_s * 1e9)} ({seen.beat})"
            if seen.steps
            else "no steps are known"
        )
        say(
            f"{seen.thread.program} (PID {seen.thread.pid}), thread {seen.thread.name} (TID {seen.thread.tid}): "
            f"{seen.seconds:.1f} s at work; {rhythm}"
        )
    say(f"{counted(seen.processes, 'process', 'processes')}, {counted(seen.threads, 'thread')}")
    say_limits(lines, report.remarks, report.limits, seen.rejected, remark="not a stall")
