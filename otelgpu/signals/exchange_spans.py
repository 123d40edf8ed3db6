"""Finished exchanges → SERVER spans with their prefill and decode phases, and the parents of their operations.

A streamed generation has two phases: ``prefill`` from the request's arrival to its first content,
``decode`` from there to the end of the response. An operation belongs to the phase it started in. Without
a stream the boundary cannot be seen, so there are no phases and operations go under the request itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from otelgpu.correlate.requests import Served
from otelgpu.families.base import ExchangeSignals
from otelgpu.model.exchange import Exchange
from otelgpu.model.ids import span_ids, trace_ids
from otelgpu.model.resource import Resource
from otelgpu.model.spans import Attribute, SpanColumns, SpanKind, StatusCode, Text
from otelgpu.signals import names
from otelgpu.signals.operation_spans import Parents
from otelgpu.signals.totals import Totals

REQUEST, PREFILL, DECODE = 0, 1, 2
SLOTS: Final = 3
_PHASES: Final = {PREFILL: "prefill", DECODE: "decode"}


class Context(NamedTuple):
    """A request's own span."""

    trace_id: bytes  # 16
    span_id: bytes  # 8
    flags: int


NO_CONTEXT: Final = Context(bytes(16), bytes(8), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeContexts:
    """Identity of m requests and their phases: ``SLOTS`` parents for each, in the order of its slots."""

    parents: Parents  # of length m * SLOTS
    sampled: npt.NDArray[np.bool_]  # (m,)

    def of_requests(self) -> list[Context | None]:
        """What each request leaves behind for operations that come late; None where it is not told."""
        traces = self.parents.trace_id[::SLOTS].tobytes()
        spans = self.parents.span_id[::SLOTS].tobytes()
        flags = self.parents.flags[::SLOTS].tolist()
        return [
            Context(traces[16 * i : 16 * i + 16], spans[8 * i : 8 * i + 8], flags[i]) if told else None
            for i, told in enumerate(self.sampled.tolist())
        ]


def parents_of(found: Sequence[Context]) -> Parents:
    """The spans of the contexts, as parents of what comes late."""
    return Parents(
        trace_id=np.frombuffer(b"".join(context.trace_id for context in found), np.uint8).reshape(-1, 16),
        span_id=np.frombuffer(b"".join(context.span_id for context in found), np.uint8).reshape(-1, 8),
        flags=np.array([context.flags for context in found], dtype=np.uint32),
    )


def contexts(exchanges: Sequence[Exchange], seed: int) -> ExchangeContexts:
    """Trace and span ids of the exchanges: from the caller's traceparent where there is one."""
    m = len(exchanges)
    keys = np.array([e.key for e in exchanges], dtype=np.uint64)
    starts = np.array([e.start_ns for e in exchanges], dtype=np.uint64)
    traces = trace_ids(seed, keys, starts)
    flags = np.ones(m, dtype=np.uint32)
    for position, exchange in enumerate(exchanges):
        if exchange.parent is not None:
            traces[position] = np.frombuffer(exchange.parent.trace_id, dtype=np.uint8)
            flags[position] = exchange.parent.flags
    slots = np.arange(SLOTS, dtype=np.uint64)
    spans = span_ids(seed, np.repeat(keys, SLOTS), np.repeat(starts, SLOTS), np.tile(slots, m))
    return ExchangeContexts(
        parents=Parents(
            trace_id=np.repeat(traces, SLOTS, axis=0), span_id=spans, flags=np.repeat(flags, SLOTS)
        ),
        sampled=(flags & 1).astype(np.bool_),
    )


def phase_of(exchanges: Sequence[Exchange], served: Served) -> npt.NDArray[np.int64]:
    """The parent slot, ``request * SLOTS + phase``, of each operation: shape (n,)."""
    boundary = np.array([_first_content(e) for e in exchanges] or [0], dtype=np.uint64)
    first = boundary[served.request]
    start = served.operations["start_ns"]
    phase = np.where(first == 0, REQUEST, np.where(start < first, PREFILL, DECODE))
    return served.request * SLOTS + phase


def exchange_spans(
    exchanges: Sequence[Exchange],
    chosen: npt.NDArray[np.bool_],
    identities: ExchangeContexts,
    sums: npt.NDArray[np.int64],
    totals: Totals,
    dropped: npt.NDArray[np.int64],
    resource_of: Callable[[int], Resource],
    signals: ExchangeSignals,
    *,
    unix_offset_ns: int,
) -> list[SpanColumns]:
    """SERVER and phase spans of the ``chosen`` exchanges, one batch of each per process.

    ``sums``: shape (m * SLOTS, len(totals)), those of each parent slot, the request's own slot holding
    the sums over the whole request.
    """
    batches = []
    rows_of: dict[int, list[int]] = {}
    for row in np.flatnonzero(chosen).tolist():
        rows_of.setdefault(exchanges[row].tgid, []).append(row)
    told = _Told(identities.parents, sums, totals, signals, unix_offset_ns)
    for tgid, rows in rows_of.items():
        owner = resource_of(tgid)
        batches.append(told.servers([exchanges[i] for i in rows], np.array(rows), dropped, owner))
        streamed = [i for i in rows if _first_content(exchanges[i])]
        if streamed:
            batches.append(told.phases([exchanges[i] for i in streamed], np.array(streamed), owner))
    return batches


def _first_content(exchange: Exchange) -> int:
    return exchange.generation.first_content_ns if exchange.generation is not None else 0


@dataclass(frozen=True, slots=True)
class _Told:
    """What all batches of an answer have in common."""

    parents: Parents
    sums: npt.NDArray[np.int64]
    totals: Totals
    signals: ExchangeSignals
    offset: int

    def servers(
        self,
        chosen: Sequence[Exchange],
        rows: npt.NDArray[np.intp],
        dropped: npt.NDArray[np.int64],
        resource: Resource,
    ) -> SpanColumns:
        """A span for each exchange; ``rows`` are their positions among all."""
        slots = rows * SLOTS
        parent = np.zeros((len(rows), 8), dtype=np.uint8)
        for position, exchange in enumerate(chosen):
            if exchange.parent is not None:
                parent[position] = np.frombuffer(exchange.parent.span_id, dtype=np.uint8)
        attributes = [*self.signals.attributes(chosen), *self.totals.attributes(self.sums[slots])]
        lost = dropped[rows]
        if lost.any():
            attributes.append(Attribute(key=names.DROPPED, values=lost, present=lost != 0))
        failed = np.array([bool(exchange.error_type) for exchange in chosen])
        states = [e.parent.state if e.parent else "" for e in chosen]
        errors = [e.error for e in chosen]
        return SpanColumns(
            resource=resource,
            scope=self.signals.scope,
            kind=SpanKind.SERVER,
            trace_id=self.parents.trace_id[slots],
            span_id=self.parents.span_id[slots],
            parent_span_id=parent,
            trace_state=Text.of(states) if any(states) else None,
            flags=self.parents.flags[slots],
            start_unix_ns=np.array([e.start_ns + self.offset for e in chosen], dtype=np.uint64),
            end_unix_ns=np.array([e.end_ns + self.offset for e in chosen], dtype=np.uint64),
            name=Text.of([self.signals.span_name(e) for e in chosen]),
            status=np.where(failed, StatusCode.ERROR, StatusCode.UNSET).astype(np.uint8),
            status_message=Text.of(errors) if any(errors) else None,
            attributes=tuple(attributes),
        )

    def phases(
        self, chosen: Sequence[Exchange], rows: npt.NDArray[np.intp], resource: Resource
    ) -> SpanColumns:
        """A prefill and a decode span for each exchange."""
        phase = np.tile(np.array(list(_PHASES)), len(rows))
        request_slots = np.repeat(rows * SLOTS, len(_PHASES))
        slots = request_slots + phase
        first = np.array([_first_content(e) for e in chosen], dtype=np.uint64)
        start = np.array([e.start_ns for e in chosen], dtype=np.uint64)
        end = np.array([e.end_ns for e in chosen], dtype=np.uint64)
        offset = np.int64(self.offset).astype(np.uint64)
        name = Text(codes=phase - PREFILL, table=tuple(_PHASES.values()))
        return SpanColumns(
            resource=resource,
            scope=self.signals.scope,
            kind=SpanKind.INTERNAL,
            trace_id=self.parents.trace_id[slots],
            span_id=self.parents.span_id[slots],
            parent_span_id=self.parents.span_id[request_slots],
            trace_state=None,
            flags=self.parents.flags[slots],
            start_unix_ns=np.stack([start, first], axis=1).reshape(-1) + offset,
            end_unix_ns=np.stack([first, end], axis=1).reshape(-1) + offset,
            name=name,
            status=np.zeros(len(slots), dtype=np.uint8),
            status_message=None,
            attributes=(
                Attribute(key=names.PHASE, values=name),
                *self.totals.attributes(self.sums[slots]),
            ),
        )
