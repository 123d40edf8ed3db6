"""Queue pairs, events and work requests → spans. Pure.

The ids of a connection are made of its two ends alone, so that the agents at both put their spans into one trace, and
each links to the span of the other. Where an end is not known they are made of the session's seed, and marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.engine import names
from otelgpu.families.rdma import names as qp
from otelgpu.families.rdma.endpoints import End, text
from otelgpu.families.rdma.facts import FabricEvent, QueuePairState, TransferSeen
from otelgpu.families.rdma.metrics import FULL, Sums, communicator
from otelgpu.families.rdma.owners import Owner
from otelgpu.families.rdma.queue_pairs import QueuePair
from otelgpu.model.context import NO_SPAN, SAMPLED, Context
from otelgpu.model.ids import span_ids, trace_ids
from otelgpu.model.process_numbers import process_id
from otelgpu.model.resource import NAMESPACE, POD_NAME, Resource
from otelgpu.model.spans import Links, SpanColumns, SpanKind, StatusCode, Text, attributes_of_rows

CONNECTION_SEED: Final = 0x7264_6D61
"""In place of a session's seed, which the other end's agent does not have."""

_CONNECT_SALT: Final = 0x636F
_LIFE_SALT: Final = 0x6C66
_EVENT_SALT: Final = 0x6576
_TRANSFER_SALT: Final = 0x7478
_CONNECTION_WORDS: Final = 7
_LATEST_NS: Final = (1 << 63) - 1
_ACK_TIMEOUT_NS: Final = 4096  # of an acknowledgement: this * 2^timeout; InfiniBand Architecture, 9.7.6.1.3


class Span(Struct, frozen=True, kw_only=True):
    """One span before it is put into columns; ``error``: what failed, empty for nothing."""

    resource: Resource
    context: Context
    name: str
    start_ns: int
    end_ns: int
    parent: bytes = NO_SPAN
    error: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    links: tuple[Context, ...] = ()


def connection_contexts(ends: Sequence[tuple[End, End, int]]) -> list[tuple[Context, Context]]:
    """The connect spans of connections, own and peer: the same two, the other way round, as the peer has them.

    ``ends``: own, peer, and how often this queue pair connected to the same peer before.
    """
    words = np.array(
        [(*_words(min(own, other)), *_words(max(own, other)), generation) for own, other, generation in ends],
        dtype=np.uint64,
    ).reshape(len(ends), _CONNECTION_WORDS)
    by_word = list(words.T)
    traces = trace_ids(CONNECTION_SEED, *by_word)
    spans = [
        span_ids(CONNECTION_SEED ^ _CONNECT_SALT, *by_word, np.full(len(ends), which, dtype=np.uint64))
        for which in (0, 1)
    ]
    found = []
    for row, (own, other, _) in enumerate(ends):
        mine = 0 if own <= other else 1
        trace = traces[row].tobytes()
        first, second = (Context(trace, spans[which][row].tobytes(), SAMPLED) for which in (mine, 1 - mine))
        found.append((first, second))
    return found


def local_context(queue_pair: QueuePair, seed: int) -> Context:
    """The connect span of a queue pair of which an end is not known."""
    words = (
        queue_pair.tgid,
        queue_pair.address,
        queue_pair.number,
        queue_pair.seen_ns,
        queue_pair.generation,
    )
    return _context(seed ^ _CONNECT_SALT, *words)


def _words(end: End) -> tuple[int, int, int]:
    return int.from_bytes(end.address[:8]), int.from_bytes(end.address[8:]), end.number


def _context(seed: int, *words: int) -> Context:
    columns = [np.array([word], dtype=np.uint64) for word in words]
    return Context(
        trace_ids(seed, *columns).tobytes(),
        span_ids(seed, *columns, np.zeros(1, dtype=np.uint64)).tobytes(),
        SAMPLED,
    )


def _child(parent: Context, salt: int, *words: int) -> Context:
    """A span below ``parent``, whose ids both ends do not have to know."""
    columns = [np.array([word], dtype=np.uint64) for word in (int.from_bytes(parent.span_id), *words)]
    return Context(parent.trace_id, span_ids(CONNECTION_SEED ^ salt, *columns).tobytes(), parent.flags)


# -- One span each -----------------------------------------------------------------------------------


def identity_attributes(queue_pair: QueuePair, own: End | None, owner: Owner | None) -> dict[str, Any]:
    """What says which queue pair it is."""
    found: dict[str, Any] = {
        qp.DEVICE: queue_pair.device,
        qp.PORT: queue_pair.port,
        qp.NUMBER: queue_pair.number,
        qp.TYPE: queue_pair.type,
        qp.ROLE: queue_pair.role,
        qp.PEER_NUMBER: queue_pair.peer_number,
        qp.PEER_GID: text(queue_pair.peer_gid),
        qp.GID: text(own.address) if own is not None else "",
    }
    if owner is not None:
        found[qp.COMMUNICATOR] = communicator(owner)
        found[qp.COMMUNICATOR_SOURCE] = str(owner.source)
    return {key: value for key, value in found.items() if value}


def peer_attributes(tgid: int, resource: Resource) -> dict[str, Any]:
    """The process at the other end, where the same agent sees it."""
    found: dict[str, Any] = {qp.PEER_PID: process_id(tgid)}
    for key, name in (
        (qp.PEER_SERVICE, "service.name"),
        (qp.PEER_POD, POD_NAME),
        (qp.PEER_NAMESPACE, NAMESPACE),
    ):
        value = resource.get(name)
        if isinstance(value, str) and value:
            found[key] = value
    return found


def connect_span(
    queue_pair: QueuePair,
    resource: Resource,
    context: Context,
    attributes: dict[str, Any],
    links: tuple[Context, ...] = (),
) -> Span:
    """From INIT, or the first step that was seen, to ready to send.

    One that never was ends where it failed, or where it could receive: some need no more.
    """
    steps = (
        (queue_pair.init_ns, QueuePairState.INIT),
        (queue_pair.receive_ns, QueuePairState.READY_TO_RECEIVE),
        (queue_pair.ready_ns, QueuePairState.READY_TO_SEND),
    )
    start_ns, begin = next(
        (step for step in steps if step[0]), (queue_pair.made_ns or queue_pair.seen_ns, queue_pair.state)
    )
    end_ns, error = queue_pair.ready_ns, ""
    if not end_ns and queue_pair.failure:
        end_ns, error = queue_pair.error_ns or queue_pair.ended_ns, f"errno {queue_pair.failure}"
    elif not end_ns and queue_pair.error_ns:
        end_ns, error = queue_pair.error_ns, "never ready to send"
    found = attributes | {qp.BEGIN: str(begin)}
    for key, value in (
        (qp.MTU, queue_pair.path_mtu_bytes),
        (qp.RETRIES, queue_pair.retries),
        (qp.RNR_RETRIES, queue_pair.rnr_retries),
    ):
        if value:
            found[key] = value
    if queue_pair.timeout:
        found[qp.TIMEOUT] = (_ACK_TIMEOUT_NS << queue_pair.timeout) / 1e9
    return Span(
        resource=resource,
        context=context,
        name=qp.CONNECT,
        start_ns=start_ns,
        end_ns=max(end_ns or queue_pair.receive_ns, start_ns),
        error=error,
        attributes=found,
        links=links,
    )


def life_span(
    queue_pair: QueuePair,
    resource: Resource,
    connect: Context | None,
    attributes: dict[str, Any],
    sums: Sums | None,
    *,
    seed: int,
    end_ns: int,
) -> Span:
    """From ready to send, or from when it was first seen, until ``end_ns``, with what was counted of it."""
    start_ns = queue_pair.ready_ns or queue_pair.seen_ns
    found = dict(attributes)
    if queue_pair.late:
        found[qp.LATE] = True
    if not queue_pair.ended_ns:
        found[qp.OPEN] = True
    if queue_pair.state is not QueuePairState.UNKNOWN:
        found[qp.STATE] = str(queue_pair.state)
    error = ""
    if sums is not None:
        found |= _totals(sums)
        error = ", ".join(sums.broken)
    if connect is None:
        words = (queue_pair.tgid, queue_pair.address, queue_pair.number, queue_pair.seen_ns)
        context, parent = _context(seed ^ _LIFE_SALT, *words), NO_SPAN
    else:
        context, parent = _child(connect, _LIFE_SALT, queue_pair.generation), connect.span_id
    return Span(
        resource=resource,
        context=context,
        parent=parent,
        name=qp.QUEUE_PAIR,
        start_ns=start_ns,
        end_ns=max(end_ns, start_ns),
        error=error,
        attributes=found,
    )


def _totals(sums: Sums) -> dict[str, Any]:
    found: dict[str, Any] = {
        qp.WORK_REQUESTS: sums.total("work_requests") - sums.one("work_requests", "receive"),
        qp.BYTES_SENT: sums.total("bytes") - sums.one("bytes", "receive"),
        qp.BYTES_RECEIVED: sums.one("completed_bytes"),
        qp.COMPLETIONS: sums.total("statuses"),
        qp.FAILURES: sums.failures,
    }
    if sums.vendor_error:
        found[qp.VENDOR_ERROR] = sums.vendor_error
    for key, share in ((qp.POST_SHARE, sums.post_share), (qp.POLL_SHARE, sums.poll_share)):
        if share is not None and share < FULL:
            found[key] = share
    return found


def event_span(event: FabricEvent, resource: Resource, connect: Context, attributes: dict[str, Any]) -> Span:
    """The moment at which a process was notified of an event of a connection."""
    words = (event.time_ns, event.tgid, event.object)
    return Span(
        resource=resource,
        context=_child(connect, _EVENT_SALT, *words),
        parent=connect.span_id,
        name=f"{qp.EVENT} {event.event}",
        start_ns=event.time_ns,
        end_ns=event.time_ns,
        error=event.event if event.failed else "",
        attributes=attributes | {qp.EVENT_NAME: event.event, qp.EVENT_SOURCE: str(event.source)},
    )


def transfer_span(
    seen: TransferSeen, resource: Resource, connect: Context, attributes: dict[str, Any]
) -> Span:
    """One work request, from its post until its completion was seen."""
    words = (seen.time_ns, seen.tgid, seen.queue_pair, seen.id)
    failed = seen.status != "success"
    found = attributes | {
        names.THREAD_ID: seen.tid,
        qp.OPERATION: seen.operation,
        qp.SIZE: seen.bytes,
        qp.STATUS: seen.status,
        qp.WORK_REQUEST: f"0x{seen.id:x}",
    }
    if failed and seen.vendor_error:
        found[qp.VENDOR_ERROR] = seen.vendor_error
    return Span(
        resource=resource,
        context=_child(connect, _TRANSFER_SALT, *words),
        parent=connect.span_id,
        name=f"{qp.TRANSFER} {seen.operation}",
        start_ns=seen.time_ns,
        end_ns=seen.time_ns + seen.duration_ns,
        error=seen.status if failed else "",
        attributes=found,
    )


# -- Columns -----------------------------------------------------------------------------------------


def columns(spans: Sequence[Span], offset_ns: int) -> list[SpanColumns]:
    """A batch for each resource."""
    by_resource: dict[Resource, list[Span]] = {}
    for span in spans:
        by_resource.setdefault(span.resource, []).append(span)
    return [_batch(resource, some, offset_ns) for resource, some in by_resource.items()]


def _batch(resource: Resource, spans: Sequence[Span], offset_ns: int) -> SpanColumns:
    failed = np.array([bool(span.error) for span in spans])
    return SpanColumns(
        resource=resource,
        scope=qp.SCOPE,
        kind=SpanKind.INTERNAL,
        trace_id=_bytes([span.context.trace_id for span in spans], 16),
        span_id=_bytes([span.context.span_id for span in spans], 8),
        parent_span_id=_bytes([span.parent for span in spans], 8),
        trace_state=None,
        flags=np.array([span.context.flags for span in spans], dtype=np.uint32),
        start_unix_ns=_times([span.start_ns + offset_ns for span in spans]),
        end_unix_ns=_times([span.end_ns + offset_ns for span in spans]),
        name=Text.of([span.name for span in spans]),
        status=np.where(failed, StatusCode.ERROR, StatusCode.UNSET).astype(np.uint8),
        status_message=Text.of([span.error for span in spans]) if failed.any() else None,
        attributes=attributes_of_rows([span.attributes for span in spans]),
        links=_links(spans),
    )


def _links(spans: Sequence[Span]) -> Links | None:
    found = [(row, link) for row, span in enumerate(spans) for link in span.links]
    if not found:
        return None
    return Links(
        span=np.array([row for row, _ in found], dtype=np.intp),
        trace_id=_bytes([link.trace_id for _, link in found], 16),
        span_id=_bytes([link.span_id for _, link in found], 8),
        flags=np.array([link.flags for _, link in found], dtype=np.uint32),
    )


def _times(unix_ns: Sequence[int]) -> npt.NDArray[np.uint64]:
    """Within what an OTLP time can be, whatever a record said."""
    return np.array([min(max(each, 0), _LATEST_NS) for each in unix_ns], dtype=np.uint64)


def _bytes(ids: Sequence[bytes], width: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(-1, width)
