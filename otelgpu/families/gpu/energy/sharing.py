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
import numpy.typing as npt
from msgspec import Struct, field

NOBODY: Final = 0
"""In place of a request's key: what is charged to it is unattributed."""

_Integers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


class Method(StrEnum):
    """How a request's part was found: ``otelgpu.gen_ai.request.energy.method``."""

    STEPS = "steps"
    DEVICE_TIME = "device_time"
    CALLS = "calls"
    CONCURRENCY = "concurrency"


METHODS: Final = tuple(Method)
"""A method's number in a column is its place here."""


class Used(NamedTuple):
    """Of a GPU."""

    nanojoules: int
    time_ns: int  # in which somebody worked on it


class Charges(NamedTuple):
    """To requests, by their keys, or to NOBODY: columns of one length (n,), int64."""

    keys: _Integers
    nanojoules: _Integers
    times_ns: _Integers
    methods: _Integers  # places in METHODS


class Shares(NamedTuple):
    """Requests' parts of what a process did in an interval: columns of one length (n,).

    A request may have several, by different methods. ``weights`` are float64, finite and not below 0.
    """

    keys: _Integers
    weights: _Floats
    methods: _Integers  # places in METHODS

    @classmethod
    def of(cls, found: Iterable[tuple[int, float]], method: Method) -> Shares:
        """By one method: (key, weight)."""
        pairs = list(found)
        return cls(
            np.array([key for key, _ in pairs], dtype=np.int64),
            np.array([weight for _, weight in pairs], dtype=np.float64),
            np.full(len(pairs), METHODS.index(method), dtype=np.int64),
        )

    def __add__(self, other: Shares) -> Shares:  # type: ignore[override]
        """Both, one behind the other."""
        return Shares(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


NO_SHARES: Final = Shares.of((), Method.CONCURRENCY)


class Spans(NamedTuple):
    """Stretches of time: columns of one length (n,), nanoseconds."""

    starts_ns: _Integers
    ends_ns: _Integers


NO_SPANS: Final = Spans(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


class ProcessPart(Struct, frozen=True, kw_only=True, eq=False):
    """What a process did on a GPU in an interval. ``weight``: of it among all processes there."""

    weight: int
    shares: Shares = field(default_factory=lambda: NO_SHARES)
    spans: Spans = field(default_factory=lambda: NO_SPANS)  # when anything of it was under way


def split(whole: int, weights: _Floats) -> _Integers:
    """Parts by weight, whose sum is ``whole``, none below 0; all of it to the last where no weight is above 0.

    ``whole`` from 0 to 2⁶³ - 1; weights (n,) are finite and not below 0. Parts are (n,).
    """
    if not len(weights):
        return np.zeros(0, dtype=np.int64)
    reached = np.cumsum(weights)
    if reached[-1] > 0:
        reached /= reached[-1]
    upto = reached[:-1] * whole
    beyond = upto >= float(whole)  # a float may be above what it is of
    inner = np.where(beyond, whole, np.where(beyond, 0.0, upto).astype(np.int64))
    return np.diff(inner, prepend=np.int64(0), append=np.int64(whole))


def charges(used: Used, processes: Sequence[ProcessPart]) -> Charges:
    """What was used beyond idling, to whom; of a process without any request it is nobody's."""
    weights = np.array([each.weight for each in processes] or [1], dtype=np.float64)
    parts = [split(whole, weights).tolist() for whole in used]
    found = [
        _charges(each, nanojoules, time_ns)
        for each, nanojoules, time_ns in zip(
            processes or (ProcessPart(weight=1),), parts[0], parts[1], strict=True
        )
    ]
    return Charges(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _charges(process: ProcessPart, nanojoules: int, time_ns: int) -> Charges:
    keys, weights, methods = process.shares
    weighty = weights > 0
    if not weighty.any():
        keys, weights, methods = Shares.of([(NOBODY, 1.0)], Method.CONCURRENCY)
    elif not weighty.all():
        keys, weights, methods = keys[weighty], weights[weighty], methods[weighty]
    return Charges(keys, split(nanojoules, weights), split(time_ns, weights), methods)


def covered_ns(*stretches: Spans) -> int:
    """How long at least one of the spans lasted.

    >>> covered_ns(Spans(np.array([10, 0, 30]), np.array([20, 12, 31])))
    21
    """
    starts, ends = (np.concatenate(columns) for columns in zip(NO_SPANS, *stretches, strict=True))
    if not len(starts):
        return 0
    order = np.argsort(starts)
    starts, ends = starts[order], ends[order]
    begins = starts.copy()
    np.maximum(starts[1:], np.maximum.accumulate(ends)[:-1], out=begins[1:])
    return int(np.maximum(ends - begins, 0).sum())
