"""What was counted of queue pairs since the last reading, from counters that only grow. Pure.

In: :class:`~otelgpu.families.rdma.facts.QueuePairCounts`. Out: the same rows as differences. A counter may wrap (64
bits); an entry of the map may be made anew and begin at 0: the row is then what was counted since. A row that grew
by more than any machine can do in the time is no count: it is passed over, and counted.

Worked example: bytes 100, then 250, then (made anew) 40: differences 100, 150, 40.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.families.rdma.facts import Counted, QueuePairCounts

ENTRIES: Final = 131_072
"""Queue pairs of which the last reading is kept: twice as many as the map has room for."""

MOST: Final = 1 << 52
"""Bytes, calls or nanoseconds since the last reading, beyond which nothing is believed."""

_NEGATIVE: Final = np.uint64(1 << 63)
Key = tuple[int, int, int]  # process, address, number


class Grown(Struct, frozen=True, kw_only=True, eq=False):
    """n queue pairs, k counters: ``values`` (n, k) int64 are differences since the last reading, or since the first.

    ``elapsed_ns`` (n,): the time in which it grew. ``since_ns`` (n,): when that began. ``anew`` (n,): at 0.
    """

    keys: list[Key]
    time_ns: npt.NDArray[np.int64]
    elapsed_ns: npt.NDArray[np.int64]
    since_ns: npt.NDArray[np.int64]
    anew: npt.NDArray[np.bool_]
    vendor_error: npt.NDArray[np.int64]
    counters: tuple[Counted, ...]
    values: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.keys)


def keys_of(counts: QueuePairCounts) -> list[Key]:
    """Which queue pair each row is of."""
    return list(zip(counts.tgid.tolist(), counts.queue_pair.tolist(), counts.number.tolist(), strict=True))


class CountDeltas:
    """The last readings of a session. ``counters`` grow: oddities by name."""

    def __init__(self) -> None:
        self._last: dict[Key, tuple[int, npt.NDArray[np.uint64]]] = {}
        self.counters: Counter[str] = Counter()

    def take(self, counts: QueuePairCounts) -> Grown:
        """Differences to the readings before; rows that cannot be are left out."""
        keys = keys_of(counts)
        values = counts.values
        times = counts.time_ns.astype(np.int64)
        known = [self._last.get(key) for key in keys]
        nothing = np.zeros(values.shape[1], dtype=np.uint64)
        fits = [each is not None and len(each[1]) == len(nothing) for each in known]
        before = np.array(
            [each[1] if fit and each is not None else nothing for each, fit in zip(known, fits, strict=True)],
            dtype=np.uint64,
        ).reshape(values.shape)
        with np.errstate(over="ignore"):
            grown = values - before
        anew: npt.NDArray[np.bool_] = np.any(grown >= _NEGATIVE, axis=1) & np.array(fits, dtype=np.bool_)
        grown[anew] = values[anew]
        self._count("counts_begun_anew", int(anew.sum()))
        counted = counts.counted_ns.astype(np.int64)
        since = np.array([each[0] if each is not None else 0 for each in known], dtype=np.int64)
        elapsed = np.where(anew | (counted < since), counted, counted - since)
        believed: npt.NDArray[np.bool_] = np.all(grown < np.uint64(MOST), axis=1)
        self._count("counts_implausible", int((~believed).sum()))
        for row, key in enumerate(keys):
            if key in self._last or len(self._last) < ENTRIES:
                self._last[key] = int(counted[row]), values[row]
            else:
                believed[row] = False  # its next reading would count all of it again
                self.counters["counts_beyond_memory"] += 1
        rows = np.flatnonzero(believed)
        return Grown(
            keys=[keys[row] for row in rows.tolist()],
            time_ns=times[rows],
            elapsed_ns=elapsed[rows],
            since_ns=(times - elapsed)[rows],
            anew=(anew | ~np.array(fits, dtype=np.bool_))[rows],
            vendor_error=counts.vendor_error.astype(np.int64)[rows],
            counters=counts.counters,
            values=grown[rows].astype(np.int64),
        )

    def forget(self, key: Key) -> None:
        """A queue pair is no more."""
        self._last.pop(key, None)

    def forget_process(self, tgid: int) -> None:
        """A process ended."""
        for key in [key for key in self._last if key[0] == tgid]:
            del self._last[key]

    def _count(self, reason: str, count: int) -> None:
        if count:
            self.counters[reason] += count
