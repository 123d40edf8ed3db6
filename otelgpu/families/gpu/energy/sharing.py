"""What was used in an interval, among the requests that it was used for: exactly, in whole numbers. Pure.

In: what was used, and what each process on a GPU worked on. Out: what is charged to each request, and what is nobody's;
the sum is what was used, whatever comes in.

A process's part goes, by the first that is known:

1. ``steps``: to the engine steps that overlap the interval, by how much they do, and of each step to its members by
   the tokens that it worked on for them; a step whose members are not all known goes to the requests under way in it;
2. ``device_time``: to the requests that the device worked for, by how long;
3. ``calls``: to the requests whose threads called the device, by the host time in those calls, waits among them;
4. ``concurrency``: to the requests under way, equally, as long as each was.

>>> split(10, [1, 1, 1])
[3, 3, 4]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

NOBODY: Final = 0
"""In place of a request's key: what is charged to it is unattributed."""


class Method(StrEnum):
    """How a request's part was found: ``otelgpu.gen_ai.request.energy.method``."""

    STEPS = "steps"
    DEVICE_TIME = "device_time"
    CALLS = "calls"
    CONCURRENCY = "concurrency"


class Used(NamedTuple):
    """Of a GPU."""

    nanojoules: int
    time_ns: int  # in which somebody worked on it


class Charge(NamedTuple):
    """To a request, by its key; or to NOBODY."""

    key: int
    nanojoules: int
    time_ns: int
    method: Method


class Share(NamedTuple):
    """A request's part of what a process did in an interval. A request may have several, by different methods."""

    key: int
    weight: float
    method: Method


class ProcessPart(Struct, frozen=True, kw_only=True):
    """What a process did on a GPU in an interval. ``weight``: of it among all processes there."""

    weight: int
    shares: Sequence[Share] = ()
    spans: Sequence[tuple[int, int]] = ()  # when anything of it was under way


def split(whole: int, weights: Sequence[float]) -> list[int]:
    """Parts by weight, whose sum is ``whole``, none below 0; all of it to the last where no weight is above 0.

    ``whole`` from 0 to 2⁶³ - 1; weights are finite and not below 0.
    """
    if not weights:
        return []
    reached = np.cumsum(np.asarray(weights, dtype=np.float64))
    if reached[-1] > 0:
        reached /= reached[-1]
    upto = [
        min(int(each), whole) for each in (reached[:-1] * whole).tolist()
    ]  # a float may be above what it is of
    return [after - before for before, after in zip([0, *upto], [*upto, whole], strict=True)]


def charges(used: Used, processes: Sequence[ProcessPart]) -> list[Charge]:
    """What was used beyond idling, to whom; of a process without any request it is nobody's."""
    if not processes:
        return [Charge(NOBODY, *used, Method.CONCURRENCY)]
    weights = [each.weight for each in processes]
    parts = zip(split(used.nanojoules, weights), split(used.time_ns, weights), strict=True)
    found: list[Charge] = []
    for process, (nanojoules, time_ns) in zip(processes, parts, strict=True):
        weighty = [share for share in process.shares if share.weight > 0]
        if not weighty:
            found.append(Charge(NOBODY, nanojoules, time_ns, Method.CONCURRENCY))
            continue
        shares = [share.weight for share in weighty]
        found += [
            Charge(share.key, energy, time, share.method)
            for share, energy, time in zip(
                weighty, split(nanojoules, shares), split(time_ns, shares), strict=True
            )
        ]
    return found


def covered_ns(spans: Iterable[tuple[int, int]]) -> int:
    """How long at least one of the spans lasted.

    >>> covered_ns([(10, 20), (0, 12), (30, 31)])
    21
    """
    whole = reached = 0
    for start, end in sorted(spans):
        start = max(start, reached)
        if end > start:
            whole += end - start
            reached = end
    return whole
