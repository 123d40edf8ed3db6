"""Operations wait here until the request they served has been answered.

In: operations with the exchange each belongs to; finished exchanges. Out: for a set of exchanges, all
their operations at once. Memory is bounded per request and in all, and of that a process has at most as much as
is free: beyond the bounds an operation adds to its request's totals and is counted as dropped, so that no sum
is ever wrong.

How. Operations stay in the chunks they arrived in, with a code for the owner of each row, and are gathered
once: when requests are answered, each chunk gives up the rows of those. A chunk that is mostly given up is
copied together, so that memory follows what is held.

Example: a chunk of 8,192 rows of requests 4, 5 and 6. Taking 5 compresses its rows out and strikes its key;
taking 4 leaves less than half, which moves to a smaller chunk; taking 6 ends the chunk.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Final, Generic, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.model.codes import Codes, distinct, order_of
from otelgpu.model.operations import OPERATION, Operations, concatenate, take_into
from otelgpu.model.shares import Headroom
from otelgpu.spanwriter.ingest import Owners, owners_of
from otelgpu.spanwriter.library import library

OPERATIONS_PER_REQUEST: Final = 16_384
OPERATIONS_HELD: Final = (
    262_144  # 32 MiB, half for one process; twice that where half of each chunk was given up
)
_CHUNKS: Final = 256
"""Chunks are joined when there are more."""

_GIVEN_UP: Final = 0  # in place of a key

REQUEST, PREFILL, DECODE = 0, 1, 2
"""Slots of a request among parents: itself, and its phases."""
SLOTS: Final = 3

_Context = TypeVar("_Context")

Sums = Callable[[Operations, npt.NDArray[np.int64], int], npt.NDArray[np.int64]]
"""Of operations, their groups and the number of groups: a row of totals per group."""


class _Held(Struct):
    process: int
    rows: int = 0
    dropped: int = 0
    last_ns: int = 0  # start of the newest operation
    beyond: npt.NDArray[np.int64] | None = None  # totals of what was dropped


class _Chunk(Struct):
    operations: Operations
    owners: Codes  # (n,) positions in keys
    keys: list[int]
    live: int  # rows whose key is not given up

    def compacted(self) -> _Chunk:
        """The live rows only."""
        live = np.array([key != _GIVEN_UP for key in self.keys])[self.owners]
        return _Chunk(self.operations.compress(live), self.owners[live], self.keys, self.live)


class Served(Struct, frozen=True, kw_only=True):
    """The operations of m requests. ``request`` indexes them; ``dropped`` and ``beyond`` are per request."""

    operations: Operations  # (n,)
    request: npt.NDArray[np.int64]  # (n,) in range(m)
    dropped: npt.NDArray[np.int64]  # (m,) operations that were not kept
    beyond: npt.NDArray[np.int64]  # (m, columns): totals of those


class _Rows(TypedDict):
    """The part of :class:`Served` that is per operation."""

    operations: Operations
    request: npt.NDArray[np.int64]


class PendingOperations(Generic[_Context]):
    """What open requests have caused so far, and where late operations of answered ones belong.

    ``sums`` makes totals of ``columns`` columns; ``_Context`` is what a finished request leaves behind for
    operations that come after it.
    """

    def __init__(
        self, sums: Sums, columns: int, remembered: int = 4096, headroom: Headroom | None = None
    ) -> None:
        self._sums = sums
        self._columns = columns
        self._held: dict[int, _Held] = {}
        self._chunks: list[_Chunk] = []
        self._rows = 0
        self._of_process: Counter[int] = Counter()
        self._finished: OrderedDict[int, _Context | None] = OrderedDict()
        self._remembered, self._headroom = remembered, headroom or Headroom()

    @property
    def is_holding(self) -> bool:
        """Whether any request has operations here."""
        return bool(self._held)

    def add(self, rows: Operations, owners: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
        """Hold operations of open requests: ``owners`` > 0. The array is kept, not copied.

        Which of them are of requests that were answered and reported, shape (n,): they are not held. None: none is.
        """
        if not len(rows):
            return None
        found = _owners_of(rows, owners)
        finished = [key in self._finished for key in found.keys.tolist()]
        if any(finished):
            answered: npt.NDArray[np.bool_] = np.array(finished, dtype=np.bool_)[found.codes]
            self.add(rows.compress(~answered), owners[~answered])
            return answered
        self._hold(rows, found)
        return None

    def _hold(self, rows: Operations, found: Owners) -> None:
        columns = (found.keys, rows["tgid"][found.first], found.count, found.last_ns)
        kept = np.array([self._admit(*each) for each in zip(*(c.tolist() for c in columns), strict=True)])
        codes = found.codes
        if (kept < found.count).any():
            within = _ranks(codes, found.count) < kept[codes]
            self._drop(rows.compress(~within), found.keys, codes[~within])
            rows, codes = rows.compress(within), codes[within]
        if len(rows):
            self._chunks.append(_Chunk(rows, codes, found.keys.tolist(), len(rows)))
        if len(self._chunks) > _CHUNKS:
            self._join_chunks()

    def _admit(self, key: int, process: int, count: int, newest_ns: int) -> int:
        """How many of ``count`` more operations of a request are kept; ``process``: of its first one, which pays."""
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _Held(process)
        free = (OPERATIONS_HELD >> self._headroom.steps) - self._rows
        room = min(OPERATIONS_PER_REQUEST - held.rows, (free - self._of_process[held.process] + 1) // 2)
        kept = min(count, max(room, 0))
        held.last_ns = max(held.last_ns, newest_ns)
        held.rows += kept
        held.dropped += count - kept
        self._rows += kept
        self._of_process[held.process] += kept
        return kept

    def _drop(self, rows: Operations, keys: npt.NDArray[np.int64], codes: Codes) -> None:
        sums = self._sums(rows, codes, len(keys))
        for position in np.unique(codes).tolist():
            held = self._held[int(keys[position])]
            held.beyond = sums[position] if held.beyond is None else held.beyond + sums[position]

    def _join_chunks(self) -> None:
        chunks = [chunk.compacted() for chunk in self._chunks]
        owners = np.concatenate([np.array(chunk.keys)[chunk.owners] for chunk in chunks])
        keys, codes = distinct(owners)
        rows = concatenate([chunk.operations for chunk in chunks])
        self._chunks = [_Chunk(rows, codes, keys.tolist(), len(rows))]

    def take(self, keys: Sequence[int]) -> Served:
        """Hand over what the requests ``keys`` caused, and forget it."""
        dropped = np.zeros(len(keys), dtype=np.int64)
        beyond = np.zeros((len(keys), self._columns), dtype=np.int64)
        positions: dict[int, int] = {}
        for position, key in enumerate(keys):
            held = self._held.pop(key, None)
            if held is None:
                continue
            self._rows -= held.rows
            self._of_process[held.process] -= held.rows
            if not self._of_process[held.process]:
                del self._of_process[held.process]
            if held.rows:
                positions[key] = position
            dropped[position] = held.dropped
            if held.beyond is not None:
                beyond[position] = held.beyond
        return Served(**self._gather(positions), dropped=dropped, beyond=beyond)

    def _gather(self, positions: dict[int, int]) -> _Rows:
        """The operations of requests by key, which are struck, and the position of the request of each."""
        found: list[tuple[_Chunk, npt.NDArray[np.int64], npt.NDArray[np.bool_], int]] = []
        for chunk in self._chunks if positions else ():
            wanted = np.array([positions.get(key, -1) for key in chunk.keys], dtype=np.int64)
            if wanted.max() >= 0:
                request = wanted[chunk.owners]
                mine = request >= 0
                found.append((chunk, request, mine, int(np.count_nonzero(mine))))
        rows = sum(given for *_, given in found)
        served = _Rows(operations=np.empty(rows, dtype=OPERATION), request=np.empty(rows, dtype=np.int64))
        at = 0
        for chunk, request, mine, given in found:
            chosen = np.flatnonzero(mine)
            take_into(served["operations"][at : at + given], chunk.operations, chosen)
            served["request"][at : at + given] = request[chosen]
            at += given
            chunk.live -= given
            chunk.keys = [_GIVEN_UP if key in positions else key for key in chunk.keys]
        if found:
            self._chunks = [
                chunk if 2 * chunk.live >= len(chunk.owners) else chunk.compacted()
                for chunk in self._chunks
                if chunk.live
            ]
        return served

    def stale(self, before_ns: int, held: Collection[int]) -> list[int]:
        """Requests with operations, none since ``before_ns``, that are not among the ``held``."""
        return [key for key, work in self._held.items() if work.last_ns < before_ns and key not in held]

    def remember(self, key: int, context: _Context | None) -> None:
        """An answered request: its late operations still find their parent (None: they are not reported)."""
        self._finished[key] = context
        while len(self._finished) > self._remembered:
            self._finished.popitem(last=False)

    def is_finished(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which keys are of requests that were answered and reported: shape (n,)."""
        values, codes = distinct(keys)
        return np.array([key in self._finished for key in values.tolist()], dtype=np.bool_)[codes]

    def finished(self, key: int) -> _Context | None:
        """What :meth:`remember` was given, if it is still remembered."""
        return self._finished.get(key)

    @property
    def held_rows(self) -> int:
        """Operations that wait for their request to be answered."""
        return self._rows


