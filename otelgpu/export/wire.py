"""Columns of spans to OTLP protobuf bytes, with no Python statement per span. Pure.

In: :class:`~otelgpu.model.spans.SpanColumns`. Out: serialized ``ExportTraceServiceRequest`` messages
(opentelemetry/proto/collector/trace/v1/trace_service.proto). It must not look at what names mean.

How. Each batch is made ready as :class:`~otelgpu.export.span_rows.SpanRows`, which know the width of every
span. Payloads are planned from those widths alone; then each batch writes its part of a payload in place.

Example: two batches of one resource and scope, 3,000 and 4,000 spans of 400 bytes. At 2 MiB a payload, the
first is all of the one and 2,242 spans of the other, under one ResourceSpans and one ScopeSpans header.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
from msgspec import Struct, field

from otelgpu import __version__
from otelgpu.engine.names import SCHEMA_URL
from otelgpu.export.base import Payload, Signal
from otelgpu.export.protobuf import any_value, delimited, key_value, utf8, varint
from otelgpu.export.span_rows import SpanRows
from otelgpu.model.resource import Resource
from otelgpu.model.spans import Bytes, SpanColumns

DEFAULT_MAX_BYTES = 2 * 1024 * 1024
"""Half of the 4 MiB that OTLP servers take in one gRPC message by default."""

# Tag bytes: field number << 3 | wire type 2.
_RESOURCE_SPANS = _SCOPE = _RESOURCE = b"\x0a"
_SCOPE_SPANS = b"\x12"
_RESOURCE_ATTRIBUTE = b"\x0a"
# Field 3 of ResourceSpans and of ScopeSpans alike.
_SCHEMA_URL = delimited(b"\x1a", utf8(SCHEMA_URL))

_RESOURCES_KNOWN = 256

_HEADER_BYTES = 6
"""A tag and a length of at most five bytes."""


def resource_field(resource: Resource) -> bytes:
    """``ResourceSpans.resource`` and its schema; of ``ResourceProfiles`` alike."""
    attributes = (delimited(_RESOURCE_ATTRIBUTE, key_value(k, any_value(v))) for k, v in resource.attributes)
    return delimited(_RESOURCE, b"".join(attributes)) + _SCHEMA_URL


class _ResourceFields:
    """Encoded resources by identity, for those that Python calls equal (1, True) encode apart."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Resource, bytes]] = {}

    def __getitem__(self, resource: Resource) -> bytes:
        known = self._known.get(id(resource))
        if known is None:
            if len(self._known) >= _RESOURCES_KNOWN:
                self._known.clear()
            # What is kept with its resource is found by nobody else's id.
            known = self._known[id(resource)] = (resource, resource_field(resource))
        return known[1]


_resource_fields = _ResourceFields()


@lru_cache(maxsize=64)
def scope_field(name: str) -> bytes:
    """``ScopeSpans.scope`` and its schema; of ``ScopeProfiles`` alike."""
    return (
        delimited(_SCOPE, delimited(b"\x0a", utf8(name)) + delimited(b"\x12", utf8(__version__)))
        + _SCHEMA_URL
    )


class _Piece(Struct, frozen=True):
    """Spans first..last-1 of a batch."""

    rows: SpanRows
    first: int
    last: int
    bytes: int


class _Plan(Struct):
    """One payload: its pieces under their ScopeSpans under their ResourceSpans, by encoded fields."""

    max_bytes: int
    used: int = 0
    items: int = 0
    parts: dict[bytes, dict[bytes, list[_Piece]]] = field(default_factory=dict)

    def room(self, resource: bytes, scope: bytes) -> int:
        """How many bytes of spans still fit."""
        return self.max_bytes - self.used - self._opening_bytes(resource, scope)

    def _opening_bytes(self, resource: bytes, scope: bytes) -> int:
        if resource not in self.parts:
            return 2 * _HEADER_BYTES + len(resource) + len(scope)
        return 0 if scope in self.parts[resource] else _HEADER_BYTES + len(scope)

    def add(self, resource: bytes, scope: bytes, piece: _Piece) -> None:
        self.used += self._opening_bytes(resource, scope) + piece.bytes
        self.items += piece.last - piece.first
        self.parts.setdefault(resource, {}).setdefault(scope, []).append(piece)

    def payload(self, scratch: Scratch) -> Payload:
        """Write it, first to ``scratch``."""
        out = scratch.room(self.used)
        at = 0
        for resource, scopes in self.parts.items():
            sizes = {scope: sum(piece.bytes for piece in pieces) for scope, pieces in scopes.items()}
            headers = {
                scope: _SCOPE_SPANS + varint(len(scope) + size) + scope for scope, size in sizes.items()
            }
            inner = len(resource) + sum(len(headers[scope]) + size for scope, size in sizes.items())
            at = _put(out, at, _RESOURCE_SPANS + varint(inner) + resource)
            for scope, pieces in scopes.items():
                at = _put(out, at, headers[scope])
                for piece in pieces:
                    piece.rows.write(out, at, piece.first, piece.last)
                    at += piece.bytes
        return Payload(signal=Signal.TRACES, body=out[:at].tobytes(), items=self.items)


def _put(out: Bytes, at: int, data: bytes) -> int:
    """Write ``data``; where it ends."""
    out[at : at + len(data)] = np.frombuffer(data, dtype=np.uint8)
    return at + len(data)


class Scratch:
    """Where payloads are put together: memory that is used again is in the cache, and costs no page faults."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, dtype=np.uint8)

    def room(self, size: int) -> Bytes:
        """At least ``size`` bytes, whose content is what was left there."""
        if len(self._bytes) < size:
            self._bytes = np.empty(size, dtype=np.uint8)
        return self._bytes


def _planned(batches: Iterable[SpanColumns], max_bytes: int) -> Iterator[_Plan]:
    """Payloads that are full, and a last one; a batch is made ready when its turn comes."""
    plan = _Plan(max_bytes)
    for columns in batches:
        if not len(columns):
            continue
        resource, scope = _resource_fields[columns.resource], scope_field(columns.scope)
        try:
            rows = SpanRows(columns)
        except ValueError:
            if plan.items:
                yield plan  # what was well is not lost with what was not
            raise
        first, written = 0, 0
        while first < len(rows.ends):
            room = plan.room(resource, scope)
            last = int(np.searchsorted(rows.ends, written + room, side="right"))
            if last <= first:
                if plan.items:
                    yield plan
                    plan = _Plan(max_bytes)
                    continue
                last = first + 1  # a span that is larger than a payload goes alone
            end = int(rows.ends[last - 1])
            plan.add(resource, scope, _Piece(rows, first, last, end - written))
            first, written = last, end
    if plan.items:
        yield plan


def encode_spans(batches: Iterable[SpanColumns], *, max_bytes: int = DEFAULT_MAX_BYTES) -> Iterator[Payload]:
    """Serialize every span of ``batches``, in payloads of at most ``max_bytes``, one at a time.

    In a payload, spans are grouped by resource and scope, and within a batch by layout; rows of one layout keep
    their order. Only a single span that is larger than ``max_bytes`` by itself makes a larger payload, alone.

    Raises :class:`ValueError` when columns differ in length or a code is outside its table, after all spans of the
    batches before have been given out.
    """
    scratch = Scratch()
    for plan in _planned(batches, max_bytes):
        yield plan.payload(scratch)
