"""Readings of one GPU's energy → intervals, each with what was used in it, exactly; and what the GPU uses idle. Pure.

In: :class:`~otelgpu.model.devices.EnergyRead`, in order of time. Out: intervals in nanojoules, whole numbers, that
follow each other without a gap: their sum is the counter's difference. Where a counter begins at zero again (a GPU
that was reset, a driver that was loaded anew), the interval of that is left out and counted: what was used in it is
in no counter.

Of a GPU without a counter the power is integrated by the trapezoidal rule; that is an estimate, and said to be one.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import Final

from msgspec import Struct

from otelgpu.model.devices import EnergyRead

NANO_OF_MILLI: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000

LONGEST_NS: Final = 60 * NS_PER_S
"""Between two readings of power that are integrated: nobody knows what the GPU drew meanwhile."""

MOST_WATTS: Final = 20_000
"""A reading that means more is none: no GPU draws as much."""

QUIET_NS: Final = NS_PER_S
"""A quiet stretch of so long tells what the GPU draws idle: shorter ones are of the order of a counter's own steps."""

QUIET_STRETCHES: Final = 32
"""Of the last so many, the least is what the GPU draws idle: clocks stay up for a while after work."""


class EnergySource(StrEnum):
    """Where energy is known from: ``otelgpu.energy.source``."""

    COUNTER = "counter"
    POWER = "power"  # readings of power, integrated


class Interval(Struct, frozen=True, kw_only=True):
    """From one reading of a GPU to the next."""

    start_ns: int  # CLOCK_MONOTONIC
    end_ns: int
    nanojoules: int
    source: EnergySource

    @property
    def duration_ns(self) -> int:
        """At least 1."""
        return self.end_ns - self.start_ns


class Energy:
    """One GPU's readings. ``resets`` and ``implausible``: intervals that were left out."""

    def __init__(self) -> None:
        self.resets = 0
        self.implausible = 0
        self.until_ns = 0  # the last reading
        self._before: EnergyRead | None = None

    def add(self, read: EnergyRead) -> Interval | None:
        """The interval that ends with a reading; None: there is none."""
        before = self._before
        if before is not None and read.time_ns <= before.time_ns:
            return None
        self._before, self.until_ns = read, read.time_ns
        if before is None:
            return None
        used = self._used(before, read)
        if used is None:
            return None
        nanojoules, source = used
        if nanojoules > MOST_WATTS * (read.time_ns - before.time_ns + NS_PER_S):
            self.implausible += 1
            return None
        return Interval(start_ns=before.time_ns, end_ns=read.time_ns, nanojoules=nanojoules, source=source)

    def _used(self, before: EnergyRead, read: EnergyRead) -> tuple[int, EnergySource] | None:
        if before.millijoules is not None and read.millijoules is not None:
            if read.millijoules < before.millijoules:
                self.resets += 1
                return None
            return (read.millijoules - before.millijoules) * NANO_OF_MILLI, EnergySource.COUNTER
        duration_ns = read.time_ns - before.time_ns
        if before.milliwatts is None or read.milliwatts is None or duration_ns > LONGEST_NS:
            return None
        # milliwatts x nanoseconds are picojoules
        return (before.milliwatts + read.milliwatts) * duration_ns // 2000, EnergySource.POWER


class IdlePower:
    """What a GPU draws while nobody uses it, as far as it was seen. ``configured`` in milliwatts; 0: it is measured."""

    def __init__(self, configured: int = 0) -> None:
        self._configured = configured
        self._stretches: deque[int] = deque(maxlen=QUIET_STRETCHES)
        self._energy = self._duration_ns = 0

    @property
    def milliwatts(self) -> int | None:
        """None: not known yet."""
        if self._configured:
            return self._configured
        return min(self._stretches, default=None)

    @property
    def how(self) -> str:
        """``configured``, ``measured`` or ``unknown``: :data:`otelgpu.families.gpu.energy.signals.IDLE_POWER`."""
        if self._configured:
            return "configured"
        return "measured" if self._stretches else "unknown"

    def quiet(self, interval: Interval) -> None:
        """Nobody used the GPU in an interval."""
        self._energy += interval.nanojoules
        self._duration_ns += interval.duration_ns
        if self._duration_ns >= QUIET_NS:
            self._stretches.append(self._energy * 1000 // self._duration_ns)
            self.busy()

    def busy(self) -> None:
        """Somebody did."""
        self._energy = self._duration_ns = 0

    def part_of(self, interval: Interval) -> int:
        """Nanojoules of an interval that the GPU would have used without any work; 0 where that is not known."""
        return min(interval.nanojoules, (self.milliwatts or 0) * interval.duration_ns // 1000)
