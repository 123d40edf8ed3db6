"""What keeps ranks from running, read at a slow pace: CPU time that their quota refused them, pages from disk.

In: processes that have mapped a library with probes; files of ``/proc`` and of the cgroup file systems, of those that a
launcher calls ranks. Out: :class:`~otelgpu.model.pressure.ProcessPressed`, where anything grew.

A file of a process takes 10 to 30 µs to read, so they are read in the agent's own loop, a bounded number of processes
each time. Sources: proc_pid_stat(5), cgroups(7), Documentation/admin-guide/cgroup-v2.rst ("cpu.stat"),
Documentation/scheduler/sched-bwc.rst.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from otelgpu.model.inputs import Input
from otelgpu.model.pressure import ProcessPressed
from otelgpu.model.settings import Settings
from otelgpu.processes.jobs import LAUNCHERS
from otelgpu.processes.polling import Poller, Polling

INTERVAL_NS: Final = 2_000_000_000
"""Two looks at a process are so far apart."""

PROCESSES: Final = 256
"""Ranks of a host that are looked at."""

_MOST_BYTES: Final = 1 << 16
_LEVELS: Final = 12  # of cgroups above a process: each may have a quota
_MAJOR_FAULTS: Final = 9  # of the fields behind the name: the twelfth of all, from 1
_RANKS: Final = tuple(f"{each.rank}=".encode() for each in LAUNCHERS)


class Counts(Struct, frozen=True):
    """Since the process, and its cgroups, began."""

    time_ns: int
    throttled_ns: int
    major_faults: int


class PressureReader:
    """``proc`` and ``cgroups``: where their file systems are mounted."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._known: dict[int, Counts | None] = {}  # None: of no interest
        self._due_ns = 0

    @property
    def counters(self) -> Mapping[str, int]:
        """Nothing is lost: what cannot be read is no pressure."""
        return Counter()

    def collect(self, now_ns: int, users: Set[int]) -> Sequence[Input]:
        """What grew of each rank since the last look at it, if one is due."""
        if now_ns < self._due_ns:
            return ()
        self._due_ns = now_ns + INTERVAL_NS
        self._known = {tgid: counts for tgid, counts in self._known.items() if tgid in users}
        found = []
        for tgid in sorted(users):
            if tgid not in self._known and not self._is_wanted(tgid):
                self._known[tgid] = None
                continue
            if tgid in self._known and self._known[tgid] is None:
                continue
            before = self._known.get(tgid)
            after = self._known[tgid] = self._look(tgid, now_ns)
            if before is not None and after is not None and (grown := _grown(tgid, before, after)):
                found.append(grown)
        return found

    def stop(self) -> None:
        """There is no thread."""

    def _is_wanted(self, tgid: int) -> bool:
        """It is a rank, and not one too many."""
        if sum(counts is not None for counts in self._known.values()) >= PROCESSES:
            return False
        words = self._read(self._proc / str(tgid) / "environ").split(b"\0")
        return any(word.startswith(_RANKS) for word in words)

    def _look(self, tgid: int, now_ns: int) -> Counts | None:
        """None: the process has ended."""
        stat = self._read(self._proc / str(tgid) / "stat")
        fields = stat.rpartition(b")")[2].split()  # its name may have anything in it
        if len(fields) <= _MAJOR_FAULTS:
            return None
        throttled_ns = sum(map(self._throttled_ns, self._folders(tgid)))
        return Counts(now_ns, throttled_ns, _number(fields[_MAJOR_FAULTS]))

    def _folders(self, tgid: int) -> Iterator[Path]:
        """Of the process's cgroup that has quotas of CPU time, and of those above."""
        for line in self._read(self._proc / str(tgid) / "cgroup").decode(errors="replace").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            place = PurePosixPath(path.lstrip("/"))
            if ".." in place.parts or (number != "0" and "cpu" not in controllers.split(",")):
                continue  # beside the reader's own, in a cgroup namespace
            root = self._cgroups / "cpu" if number != "0" else self._cgroups
            for each in (place, *place.parents)[:_LEVELS]:
                yield root / each

    def _throttled_ns(self, folder: Path) -> int:
        """0 of a cgroup without a quota."""
        for line in self._read(folder / "cpu.stat").splitlines():
            name, _, value = line.partition(b" ")
            if name == b"throttled_usec":  # of version 2
                return _number(value) * 1000
            if name == b"throttled_time":  # of version 1, in nanoseconds
                return _number(value)
        return 0

    @staticmethod
    def _read(path: Path) -> bytes:
        """Empty where it cannot be read."""
        try:
            with path.open("rb") as file:
                return file.read(_MOST_BYTES)
        except OSError:
            return b""


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 20 else 0


def _grown(tgid: int, before: Counts, after: Counts) -> ProcessPressed | None:
    """None where nothing did. A process that moves to another cgroup begins anew there."""
    throttled_ns = max(after.throttled_ns - before.throttled_ns, 0)
    major_faults = max(after.major_faults - before.major_faults, 0)
    if not throttled_ns and not major_faults:
        return None
    return ProcessPressed(
        tgid=tgid,
        since_ns=before.time_ns,
        time_ns=after.time_ns,
        throttled_ns=throttled_ns,
        major_faults=major_faults,
    )


def _open(settings: Settings) -> Poller:
    return PressureReader()


POLLING: Final = Polling(losses="training", open=_open)
