"""Columns of spans to OTLP protobuf bytes, with no Python statement per span. Pure.

In: :class:`~otelgpu.model.spans.SpanColumns`, and rows of operations. Out: serialized ``ExportTraceServiceRequest``
messages (opentelemetry/proto/collector/trace/v1/trace_service.proto). It must not look at what names mean.

How. Each batch is made ready as :class:`~otelgpu.export.span_rows.SpanRows`, one of few spans as
:class:`~otelgpu.export.single_spans.SingleSpans`, or as the writer of its rows. They write as many spans as fit in what
is left of a payload; at its end those that share a resource and a scope are put under one header.

Example: two batches of one resource and scope, 3,000 and 4,000 spans of 400 bytes. At 2 MiB a payload, the
first is all of the one and 2,242 spans of the other, under one ResourceSpans and one ScopeSpans header.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Protocol

import numpy as np

from otelgpu import __version__
from otelgpu.engine.names import SCHEMA_URL
from otelgpu.engine.row_spans import RowSpans
from otelgpu.export.base import Payload, Signal
from otelgpu.export.protobuf import any_value, delimited, key_value, utf8, varint
from otelgpu.export.row_span_writer import row_writer
from otelgpu.export.single_spans import FEW, SingleSpans
from otelgpu.export.span_rows import SpanRows
from otelgpu.model.resource import Resource
from otelgpu.model.spans import Bytes, SpanBatch, SpanColumns

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


class SpanWriter(Protocol):
    """Spans that can be written, in an order of their own."""

    def __len__(self) -> int: ...

    def size_of(self, span: int) -> int:
        """Bytes that one of them takes, at most."""

    def write(self, out: Bytes, first: int) -> tuple[int, int]:
        """As many as fit in ``out``, from span ``first`` on: the first that was not written, and the bytes."""


class _Payload:
    """One payload: its pieces under their ScopeSpans under their ResourceSpans, by encoded fields."""

    def __init__(self, max_bytes: int, scratch: Scratch) -> None:
        self.items = 0
        self._max_bytes, self._scratch = max_bytes, scratch
        self._used = 0  # with all headers
        self._written = 0  # of the scratch
        self._parts: dict[bytes, dict[bytes, list[tuple[int, int]]]] = {}

    def take(self, resource: bytes, scope: bytes, spans: SpanWriter, first: int) -> int:
        """Write as many spans as there is room for; the first that was not written."""
        opening = self._opening_bytes(resource, scope)
        room = self._max_bytes - self._used - opening
        if not self.items:
            room = max(room, spans.size_of(first))  # one that is larger than a payload goes alone
        if room <= 0:
            return first
        last, size = spans.write(self._scratch.room(self._written + room)[self._written :][:room], first)
        if last > first:
            end = self._written + size
            self._parts.setdefault(resource, {}).setdefault(scope, []).append((self._written, end))
            self._written = end
            self._used += opening + size
            self.items += last - first
        return last

    def _opening_bytes(self, resource: bytes, scope: bytes) -> int:
        if resource not in self._parts:
            return 2 * _HEADER_BYTES + len(resource) + len(scope)
        return 0 if scope in self._parts[resource] else _HEADER_BYTES + len(scope)

    def whole(self) -> Payload:
        """With its headers."""
        written = self._scratch.room(self._written).data
        body: list[bytes | memoryview] = []
        for resource, scopes in self._parts.items():
            sizes = {scope: sum(end - begin for begin, end in pieces) for scope, pieces in scopes.items()}
            headers = {
                scope: _SCOPE_SPANS + varint(len(scope) + size) + scope for scope, size in sizes.items()
            }
            inner = len(resource) + sum(len(headers[scope]) + size for scope, size in sizes.items())
            body.append(_RESOURCE_SPANS + varint(inner) + resource)
            for scope, pieces in scopes.items():
                body.append(headers[scope])
                body += (written[begin:end] for begin, end in pieces)
        return Payload(signal=Signal.TRACES, body=b"".join(body), items=self.items)


class Scratch:
    """Where spans are written: memory that is used again is in the cache, and costs no page faults."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, dtype=np.uint8)

    def room(self, size: int) -> Bytes:
        """At least ``size`` bytes, which begin with what was left there."""
        if len(self._bytes) < size:
            larger = np.empty(size, dtype=np.uint8)
            larger[: len(self._bytes)] = self._bytes
            self._bytes = larger
        return self._bytes


def _writer_of(batch: SpanBatch) -> SpanWriter:
    """Raises ValueError on a batch that breaks its contract."""
    if isinstance(batch, RowSpans):
        return row_writer(batch)
    assert isinstance(batch, SpanColumns)
    return SingleSpans(batch) if len(batch) <= FEW else SpanRows(batch)


def _payloads(batches: Iterable[SpanBatch], max_bytes: int) -> Iterator[_Payload]:
    """Those that are full, and a last one; a batch is made ready when its turn comes."""
    scratch = Scratch()
    payload = _Payload(max_bytes, scratch)
    for batch in batches:
        if not len(batch):
            continue
        resource, scope = _resource_fields[batch.resource], scope_field(batch.scope)
        try:
            spans = _writer_of(batch)
        except ValueError:
            if payload.items:
                yield payload  # what was well is not lost with what was not
            raise
        first = 0
        while first < len(spans):
            first = payload.take(resource, scope, spans, first)
            if first < len(spans):
                yield payload
                payload = _Payload(max_bytes, scratch)
    if payload.items:
        yield payload


def encode_spans(batches: Iterable[SpanBatch], *, max_bytes: int = DEFAULT_MAX_BYTES) -> Iterator[Payload]:
    """Serialize every span of ``batches``, in payloads of at most ``max_bytes``, one at a time.

    In a payload, spans are grouped by resource and scope, and within a batch by layout; rows of one layout keep
    their order. Only a single span that is larger than ``max_bytes`` by itself makes a larger payload, alone.

    Raises :class:`ValueError` when columns differ in length or a code is outside its table, after all spans of the
    batches before have been given out.
    """
    for payload in _payloads(batches, max_bytes):
        yield payload.whole()
