"""One profile of one pod, from its processes to a file or the Collector. Run in a child that ends (children.py).

It is what ``otelgpu profile -p`` does. Whose a process is, is what the kernel says (its cgroup), not what it says.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from otelgpu.cli.logs import say
from otelgpu.cli.options import configure
from otelgpu.cli.pod_profiles.outcomes import LONGEST_ERROR, Result
from otelgpu.cli.profile import Request, profile_processes, settings_for, write
from otelgpu.cli.profile_outputs import Outputs, totals_of
from otelgpu.config import Config
from otelgpu.errors import OtelgpuError
from otelgpu.export.memory import MemoryExporter
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.switches import PodSwitch
from otelgpu.model.text import printable
from otelgpu.processes.listing import describe, list_processes

KINDS: Final = frozenset({ProfileKind.PYTHON, ProfileKind.CPU})
FREQUENCY_HZ: Final = 99
LARGEST_FILE: Final = 8 << 20
MOST_PROCESSES: Final = 512
"""Of a pod that are profiled from the beginning; their children are, too."""
_ENDING: Final = ".pb.gz"
_PARTIAL: Final = f".partial{_ENDING}"
_NAME: Final = re.compile(r"[^a-z0-9.-]+", re.ASCII)


class Order(Struct, frozen=True, kw_only=True):
    """What a profile is to be. ``most_files``: so many profiles are left in ``folder``, with this one."""

    switch: PodSwitch
    seconds: float
    folder: Path
    most_files: int
    config_file: Path | None = None


def take(order: Order) -> bytes:
    """JSON of :class:`Result`; nothing is raised for what goes wrong with a profile."""
    try:
        result = _take(order)
    except OtelgpuError as error:
        result = Result(error=printable(str(error))[:LONGEST_ERROR])
    return msgspec.json.encode(result)


def processes_of_pod(uid: str) -> list[int]:
    """Those of a pod whose parents are of none, or of another. Raises :class:`OtelgpuError` where there is none."""
    members = dict(_members(uid))
    first = [tgid for tgid, ppid in members.items() if ppid not in members]
    if not first:
        raise OtelgpuError("no process of the pod runs on this node, as far as is seen from here")
    if len(first) > MOST_PROCESSES:
        say(f"{len(first)} processes of the pod: {MOST_PROCESSES} of them are profiled")
    return first[:MOST_PROCESSES]


def _members(uid: str) -> Iterator[tuple[int, int]]:
    for tgid in list_processes():
        facts = describe(tgid)
        if facts is not None and facts.pod_uid == uid:
            yield tgid, facts.ppid


def file_name(switch: PodSwitch, unix_s: float) -> str:
    """Of a profile: sorted by time; nothing of a pod's names leads out of the folder."""
    at = datetime.fromtimestamp(unix_s, UTC)
    name = _NAME.sub("_", f"{switch.namespace}-{switch.pod}")[:128]
    return f"{at:%Y%m%dT%H%M%SZ}-{name}{_ENDING}"


def make_room(folder: Path, most: int) -> None:
    """Remove the oldest profiles, until there is room for one more."""
    found = sorted(
        path for path in folder.glob(f"[0-9]*{_ENDING}") if path.is_file() and not path.is_symlink()
    )
    for path in found[: max(len(found) + 1 - most, 0)]:
        with suppress(OSError):
            path.unlink()


def _take(order: Order) -> Result:
    pids = processes_of_pod(order.switch.uid)
    config = configure({"config_file": order.config_file})
    is_sent = bool(config.profiles)  # where the agent's own are sent, somebody takes profiles
    exports = (config.export or ("otlp",)) if is_sent else ()
    config = settings_for(config, KINDS, FREQUENCY_HZ, export=exports)
    if is_sent:
        return Result(samples=_profile(config, order.seconds, pids, Outputs(())))
    make_room(order.folder, order.most_files)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, hard))  # who writes more has an error
    path = order.folder / file_name(order.switch, datetime.now(UTC).timestamp())
    partial = order.folder / _PARTIAL  # of who is killed it stays, and the next one takes its place
    with Outputs((partial,)) as outputs:
        samples = _profile(config, order.seconds, pids, outputs)
    os.replace(partial, path)
    return Result(samples=samples, file=os.fspath(path))


def _profile(config: Config, seconds: float, pids: list[int], outputs: Outputs) -> int:
    """How many samples it has."""
    samples = 0

    def finish(request: Request, memory: MemoryExporter, what: str) -> None:
        nonlocal samples
        samples = sum(each.samples for each in totals_of(memory.profiles))
        if outputs:
            write(request, memory, what)

    request = Request(config=config, seconds=seconds, delay_s=0.0, outputs=outputs, quiet=True)
    if profile_processes(request, tuple(pids), finish):
        raise OtelgpuError("it was ended before it began")
    return samples
