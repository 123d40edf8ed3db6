"""A ceiling of this program's memory: near it, things are given up in a declared order, before the kernel ends it.

In: what this program has (``/proc/self/statm``), and what its container may have. Out: a *level*, of which each takes
effect beside those below it:

1. what can be read again is given back: tables and names of symbols;
2. to 5.: of what is held of others (:class:`~otelgpu.model.shares.Headroom`) half as much may be, at each level: bodies
   and open requests, connections, series, operations that wait, what waits to be exported. Shares are of what is free,
   so that those who hold most are refused first, and give up first. What is given up is counted where it always is.

A level is added at most each quarter of a second while there is more than :data:`HIGH` of the limit, and taken back
after ten seconds below :data:`LOW`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from otelgpu.kernel.heap import give_back
from otelgpu.model.shares import Headroom

DEFAULT_BYTES: Final = 512 << 20
"""Where neither the configuration nor the container says anything."""
OF_CONTAINER: Final = 0.9
"""Of what a container may have, in all: the kernel's part for it grows between two looks."""
HIGH: Final = 0.8
"""A collection, and an export of metrics, take more for a moment: up to 20 MiB (tests/hostile/test_memory_limit.py)."""
LOW: Final = 0.65
LEVELS: Final = 1 + Headroom.MOST_STEPS

_LOOK_EVERY_S: Final = 0.25
_CALM_S: Final = 10.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_NO_LIMIT: Final = 1 << 62
"""In version 1 no limit is the last page below 2⁶³ bytes."""
_LONGEST_NUMBER: Final = 32
_log = logging.getLogger("otelgpu.memory")


