"""Finished exchanges → spans with their prefill and decode phases, and the parents of their operations.

A streamed generation has two phases: ``prefill`` from the request's arrival to its first content,
``decode`` from there to the end of the response. An operation belongs to the phase it started in. Without
a stream the boundary cannot be seen, so there are no phases and operations go under the request itself.

Where the process reports its own span of a request (:class:`~otelgpu.families.requests.identities.Identity`), ours is
not made: the phases and the operations go under the process's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.engine import names
from otelgpu.engine.attribution.pending import DECODE, PREFILL, SLOTS
from otelgpu.engine.exchange_signals import ExchangeSignals
from otelgpu.engine.folding import Parents
from otelgpu.engine.services import Extras
from otelgpu.engine.totals import Totals
from otelgpu.families.requests.identities import Identity
from otelgpu.model.context import Context
from otelgpu.model.exchange import CLIENT, Exchange, Role
from otelgpu.model.ids import span_ids
from otelgpu.model.resource import Resource
from otelgpu.model.spans import Attribute, Links, SpanColumns, SpanKind, StatusCode, Text, merged

_PHASES: Final = {PREFILL: "prefill", DECODE: "decode"}
_KINDS: Final = {CLIENT: SpanKind.CLIENT}
# As numpy has them, which asks a member of an enumeration what it is at each call.
_UNSET, _ERROR = np.uint8(StatusCode.UNSET), np.uint8(StatusCode.ERROR)


ExtrasOf = Callable[[Sequence[int]], Extras]
"""Positions among the exchanges → what is added to their spans."""


def no_extras(_: Sequence[int]) -> Extras:
    """No family adds anything."""
    return Extras()


class ExchangeContexts(Struct, frozen=True, kw_only=True):
    """m requests and their phases among the spans: ``SLOTS`` parents for each, in the order of its slots."""

    identities: Sequence[Identity]
    parents: Parents  # of length m * SLOTS
    sampled: npt.NDArray[np.bool_]  # (m,): whether they and their operations are reported

    def of_exchanges(self) -> Parents:
        """The exchanges' own spans: m of them."""
        parents = self.parents
        return Parents(
            trace_id=parents.trace_id[::SLOTS], span_id=parents.span_id[::SLOTS], flags=parents.flags[::SLOTS]
        )

    def of_requests(self) -> list[Context | None]:
        """The context of each request for operations that arrive late; None where it is not reported."""
        return [
            identity.context if reported else None
            for identity, reported in zip(self.identities, self.sampled.tolist(), strict=True)
        ]


def parents_of(found: Sequence[Context]) -> Parents:
    """The spans of the contexts, as parents."""
    return Parents(
        trace_id=_bytes((context.trace_id for context in found), 16),
        span_id=_bytes((context.span_id for context in found), 8),
        flags=np.array([context.flags for context in found], dtype=np.uint32),
    )


def _bytes(ids: Iterable[bytes], width: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(ids), np.uint8).reshape(-1, width)


def contexts(exchanges: Sequence[Exchange], identities: Sequence[Identity], seed: int) -> ExchangeContexts:
    """The spans of the exchanges, and ids for their phases."""
    m = len(exchanges)
    own = parents_of([identity.context for identity in identities])
    keys = np.array([e.key for e in exchanges], dtype=np.uint64)
    starts = np.array([e.start_ns for e in exchanges], dtype=np.uint64)
    slots = np.arange(SLOTS, dtype=np.uint64)
    spans = span_ids(seed, np.repeat(keys, SLOTS), np.repeat(starts, SLOTS), np.tile(slots, m))
    spans[::SLOTS] = own.span_id
    return ExchangeContexts(
        identities=identities,
        parents=Parents(
            trace_id=np.repeat(own.trace_id, SLOTS, axis=0),
            span_id=spans,
            flags=np.repeat(own.flags, SLOTS),
        ),
        sampled=(own.flags & 1).astype(np.bool_),
    )


def boundaries(
    exchanges: Sequence[Exchange], has_phases: Callable[[int], bool] = lambda _: False
) -> npt.NDArray[np.uint64]:
    """The boundary of the phases of m exchanges: the first content, 0 where there are no phases of ours.

    ``has_phases`` returns for a position whether the exchange has phases of an engine.
    """
    return np.array(
        [0 if e.role is CLIENT or has_phases(row) else _first_content(e) for row, e in enumerate(exchanges)],
        dtype=np.uint64,
    )


