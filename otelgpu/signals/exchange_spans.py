"""Finished exchanges → SERVER spans with their prefill and decode phases, and the parents of their operations.

A streamed generation has two phases: ``prefill`` from the request's arrival to its first content,
``decode`` from there to the end of the response. An operation belongs to the phase it started in. Without
a stream the boundary cannot be seen, so there are no phases and operations go under the request itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.correlate.requests import Served
from otelgpu.families.base import ExchangeSignals
from otelgpu.model.exchange import Exchange
from otelgpu.model.ids import span_ids, trace_ids
from otelgpu.model.resource import Resource
from otelgpu.model.spans import SpanColumns, SpanKind, StatusCode
from otelgpu.signals import names
from otelgpu.signals.columns import attributes_of_rows, text
from otelgpu.signals.operation_spans import Parents

REQUEST, PREFILL, DECODE = 0, 1, 2
SLOTS: Final = 3
_PHASES: Final = {PREFILL: "prefill", DECODE: "decode"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeContexts:
    """Identity of m requests and their phases: ``SLOTS`` parents for each, in the order of its slots."""

    parents: Parents  # of length m * SLOTS
    sampled: npt.NDArray[np.bool_]  # (m,)


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
    totals: Sequence[dict[str, int]],
    dropped: npt.NDArray[np.int64],
    resources: dict[int, Resource],
    signals: ExchangeSignals,
    *,
    unix_offset_ns: int,
) -> list[SpanColumns]:
    """SERVER and phase spans of the ``chosen`` exchanges, one batch of each per process.

    ``totals``: summary attributes of each parent slot (m * SLOTS of them), the request's own slot holding
    the sums over the whole request.
    """
    batches = []
    for tgid in dict.fromkeys(e.tgid for e, wanted in zip(exchanges, chosen, strict=True) if wanted):
        rows = [i for i, e in enumerate(exchanges) if chosen[i] and e.tgid == tgid]
        batches.append(
            _servers(exchanges, rows, identities, totals, dropped, resources[tgid], signals, unix_offset_ns)
        )
        streamed = [i for i in rows if _first_content(exchanges[i])]
        if streamed:
            batches.append(
                _phases(exchanges, streamed, identities, totals, resources[tgid], signals, unix_offset_ns)
            )
    return batches


def _first_content(exchange: Exchange) -> int:
    return exchange.generation.first_content_ns if exchange.generation is not None else 0


def _servers(
    exchanges: Sequence[Exchange],
    rows: list[int],
    identities: ExchangeContexts,
    totals: Sequence[dict[str, int]],
    dropped: npt.NDArray[np.int64],
    resource: Resource,
    signals: ExchangeSignals,
    offset: int,
) -> SpanColumns:
    chosen = [exchanges[i] for i in rows]
    slots = np.array(rows) * SLOTS
    parent = np.zeros((len(rows), 8), dtype=np.uint8)
    attributes = []
    for position, exchange in enumerate(chosen):
        if exchange.parent is not None:
            parent[position] = np.frombuffer(exchange.parent.span_id, dtype=np.uint8)
        own = signals.attributes(exchange) | totals[int(slots[position])]
        if dropped[rows[position]]:
            own[names.DROPPED] = int(dropped[rows[position]])
        attributes.append(own)
    failed = [names.ERROR_TYPE in own for own in attributes]
    return SpanColumns(
        resource=resource,
        scope=signals.scope,
        kind=SpanKind.SERVER,
        trace_id=identities.parents.trace_id[slots],
        span_id=identities.parents.span_id[slots],
        parent_span_id=parent,
        trace_state=text([e.parent.state if e.parent else "" for e in chosen]),
        flags=identities.parents.flags[slots],
        start_unix_ns=np.array([e.start_ns + offset for e in chosen], dtype=np.uint64),
        end_unix_ns=np.array([e.end_ns + offset for e in chosen], dtype=np.uint64),
        name=text([signals.span_name(e) for e in chosen]),
        status=np.where(failed, StatusCode.ERROR, StatusCode.UNSET).astype(np.uint8),
        status_message=text([e.error for e in chosen]),
        attributes=attributes_of_rows(attributes),
    )


def _phases(
    exchanges: Sequence[Exchange],
    rows: list[int],
    identities: ExchangeContexts,
    totals: Sequence[dict[str, int]],
    resource: Resource,
    signals: ExchangeSignals,
    offset: int,
) -> SpanColumns:
    slots = np.array([i * SLOTS + phase for i in rows for phase in _PHASES])
    request_slots = slots // SLOTS * SLOTS
    bounds = [
        bound
        for e in (exchanges[i] for i in rows)
        for bound in ((e.start_ns, _first_content(e)), (_first_content(e), e.end_ns))
    ]
    phases = [_PHASES[slot % SLOTS] for slot in slots.tolist()]
    return SpanColumns(
        resource=resource,
        scope=signals.scope,
        kind=SpanKind.INTERNAL,
        trace_id=identities.parents.trace_id[slots],
        span_id=identities.parents.span_id[slots],
        parent_span_id=identities.parents.span_id[request_slots],
        trace_state=None,
        flags=identities.parents.flags[slots],
        start_unix_ns=np.array([start + offset for start, _ in bounds], dtype=np.uint64),
        end_unix_ns=np.array([end + offset for _, end in bounds], dtype=np.uint64),
        name=text(phases),
        status=np.zeros(len(slots), dtype=np.uint8),
        status_message=None,
        attributes=attributes_of_rows(
            [{names.PHASE: phase} | totals[slot] for phase, slot in zip(phases, slots.tolist(), strict=True)]
        ),
    )