class MemoryLimit:
    """One session's. ``limit_bytes``: 0 for what the container leaves, else :data:`DEFAULT_BYTES`.

    ``headroom`` is set here; ``forget``: gives back what can be read again. To be asked to :meth:`look` at each turn.
    """

    def __init__(
        self,
        limit_bytes: int,
        headroom: Headroom,
        forget: Callable[[], object],
        *,
        resident: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._asked, self._headroom, self._forget = limit_bytes, headroom, forget
        self._resident, self._clock = resident or resident_bytes, clock
        self._container = Container()
        self._looked = self._calm_since = clock()
        self.level = 0
        self.limit_bytes = limit_bytes or DEFAULT_BYTES

    def look(self) -> bool:
        """Set the level by what is used now; whether it has changed. Nearly nothing but each quarter of a second."""
        now, before = self._clock(), self.level
        if now - self._looked >= _LOOK_EVERY_S:
            self._judge(now)
        return self.level != before

    @property
    def conditions(self) -> list[str]:
        """What is to be said of it; empty: nothing is given up."""
        if not self.level:
            return []
        return [
            f"memory is short (level {self.level} of {LEVELS}): the limit is {self.limit_bytes >> 20} MiB"
        ]

    def _judge(self, now: float) -> None:
        self._looked, used = now, self._resident()
        self.limit_bytes = self._asked or self._container.left_for(used) or DEFAULT_BYTES
        if used > HIGH * self.limit_bytes:
            self._raise(used)
        elif used > LOW * self.limit_bytes:
            self._calm_since = now
        elif self.level and now - self._calm_since >= _CALM_S:
            self._set(self.level - 1)
            self._calm_since = now
            if not self.level:
                _log.warning("%s MiB are used of %s: nothing is given up any more", *self._in_mib(used))

    def _raise(self, used: int) -> None:
        self._calm_since = self._looked
        if not self.level:
            _log.warning(
                "%s MiB are used of %s: things are given up, see otelgpu.losses (docs/how-to/operations.md, Memory)",
                *self._in_mib(used),
            )
        self._set(min(self.level + 1, LEVELS))
        self._forget()
        give_back()

    def _set(self, level: int) -> None:
        self.level = level
        self._headroom.steps = max(level - 1, 0)

    def _in_mib(self, used: int) -> tuple[int, int]:
        return used >> 20, self.limit_bytes >> 20


class _Version(Struct, frozen=True, kw_only=True):
    """What a version of control groups calls the files of one."""

    limit: str
    used: str
    reclaimable: tuple[str, ...]  # fields of memory.stat
    events: str  # has the field oom_kill


_OF_VERSION_2: Final = _Version(  # Documentation/admin-guide/cgroup-v2.rst
    limit="memory.max",
    used="memory.current",
    reclaimable=("inactive_file", "slab_reclaimable"),
    events="memory.events",
)
_OF_VERSION_1: Final = _Version(  # Documentation/admin-guide/cgroup-v1/memory.rst
    limit="memory.limit_in_bytes",
    used="memory.usage_in_bytes",
    reclaimable=("total_inactive_file",),
    events="memory.oom_control",
)


class Container:
    """The memory cgroup of this program, as far as it shows: what it may have, and what those around it may.

    Of version 2, or of version 1 where the memory controller is in a hierarchy of that (also beside version 2).
    """

    def __init__(self, *, proc: Path = Path("/proc/self"), root: Path = Path("/sys/fs/cgroup")) -> None:
        self._folder: Path | None = None
        self._version, folders = _folders(proc, root)
        least = 0
        for folder in folders:
            limit = _number(folder / self._version.limit)
            if limit and (not least or limit < least):
                self._folder, least = folder, limit

    def left_for(self, used: int) -> int:
        """How much this program may have, which has ``used``, beside all else that is charged there; 0: any."""
        if self._folder is None:
            return 0
        most, now = self.limit_bytes, _number(self._folder / self._version.used)
        if not most or not now:
            return 0
        others = max(now - self._reclaimable(self._folder) - used, 0)
        return max(int(OF_CONTAINER * most) - others, 1)

    @property
    def limit_bytes(self) -> int:
        """What all in it may have together; 0: any."""
        return _number(self._folder / self._version.limit) if self._folder is not None else 0

    @property
    def kills(self) -> int:
        """Of how many processes in it the kernel has made an end for want of memory; 0 where that is not known."""
        return (
            _fields(self._folder / self._version.events).get("oom_kill", 0) if self._folder is not None else 0
        )

    def _reclaimable(self, folder: Path) -> int:
        """What the kernel takes back before it ends anybody: files that were read long ago."""
        fields = _fields(folder / "memory.stat")
        return sum(fields.get(name, 0) for name in self._version.reclaimable)


def resident_bytes() -> int:
    """What this program has in memory."""
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * _PAGE_BYTES


def end_first() -> None:
    """Where memory ends, the kernel is to end this program, not another of its container: for who visits an agent's.

    Source: proc(5), ``oom_score_adj``; raising it needs no privilege.
    """
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _folders(proc: Path, root: Path) -> tuple[_Version, list[Path]]:
    """Of this program in the hierarchy with the memory controller, innermost first; none where that is not mounted."""
    try:
        lines = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
    except OSError:
        return _OF_VERSION_2, []
    paths = {controller: rest[1] for _, *rest in lines if len(rest) == 2 for controller in rest[0].split(",")}
    if "memory" in paths:
        version, own, root = _OF_VERSION_1, paths["memory"], root / "memory"
    else:
        version, own = _OF_VERSION_2, paths.get("", "")
        root = root / "unified" if (root / "unified").is_dir() else root  # beside hierarchies of version 1
    if not own.startswith("/") or ".." in own:
        return version, []
    folder = root / own.lstrip("/")
    if not folder.is_dir():
        return version, [root]  # of a container that does not see where in the host's hierarchy it is
    return version, [
        folder,
        *(parent for parent in folder.parents if parent == root or root in parent.parents),
    ]


def _fields(path: Path) -> dict[str, int]:
    """Of a file with a name and a number in each line; none where it cannot be read."""
    try:
        return {name: int(number) for name, number in map(str.split, path.read_text().splitlines())}
    except (OSError, ValueError):
        return {}


def _number(path: Path) -> int:
    """0 for "max" and what version 1 has for it, and where it cannot be read."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    number = int(text) if text.isdecimal() and len(text) < _LONGEST_NUMBER else 0
    return number if number < _NO_LIMIT else 0