def exchange_spans(
    exchanges: Sequence[Exchange],
    routes: Sequence[str],
    reported: ExchangeContexts,
    sums: npt.NDArray[np.int64],
    totals: Totals,
    dropped: npt.NDArray[np.int64],
    resource_of: Callable[[int], Resource],
    signals: ExchangeSignals,
    *,
    boundary: npt.NDArray[np.uint64],
    unix_offset_ns: int,
    extras_of: ExtrasOf = no_extras,
) -> list[SpanColumns]:
    """SERVER, CLIENT and phase spans of the sampled exchanges, one batch of each per process.

    ``boundary``: what :func:`boundaries` gives. ``sums``: shape (m * SLOTS, len(totals)), those of each parent slot,
    the request's own slot holding the sums over the whole request. ``extras_of`` adds to the exchanges' spans.
    """
    batches = []
    by_process: dict[tuple[int, Role], list[int]] = {}
    streams: dict[int, list[int]] = {}
    for row in np.flatnonzero(reported.sampled).tolist():
        exchange = exchanges[row]
        if reported.identities[row].own:
            by_process.setdefault((exchange.tgid, exchange.role), []).append(row)
        if boundary[row]:
            streams.setdefault(exchange.tgid, []).append(row)
    made = _Reported(reported, sums, totals, signals, unix_offset_ns, extras_of)
    for (tgid, role), rows in by_process.items():
        chosen, names_of = [exchanges[i] for i in rows], [routes[i] for i in rows]
        batches.append(made.requests(chosen, names_of, np.array(rows), dropped, resource_of(tgid), role))
    for tgid, rows in streams.items():
        batches.append(made.phases([exchanges[i] for i in rows], np.array(rows), resource_of(tgid)))
    return batches


def _first_content(exchange: Exchange) -> int:
    return exchange.generation.first_content_ns if exchange.generation is not None else 0


class _Reported(Struct, frozen=True):
    """What all batches of one call have in common."""

    reported: ExchangeContexts
    sums: npt.NDArray[np.int64]
    totals: Totals
    signals: ExchangeSignals
    offset: int
    extras_of: ExtrasOf

    def requests(
        self,
        chosen: Sequence[Exchange],
        routes: Sequence[str],
        rows: npt.NDArray[np.intp],
        dropped: npt.NDArray[np.int64],
        resource: Resource,
        role: Role,
    ) -> SpanColumns:
        """A span for each exchange; ``rows`` are their positions among all."""
        slots = rows * SLOTS
        parents = self.reported.parents
        identities = [self.reported.identities[row] for row in rows.tolist()]
        extras = self.extras_of(rows.tolist())
        attributes = [
            *merged(self.signals.attributes(chosen, routes), extras.attributes),
            *self.totals.attributes(self.sums[slots]),
        ]
        lost = dropped[rows]
        if lost.any():
            attributes.append(Attribute(key=names.DROPPED, values=lost, present=lost != 0))
        failed = np.array([bool(exchange.error_type) for exchange in chosen])
        states = [identity.state for identity in identities]
        errors = ["" if e.incomplete else e.error for e in chosen]
        return SpanColumns(
            resource=resource,
            scope=self.signals.scope,
            kind=_KINDS.get(role, SpanKind.SERVER),
            trace_id=parents.trace_id[slots],
            span_id=parents.span_id[slots],
            parent_span_id=_bytes((identity.parent_span_id for identity in identities), 8),
            trace_state=Text.of(states) if any(states) else None,
            flags=parents.flags[slots],
            start_unix_ns=np.array([e.start_ns + self.offset for e in chosen], dtype=np.uint64),
            end_unix_ns=np.array([e.end_ns + self.offset for e in chosen], dtype=np.uint64),
            name=Text.of([self.signals.span_name(e, route) for e, route in zip(chosen, routes, strict=True)]),
            status=np.where(failed, _ERROR, _UNSET),
            status_message=Text.of(errors) if any(errors) else None,
            attributes=tuple(attributes),
            links=_with_peers(extras.links, identities),
        )

    def phases(
        self, chosen: Sequence[Exchange], rows: npt.NDArray[np.intp], resource: Resource
    ) -> SpanColumns:
        """A prefill and a decode span for each exchange."""
        phase = np.tile(np.array(list(_PHASES)), len(rows))
        request_slots = np.repeat(rows * SLOTS, len(_PHASES))
        slots = request_slots + phase
        parents = self.reported.parents
        first = np.array([_first_content(e) for e in chosen], dtype=np.uint64)
        start = np.array([e.start_ns for e in chosen], dtype=np.uint64)
        end = np.array([e.end_ns for e in chosen], dtype=np.uint64)
        offset = np.int64(self.offset).astype(np.uint64)
        name = Text(codes=phase - PREFILL, table=tuple(_PHASES.values()))
        return SpanColumns(
            resource=resource,
            scope=self.signals.scope,
            kind=SpanKind.INTERNAL,
            trace_id=parents.trace_id[slots],
            span_id=parents.span_id[slots],
            parent_span_id=parents.span_id[request_slots],
            trace_state=None,
            flags=parents.flags[slots],
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


def _with_peers(links: Links | None, identities: Sequence[Identity]) -> Links | None:
    """The links of a batch, and those to peers' spans in other traces. They have no attributes."""
    peers = [(row, each.peer) for row, each in enumerate(identities) if each.peer is not None]
    if not peers:
        return links
    found = parents_of([peer for _, peer in peers])
    span = np.array([row for row, _ in peers], dtype=np.intp)
    if links is None:
        return Links(span=span, trace_id=found.trace_id, span_id=found.span_id, flags=found.flags)
    assert not links.attributes
    span = np.concatenate([links.span, span])
    order = np.argsort(span, kind="stable")
    return Links(
        span=span[order],
        trace_id=np.concatenate([links.trace_id, found.trace_id])[order],
        span_id=np.concatenate([links.span_id, found.span_id])[order],
        flags=np.concatenate([links.flags, found.flags])[order],
        dropped=links.dropped,
    )
