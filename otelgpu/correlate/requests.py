"""Operations wait here until the request they served has been answered.

In: operations with the exchange each belongs to; finished exchanges. Out: for a set of exchanges, all
their operations at once. Memory is bounded per request and in all: beyond the bounds an operation adds to
its request's totals and is counted as dropped, so that no sum is ever wrong.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from otelgpu.correlate.runs import runs
from otelgpu.model.operations import Operations, concatenate

OPERATIONS_PER_REQUEST = 16_384
OPERATIONS_HELD = 131_072  # about 20 MiB

_Context = TypeVar("_Context")


@dataclass(slots=True)
class _Held:
    parts: list[Operations] = field(default_factory=list)
    rows: int = 0
    dropped: int = 0
    last_ns: int = 0  # start of the newest operation
    totals: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The operations of m requests. ``request`` indexes them; ``totals`` and ``dropped`` are per request."""

    operations: Operations  # (n,)
    request: npt.NDArray[np.int64]  # (n,) in range(m)
    totals: npt.NDArray[np.int64]  # (m, columns of the totals that were added)
    dropped: npt.NDArray[np.int64]  # (m,)


class RequestBook(Generic[_Context]):
    """What open requests have caused so far, and where late operations of answered ones belong.

    ``_Context`` is what a finished request leaves behind for operations that come after it.
    """

    def __init__(self, total_columns: int, remembered: int = 65_536) -> None:
        self._total_columns = total_columns
        self._held: dict[int, _Held] = {}
        self._rows = 0
        self._finished: OrderedDict[int, _Context | None] = OrderedDict()
        self._remembered = remembered

    def add(
        self, operations: Operations, owners: npt.NDArray[np.int64], totals: npt.NDArray[np.int64]
    ) -> None:
        """Hold operations of open requests. ``owners`` > 0; ``totals`` has a row per operation."""
        if not len(operations):
            return
        order = np.argsort(owners, kind="stable")
        keys, ordered = owners[order], operations.take(order)
        stretches = runs(keys)
        begins = np.array([begin for begin, _ in stretches])
        added = np.add.reduceat(totals[order], begins)
        last_ns = np.maximum.reduceat(ordered["start_ns"], begins).tolist()
        for position, (begin, end) in enumerate(stretches):
            held = self._held.setdefault(int(keys[begin]), _Held())
            held.totals = added[position] if held.totals is None else held.totals + added[position]
            held.last_ns = max(held.last_ns, last_ns[position])
            room = min(OPERATIONS_PER_REQUEST - held.rows, OPERATIONS_HELD - self._rows)
            kept = min(end - begin, max(room, 0))
            if kept:
                # A copy: a slice would keep the whole batch alive for as long as this request is open.
                held.parts.append(concatenate([ordered[begin : begin + kept]]))
                held.rows += kept
                self._rows += kept
            held.dropped += end - begin - kept

    def take(self, keys: Sequence[int]) -> Served:
        """Hand over what the requests ``keys`` caused, and forget it."""
        parts: list[Operations] = []
        request = [np.zeros(0, dtype=np.int64)]
        totals = np.zeros((len(keys), self._total_columns), dtype=np.int64)
        dropped = np.zeros(len(keys), dtype=np.int64)
        for position, key in enumerate(keys):
            held = self._held.pop(key, None)
            if held is None:
                continue
            self._rows -= held.rows
            parts += held.parts
            request.append(np.full(held.rows, position, dtype=np.int64))
            dropped[position] = held.dropped
            if held.totals is not None:
                totals[position] = held.totals
        return Served(
            operations=concatenate(parts),
            request=np.concatenate(request),
            totals=totals,
            dropped=dropped,
        )

    def stale(self, before_ns: int, held: Collection[int]) -> list[int]:
        """Requests with operations, none since ``before_ns``, that are not among the ``held``."""
        return [key for key, work in self._held.items() if work.last_ns < before_ns and key not in held]

    def remember(self, key: int, context: _Context | None) -> None:
        """An answered request: its late operations still find their parent (None: they are not told)."""
        self._finished[key] = context
        while len(self._finished) > self._remembered:
            self._finished.popitem(last=False)

    def is_finished(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which keys are of requests that were answered and told: shape (n,)."""
        distinct, inverse = np.unique(keys, return_inverse=True)
        return np.array([key in self._finished for key in distinct.tolist()], dtype=np.bool_)[inverse]

    def finished(self, key: int) -> _Context | None:
        """What :meth:`remember` was given, if it is still remembered."""
        return self._finished.get(key)

    @property
    def held_rows(self) -> int:
        """Operations that wait for their request to be answered."""
        return self._rows
