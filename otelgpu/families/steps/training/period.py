"""The period of a training loop: found in what its collectives are, whatever their order within a step. Pure.

In: the last collectives of a process and the marks between them. Out: a :class:`Period`, or None.

How. Each collective is a random-looking word (its *symbol*), so that the sum of the words of a stretch says which
collectives are in it, and how many of each, in whatever order. A loop has the period L where the last three stretches
of L collectives have equal sums: with prefix sums that is asked of every L at once. It is asked where a boundary may
be, which is where something was copied to the device or waited for since the last collective, of those L before which
one may be too (layers alike have periods of their own, within a step); and that is part of the word, so that ten equal
collectives between two host-to-device copies are a period of ten and not ten periods. Where waits are not the same in
each step (the loss is read now and then) only copies are, and where neither is, only the collectives.

Which of the gaps between collectives is the boundary: of those in which something is copied to the device in each
period (else, is waited for), the one after the most launches, for the optimizer is last.

A step may be made of several batches, each with collectives of its own (accumulated gradients where parameters are
gathered, pipelines). Then the period of one batch is found first, and the step's shows by collectives that come after
every few of them, with the launches of the optimizer; a sum for a log, which few launches go with, makes no longer
step.

Example: ``C a b b C a b b C a b b C``: at the last copy the sums over three collectives agree three times.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.families.steps.training.notes import Nature, Notes, calls_itself
from otelgpu.families.steps.training.step import Boundary
from otelgpu.model.ids import mix

LONGEST: Final = 2048
"""Collectives of a step."""

REPEATS: Final = 3
"""How often a step must have been seen before its period is believed."""

HISTORY: Final = REPEATS * LONGEST + 1
"""Collectives that are remembered."""

MARKS: Final = 4096
"""Host-to-device copies and waits that are remembered."""

MICRO_STEPS: Final = 16
"""Batches of a step of which each has collectives: beyond, each is reported as a step."""

OPTIMIZER_LAUNCHES: Final = 8
"""So many launches more than others has a batch with which the optimizer ran."""

SHORTEST_NS: Final = 1_000_000
"""A step of a program that calls its collectives itself (MPI): what repeats more often is the inside of one."""

_TRIED: Final = 512  # boundaries without a period, after which only one in _RARELY is asked
_RARELY: Final = 16
_BATCH_PART: Final = 4  # a copy of at least such a part of the largest is of a batch; less is a scalar

_U64 = npt.NDArray[np.uint64]


class Cut(NamedTuple):
    """Where a step may end and the next begin."""

    time_ns: int
    launched: int  # launches of the process until then
    tid: int
    size_bytes: int


class Period(Struct, frozen=True, kw_only=True):
    """What a step's collectives are.

    ``total``: sum of their symbols. ``first``: ordinal of the first collective of the last whole step that was seen.
    ``batch_bytes``: what a run of host-to-device copies must have to be of a batch. ``cuts``: runs of that size between
    two steps, more than one where several small batches make a step. ``least_ns``: what repeats more often is no step.
    """

    length: int
    total: int
    symbols: npt.NDArray[np.uint64]  # distinct, ascending
    boundary: Boundary
    batch_bytes: int
    cuts: int
    first: int
    least_ns: int


class Searcher:
    """Looks for the period of one process. ``surely``: it serves, or is a child of what serves."""

    def __init__(self, *, surely: bool) -> None:
        self._surely = surely
        self._tried = 0

    def find(self, collectives: Notes, marks: Notes, begin: int) -> tuple[int, Period] | None:
        """The first period that shows at a collective from position ``begin`` on, and where."""
        flagged = collectives["h2d_copies"] | collectives["waits"]
        asked = np.flatnonzero(flagged[begin:]) + begin
        if not len(asked):
            return None
        tapes = _tapes(collectives)
        for position in asked.tolist():
            self._tried += 1
            if self._tried > _TRIED and self._tried % _RARELY:
                continue
            for tape in tapes:
                length = _length(tape, position)
                period = length and self._period(collectives, marks, position, length)
                if period:
                    self._tried = 0
                    return position, period
        return None

    def widen(
        self, collectives: Notes, marks: Notes, begin: int, period: Period
    ) -> tuple[int, Period] | None:
        """The same of a longer period, of which the known one is a part."""
        foreign = ~np.isin(collectives["symbol"], period.symbols)
        if np.count_nonzero(foreign) < REPEATS:
            return None
        asked = np.flatnonzero(collectives["h2d_copies"][begin:] | collectives["waits"][begin:]) + begin
        tapes = _tapes(collectives)
        since = np.cumsum(foreign)
        for position in asked.tolist():
            most = MICRO_STEPS * (period.length + 1)
            if since[position] - since[max(position - REPEATS * most, 0)] < REPEATS:
                continue
            for tape in tapes:
                length = _length(tape, position, least=2 * period.length + 1)
                if length and _is_wider(collectives, marks, position, length, period):
                    wider = self._period(collectives, marks, position, length)
                    if wider is not None:
                        return position, wider
        return None

    def _period(self, collectives: Notes, marks: Notes, position: int, length: int) -> Period | None:
        within = collectives[position - length : position]
        least_ns = SHORTEST_NS if calls_itself(within).all() else 0
        ends_ns = collectives["end_ns"][position - 1 :: -length][:REPEATS].astype(np.int64)
        if (ends_ns[:-1] - ends_ns[1:] < least_ns).any():
            return None
        found = _boundary(collectives, marks, position, length)
        if found is None:
            return None
        at, boundary, batch_bytes, cuts, tid = found
        moved = collectives[position - length : position]
        if training_evidence(moved, tid) < (2 if self._surely else 1):
            return None
        return Period(
            length=length,
            total=total_of(within["symbol"]),
            symbols=np.unique(within["symbol"]),
            boundary=boundary,
            batch_bytes=batch_bytes,
            cuts=cuts,
            first=int(collectives["ordinal"][at]),
            least_ns=least_ns,
        )


def total_of(symbols: _U64) -> int:
    """Reports a stretch by what is in it, in any order."""
    return int(np.add.reduce(mix(symbols), dtype=np.uint64))


def prefix_sums(symbols: _U64) -> _U64:
    """Shape (n + 1,): modulo 2^64, so that a difference is what :func:`total_of` gives."""
    sums = np.zeros(len(symbols) + 1, dtype=np.uint64)
    np.cumsum(mix(symbols), out=sums[1:])
    return sums


class _Tape(NamedTuple):
    """Prefix sums of words, and what a boundary looks like: 0 where there is none."""

    sums: _U64
    flags: npt.NDArray[np.uint8]


def _tapes(collectives: Notes) -> list[_Tape]:
    """Of words of the symbol and: what was copied to the device or waited for before; what was copied; nothing else."""
    symbols = np.ascontiguousarray(collectives["symbol"])
    h2d_copies, waits = collectives["h2d_copies"].astype(np.uint8), collectives["waits"].astype(np.uint8)
    both: npt.NDArray[np.uint8] = h2d_copies | (waits << np.uint8(1))
    return [
        _Tape(prefix_sums(symbols ^ (both.astype(np.uint64) << np.uint64(62))), both),
        _Tape(prefix_sums(symbols ^ (h2d_copies.astype(np.uint64) << np.uint64(62))), h2d_copies),
        _Tape(prefix_sums(symbols), np.minimum(both, np.uint8(1))),
    ]


def _length(tape: _Tape, position: int, *, least: int = 1) -> int:
    """The least L, from ``least`` on, of which three stretches before ``position`` have equal sums; 0: none."""
    sums, flags = tape
    longest = min(position // REPEATS, LONGEST)
    if longest < least or not flags[position]:
        return 0
    behind = [_behind(sums, position, repeat, longest) for repeat in range(1, REPEATS + 1)]
    last = sums[position] - behind[0]
    alike = last == behind[0] - behind[1]
    alike &= last == behind[1] - behind[2]
    alike &= flags[position - longest : position][::-1] == flags[position]
    first = least - 1 + int(alike[least - 1 :].argmax())
    return first + 1 if alike[first] else 0


def _is_wider(collectives: Notes, marks: Notes, position: int, length: int, period: Period) -> bool:
    """Whether a stretch that repeats is a few of the known periods, the same ones of which are different each time."""
    firsts, extra = _batches(collectives, position, length, period)
    if not 2 <= len(extra) <= MICRO_STEPS or extra.all() or not extra.any():
        return False
    for before in range(1, REPEATS):
        if not np.array_equal(_batches(collectives, position - before * length, length, period)[1], extra):
            return False
    launches = np.diff(collectives["launched"][firsts])
    h2d_copies = [
        len(cuts_between(marks, first + 1, last, period.boundary, period.batch_bytes))
        for first, last in pairwise(collectives["ordinal"][firsts].tolist())
    ]
    if len(set(h2d_copies)) > 1:  # more of them: an evaluation
        return False
    return int(launches[extra].min()) >= int(np.median(launches[~extra])) + OPTIMIZER_LAUNCHES


def _batches(
    collectives: Notes, position: int, length: int, period: Period
) -> tuple[list[int], npt.NDArray[np.bool_]]:
    """Where the known periods in a stretch begin, and its end; and which have collectives that are not of them.

    Nothing where the stretch is not made of whole ones.
    """
    within = collectives["symbol"][position - length : position]
    known = np.isin(within, period.symbols)
    ours = np.flatnonzero(known)
    sums = prefix_sums(within[ours])[:: period.length]
    if not len(ours) or len(ours) % period.length or not (np.diff(sums) == np.uint64(period.total)).all():
        return [], np.zeros(0, dtype=np.bool_)
    begins = ours[:: period.length]
    extra = np.zeros(len(begins), dtype=np.bool_)
    others = np.searchsorted(begins, np.flatnonzero(~known), side="right") - 1
    extra[others] = True  # before the first one: of the last, from which it comes
    return [*(position - length + begins).tolist(), position], extra


def _behind(sums: _U64, position: int, repeat: int, longest: int) -> _U64:
    """``sums[position - repeat * L]`` for L in 1..longest."""
    last = position - repeat * longest
    return sums[last : position - repeat + 1 : repeat][::-1]


def _boundary(
    collectives: Notes, marks: Notes, position: int, length: int
) -> tuple[int, Boundary, int, int, int] | None:
    """Which collective is a step's first, what parts steps, bytes of a batch, cuts, and the thread that made them."""
    last = collectives[position - length + 1 : position + 1]
    before = collectives[position - 2 * length + 1 : position - length + 1]
    for boundary, column in ((Boundary.H2D_COPY, "h2d_copies"), (Boundary.WAIT, "waits")):
        places = np.flatnonzero(last[column] & before[column])
        if not len(places):
            continue
        best = None
        runs = [
            _both(collectives, marks, position - length + 1 + place, length, boundary)
            for place in places.tolist()
        ]
        largest = max((cut.size_bytes for each in runs for cuts in each for cut in cuts), default=0)
        least = max(-(-largest // _BATCH_PART), 1) if boundary is Boundary.H2D_COPY else 0
        for place, each in zip(places.tolist(), runs, strict=True):
            chosen = [[cut for cut in cuts if cut.size_bytes >= least] for cuts in each]
            if not all(chosen):
                continue
            at = position - length + 1 + place
            launched = sum(
                cuts[0].launched - int(collectives["launched"][at - shift - 1])
                for cuts, shift in zip(chosen, (0, length), strict=True)
            )
            if best is None or launched > best[0]:
                best = launched, (at, boundary, least, min(map(len, chosen)), chosen[0][0].tid)
        if best is not None:
            return best[1]
    return None


def _both(
    collectives: Notes, marks: Notes, at: int, length: int, boundary: Boundary
) -> tuple[list[Cut], list[Cut]]:
    """The cuts before a collective, and before that of one period earlier."""
    last, before = (int(collectives["ordinal"][position]) for position in (at, at - length))
    return cuts_between(marks, last, last, boundary), cuts_between(marks, before, before, boundary)


def cuts_between(marks: Notes, first: int, last: int, boundary: Boundary, least: int = 0) -> list[Cut]:
    """Where steps may be parted in the stretches before collectives ``first`` to ``last``, in order of time.

    Of host-to-device copies, one for each run of at least ``least`` bytes: where the call before its first one
    returned. Of waits, one for each, where it returned.
    """
    begin, end = np.searchsorted(marks["stretch"], [first, last + 1])
    mine = marks[begin:end]
    mine = mine.compress(mine["h2d_copy"] == (boundary is Boundary.H2D_COPY))
    found: list[Cut] = []
    run = None
    for mark in mine.tolist():
        start, ended, before, size, stretch, launched, tid, _ = mark
        if boundary is Boundary.WAIT:
            found.append(Cut(ended, launched, tid, size))
        elif run == (stretch, launched):
            found[-1] = found[-1]._replace(size_bytes=found[-1].size_bytes + size)
        else:
            run = stretch, launched
            found.append(Cut(min(before, start), launched, tid, size))
    return [cut for cut in found if cut.size_bytes >= least]


def training_evidence(collectives: Notes, tid: int) -> int:
    """Whether the collectives of a period are those of training: 0 no sign of it, 1 signs, 2 no doubt.

    An engine that splits a model among GPUs has periods too. It sums one size of activations at each layer, from
    the thread that copies its input and on the stream of its kernels, and passes activations on in one direction.
    Training sums gradients: all at once, in buckets of several sizes, or on a stream beside the backward pass; keeps
    a part of the sum; does it on a thread of its own; or sends gradients back to whom it got activations from.
    ``tid``: the thread that made the boundary.
    """
    if calls_itself(collectives).all():
        return 1  # no engine splits a model so, and any loop among ranks has steps
    natures = collectives["nature"]
    reduces = collectives.compress(natures == Nature.REDUCE)
    summed = (natures == Nature.REDUCE) | (natures == Nature.REDUCE_PART)
    if (collectives["tid"][summed] != tid).any():
        return 2
    sent = set(collectives["peer"][natures == Nature.SEND].tolist())
    back = sent & set(collectives["peer"][natures == Nature.RECEIVE].tolist())
    beside = np.count_nonzero(reduces["beside"]) * 2 > len(reduces)
    several = beside or len(reduces) == 1 or len(np.unique(reduces["size_bytes"])) > 1
    return int(bool(back) or several or bool((natures == Nature.REDUCE_PART).any()))
