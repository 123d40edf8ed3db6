"""When a device had nothing to do for a process: as it was measured, or as calls bound it. Pure.

Where kernels' times on the device are known, the device is idle between them. Else calls say it: after the host has
waited for the device (a synchronisation, a copy that blocks) nothing is queued, and the device is idle until the next
launch, which is certain; where the host makes no call for long, and has not waited before, the device may still have
had work, so this is a bound. Time in launching and waiting calls is taken for busy.

Example: launch at 0–1 ms, synchronise at 1–9 ms, launch at 14 ms: idle from 9 to 14, certain.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.diagnose.utilization.gpu_calls import (
    BLOCKING_COPY,
    COPY,
    I64,
    LAUNCH,
    MEMORY,
    SYNC,
    DeviceTimes,
    GpuCalls,
)

BY_DEVICE: Final = "device times"
BY_CALLS: Final = "calls"
"""How it is known."""

PIPELINED_NS: Final = 1_000_000
"""Between two calls of a host that has not waited for the device: shorter, and the device has work from before."""


class Idle(Struct, kw_only=True):
    """Intervals that do not overlap, in order. ``drained``: the device certainly had nothing queued."""

    begin_ns: I64
    end_ns: I64
    drained: npt.NDArray[np.bool_]
    basis: str

    @property
    def total_ns(self) -> int:
        """All of it."""
        return int((self.end_ns - self.begin_ns).sum())

    def certain(self) -> Idle:
        """Without those in which the device may have had work from before."""
        return Idle(
            begin_ns=self.begin_ns[self.drained],
            end_ns=self.end_ns[self.drained],
            drained=self.drained[self.drained],
            basis=self.basis,
        )

    def within(self, begin_ns: npt.ArrayLike, end_ns: npt.ArrayLike) -> I64:
        """How much of each interval was idle, in nanoseconds: of arrays of length m, (m,)."""
        found: I64 = np.maximum(self._until(end_ns) - self._until(begin_ns), 0)
        return found

    def _until(self, at: npt.ArrayLike) -> I64:
        """Idle time before, of each."""
        if not len(self.begin_ns):
            return np.zeros(np.shape(at), dtype=np.int64)
        origin = self.begin_ns[0]
        edges = np.stack((self.begin_ns, self.end_ns), axis=1).ravel() - origin
        spent = np.cumsum(self.end_ns - self.begin_ns)
        levels = np.stack((np.r_[0, spent[:-1]], spent), axis=1).ravel()
        where = np.asarray(at, dtype=np.int64) - origin
        found: I64 = np.interp(where, edges, levels).astype(np.int64)
        return found


def idle_by_device(times: DeviceTimes, begin_ns: int, end_ns: int) -> Idle:
    """Between kernels: a copy keeps no multiprocessor busy."""
    kernels = times.is_kernel
    return _between(times.begin_ns[kernels], times.end_ns[kernels], begin_ns, end_ns)


def idle_by_calls(calls: GpuCalls, begin_ns: int, end_ns: int) -> Idle:
    """As calls of one process bound it; before its first call, and after its last, the device is idle."""
    made = calls.of(LAUNCH, COPY, BLOCKING_COPY, SYNC)
    busy = made.where(made.kind != BLOCKING_COPY)
    # A copy that blocks keeps no multiprocessor busy, but what was queued before it had to be done first.
    found = _between(busy.begin_ns, busy.end_ns, begin_ns, end_ns)
    waits = calls.of(BLOCKING_COPY, MEMORY)  # who frees memory waits for the device too
    before = np.searchsorted(made.begin_ns, found.begin_ns, side="right") - 1
    drained = np.zeros(len(found.begin_ns), dtype=np.bool_)
    if len(made):
        drained = (before < 0) | np.isin(made.kind[np.maximum(before, 0)], (SYNC, BLOCKING_COPY))
    drained |= np.searchsorted(waits.begin_ns, found.begin_ns) < np.searchsorted(waits.begin_ns, found.end_ns)
    kept = drained | (found.end_ns - found.begin_ns >= PIPELINED_NS)
    return Idle(
        begin_ns=found.begin_ns[kept],
        end_ns=found.end_ns[kept],
        drained=drained[kept],
        basis=BY_CALLS,
    )


def _between(begins: I64, ends: I64, begin_ns: int, end_ns: int) -> Idle:
    """What intervals, in order of their begins, leave of a time."""
    inside = (ends > begin_ns) & (begins < end_ns)
    begins, ends = np.maximum(begins[inside], begin_ns), np.minimum(ends[inside], end_ns)
    until = np.maximum.accumulate(ends) if len(ends) else ends
    gap_begins = np.r_[begin_ns, until].astype(np.int64)
    gap_ends = np.r_[begins, end_ns].astype(np.int64)
    kept = gap_ends > gap_begins
    return Idle(
        begin_ns=gap_begins[kept],
        end_ns=gap_ends[kept],
        drained=np.ones(int(kept.sum()), dtype=np.bool_),
        basis=BY_DEVICE,
    )
