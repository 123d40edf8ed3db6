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


class Container:
    """The memory cgroup of this program, as far as it shows: ``memory.max`` of it and of those around it."""

    def __init__(self, *, proc: Path = Path("/proc/self"), root: Path = Path("/sys/fs/cgroup")) -> None:
        self._folder: Path | None = None
        least = 0
        for folder in _folders(proc, root):
            limit = _number(folder / "memory.max")
            if limit and (not least or limit < least):
                self._folder, least = folder, limit

    def left_for(self, used: int) -> int:
        """How much this program may have, which has ``used``, beside all else that is charged there; 0: any."""
        if self._folder is None:
            return 0
        most, now = _number(self._folder / "memory.max"), _number(self._folder / "memory.current")
        if not most or not now:
            return 0
        others = max(now - _reclaimable(self._folder / "memory.stat") - used, 0)
        return max(int(OF_CONTAINER * most) - others, 1)


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


def _folders(proc: Path, root: Path) -> list[Path]:
    """Of this program in the hierarchy of version 2, innermost first; none where that is not mounted."""
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return []
    own = next((line.partition("::")[2] for line in lines if line.startswith("0::/")), None)
    if own is None or ".." in own:
        return []
    folder = root / own.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent == root or root in parent.parents)]


def _number(path: Path) -> int:
    """0 for "max", and where it cannot be read."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0


def _reclaimable(path: Path) -> int:
    """What the kernel takes back before it ends anybody: files that were read long ago."""
    try:
        fields = dict(line.split() for line in path.read_text().splitlines())
        return int(fields.get("inactive_file", 0)) + int(fields.get("slab_reclaimable", 0))
    except (OSError, ValueError):
        return 0
