"""What is done with operations as they come: who looks at which, in what order, and whose each of them is. Pure.

In: batches of records of one family, decoded in pieces that stay in the processor's cache. Out: facts for those who
listen, parts for those who watch a kind, and every row with exactly one of: a handler that consumes its kind, its
request, its step, or the window of what is nobody's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from otelgpu.engine.attribution.owners import Attribution, only
from otelgpu.engine.contract import OperationDecoder
from otelgpu.engine.facts import CallsArrived, CallsNamed
from otelgpu.engine.function_names import FunctionNames
from otelgpu.engine.operation_metrics import OperationMeter, Part, SmallParts, parts_of
from otelgpu.engine.operation_spans import Vocabulary
from otelgpu.engine.services import Routes
from otelgpu.engine.summary import Summary
from otelgpu.model.context_sources import IS_PUBLISHED, PUBLISHED, ContextSource
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import OperationKind, Operations, joined
from otelgpu.spanwriter.ingest import Splitter
from otelgpu.spanwriter.library import library

ROWS_AT_A_TIME: Final = 8192
"""Operations that are joined and measured together: 1 MiB, so that they stay in the second-level cache."""


_SPLITTER: Final = Splitter(unowned=(ContextSource.TASK,), own=PUBLISHED)
"""A thread that runs tasks says nothing of whose its calls are."""


class OperationIntake:
    """One session's."""

    def __init__(
        self,
        routes: Routes,
        attribution: Attribution,
        functions: FunctionNames,
        vocabulary: Vocabulary,
        meter: OperationMeter,
        summary: Summary,
    ) -> None:
        self._routes, self._attribution, self._functions = routes, attribution, functions
        self._vocabulary, self._meter, self._summary = vocabulary, meter, summary
        self._small = SmallParts()

    def take(self, fed: Operations, family: int) -> None:
        """Give each its owner, count it, and put it where it waits."""
        # First, for as they came they are in the order of their times, or nearly.
        owners = self._attribution.owners(
            np.ascontiguousarray(fed["tid"]), np.ascontiguousarray(fed["start_ns"])
        )
        rows, owners, parts, plain = split(fed, owners, family)
        self._routes.emit(CallsArrived(rows))
        for part in parts:
            self._routes.show(part)
        self._set_names(parts)
        self._routes.emit(CallsNamed(rows))
        self._measure(self._small.pass_on(parts))
        for kinds, slot, consume in self._routes.consumers:
            wanted = kinds[rows["kind"]]
            if not wanted.any():
                continue
            slot.feed()
            taken = consume(*only(wanted, rows, owners))
            if taken is not None:
                wanted[wanted] = taken
            rows, owners = only(~wanted, rows, owners)
        self._attribution.give(rows, owners, plain=plain)

    def settle(self) -> None:
        """Measure what was too little to be measured by itself."""
        self._measure(self._small.release())

    def _set_names(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if part.kind is OperationKind.LAUNCH:
                addresses = np.ascontiguousarray(part.rows["function"])
                part.rows["name"] = self._functions.indices(part.tgid, addresses)

    def _measure(self, parts: Sequence[Part]) -> None:
        self._meter.measure(parts)
        self._summary.add_operations(parts, self._vocabulary)


def split(
    fed: Operations, owners: npt.NDArray[np.int64], family: int
) -> tuple[Operations, npt.NDArray[np.int64], list[Part], bool]:
    """The rows in a new array, what holds each, and its parts, which are views of it, by process, kind and outcome.

    And whether each row has a request that its thread held, and no context of its own.
    """
    if library() is None:
        return _split_by_numpy(fed, owners, family)
    found = _SPLITTER.split(fed, owners, family)
    parts, begin = [], 0
    for tgid, kind, failed, count in found.parts:
        parts.append(Part(tgid, family, OperationKind(kind), failed, found.rows[begin : begin + count]))
        begin += count
    return found.rows, found.owners, parts, found.plain


def _split_by_numpy(
    fed: Operations, owners: npt.NDArray[np.int64], family: int
) -> tuple[Operations, npt.NDArray[np.int64], list[Part], bool]:
    """The same without the library, and what it is compared with."""
    owners[fed["context_source"] == ContextSource.TASK] = 0  # a thread that runs tasks says nothing
    rows, parts, order = parts_of(fed, family)
    owners = owners[order]
    return rows, owners, parts, bool((owners > 0).all()) and not IS_PUBLISHED[rows["context_source"]].any()


def decoded(decoder: OperationDecoder, batches: Sequence[Batch]) -> Iterator[Operations]:
    """New operations of a family, not many more than :data:`ROWS_AT_A_TIME` together, as they came."""
    parts: list[Operations] = []
    rows = 0
    for batch in batches:
        for begin in range(0, len(batch.records), ROWS_AT_A_TIME):
            some = replace(batch, records=batch.records[begin : begin + ROWS_AT_A_TIME])
            parts.append(decoder.decode(some))
            rows += len(parts[-1])
            if rows >= ROWS_AT_A_TIME:
                yield joined(parts)
                parts, rows = [], 0
    if rows:
        yield joined(parts)
