"""Places whose memory grows and grows: a leak, or a cache that fills. Pure.

In: the snapshots of a process, and what was allocated in between. Out: :class:`Growth` of each place that, over
:data:`LEAST_SNAPSHOTS` snapshots and :data:`LEAST_SECONDS` at least,

* never held less than before,
* held more at two of three snapshots, in the second half of the time as in all of it (what is loaded once, or a cache
  that is full, has stopped by then),
* and kept nine tenths of what it allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from otelgpu.diagnose.memory.observations import DEVICE, Place, ProcessSeen, Snapshot

LEAST_SNAPSHOTS: Final = 6
"""Looks in which a place holds anything."""
LEAST_SECONDS: Final = 4.0
"""From the first of them to the last."""
LEAST_BYTES: Final = 1 << 20
"""That it has grown by."""
GROWING: Final = 2 / 3
"""Of the steps from one snapshot to the next."""
KEPT: Final = 0.9
"""Of what was allocated meanwhile."""


class Growth(Struct, frozen=True, kw_only=True):
    """One place's, from ``begin_ns`` to ``end_ns``. ``rising``: share of the steps in which it held more."""

    place: Place
    begin_ns: int
    end_ns: int
    grown: int
    held: int
    rising: float

    @property
    def bytes_per_s(self) -> float:
        """How fast."""
        return self.grown / max((self.end_ns - self.begin_ns) / 1e9, 1e-9)


def growths(process: ProcessSeen) -> list[Growth]:
    """Of a process, the largest first. Of a device where tensors are seen, those of tensors, not of their pieces."""
    snapshots = [each for each in process.snapshots if not each.at_exit]
    if len(snapshots) < LEAST_SNAPSHOTS:
        return []
    places = {place for place in snapshots[-1].sizes if snapshots[-1].sizes[place]}
    with_tensors = {place.device for place in places if place.level != DEVICE}
    found = [
        growth
        for place in places
        if not (place.level == DEVICE and place.device in with_tensors)
        if (growth := _growth(place, process, snapshots)) is not None
    ]
    return sorted(found, key=lambda each: -each.grown)


def _growth(place: Place, process: ProcessSeen, snapshots: Sequence[Snapshot]) -> Growth | None:
    sizes = np.array([each.sizes[place] for each in snapshots], dtype=np.int64)
    first = int(np.argmax(sizes > 0))
    sizes, times = sizes[first:], [each.time_ns for each in snapshots[first:]]
    if len(sizes) < LEAST_SNAPSHOTS or times[-1] - times[0] < LEAST_SECONDS * 1e9:
        return None
    steps = np.diff(sizes)
    grown = int(sizes[-1] - sizes[0])
    rising, late = float((steps > 0).mean()), float((steps[len(steps) // 2 :] > 0).mean())
    if (steps < 0).any() or min(rising, late) < GROWING or grown < LEAST_BYTES:
        return None
    passed = sum(size for time, size in process.flow.get(place, ()) if times[0] < time <= times[-1])
    if passed and grown < KEPT * passed:
        return None
    return Growth(
        place=place,
        begin_ns=times[0],
        end_ns=times[-1],
        grown=grown,
        held=int(sizes[-1]),
        rising=rising,
    )
