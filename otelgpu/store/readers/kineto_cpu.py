"""Traces of jobs that train on CPUs, with gloo: what takes the place of the device's work. Pure.

In: operators and gloo's transfers. Out: of the operators those that lie in no other one, which are the rank's
computing, and transfers, which last until the last rank has come, as a device's collectives do. What operators do for
the data loader is its. An operator that only hands a transfer over computes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

TRANSFER: Final = "gloo:"
_QUEUED: Final = "c10d::"
_PAIRS: Final = ("gloo:send", "gloo:recv")


class Operator(Struct, frozen=True):
    """An operator of a thread, or a transfer of one of gloo's. Seconds."""

    thread: int | str
    name: str
    t0: float
    t1: float

    @property
    def kind(self) -> str:
        """Of ``ops.kind``."""
        if not self.name.startswith(TRANSFER):
            return "compute"
        return "p2p" if self.name.startswith(_PAIRS) else "coll"


def work_of(operators: Iterable[Operator], loads: Sequence[tuple[float, float]]) -> Iterator[Operator]:
    """``loads``: when the data loader was asked."""
    loads = sorted(loads)
    ordered = sorted(operators, key=lambda each: (str(each.thread), each.t0, -each.t1))
    thread, end = None, 0.0
    for each in ordered:
        if each.thread == thread and each.t0 < end:
            continue
        thread, end = each.thread, each.t1
        place = bisect_right(loads, each.t0, key=lambda load: load[0]) - 1
        loading = place >= 0 and each.t0 < loads[place][1]
        if each.kind != "compute" or not (loading or each.name.startswith(_QUEUED)):
            yield each