def _owners_of(rows: Operations, owners: npt.NDArray[np.int64]) -> Owners:
    return owners_of(rows, owners) if library() is not None else _owners_by_numpy(rows, owners)


def _owners_by_numpy(rows: Operations, owners: npt.NDArray[np.int64]) -> Owners:
    """The same without the library, and what it is compared with."""
    keys, codes = distinct(owners)
    first = np.empty(len(keys), dtype=np.int64)
    first[codes[::-1]] = np.arange(len(rows))[::-1]
    last_ns = np.zeros(len(keys), dtype=np.uint64)
    np.maximum.at(last_ns, codes, np.ascontiguousarray(rows["start_ns"]))
    count = np.bincount(codes, minlength=len(keys))
    return Owners(keys=keys, first=first, count=count, last_ns=last_ns, codes=codes)


def _ranks(codes: Codes, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The position of each row among those of its code."""
    ranks = np.empty(len(codes), dtype=np.int64)
    first = np.cumsum(counts) - counts
    ranks[order_of(codes, len(counts))] = np.arange(len(codes)) - np.repeat(first, counts)
    return ranks


def phase_of(boundary: npt.NDArray[np.uint64], served: Served) -> npt.NDArray[np.int64]:
    """The parent slot, ``request * SLOTS + phase``, of each operation: shape (n,).

    ``boundary``: where phases part, 0: nowhere.
    """
    if not len(boundary):
        return served.request
    first = boundary[served.request]
    start = served.operations["start_ns"]
    phase = np.where(first == 0, REQUEST, np.where(start < first, PREFILL, DECODE))
    return served.request * SLOTS + phase
