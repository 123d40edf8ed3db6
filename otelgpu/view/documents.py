"""OTLP/JSON as files hold it: one ``TracesData`` or ``MetricsData`` a line. Pure.

Only the fields that the viewer shows are decoded; others are passed over, as OTLP asks of receivers. Spans and metrics
stay raw JSON until each is looked at, so that one that cannot be read costs no other.

Source: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

from __future__ import annotations

import math
from typing import Any, Final, TypeVar

import msgspec

Decoded = TypeVar("Decoded")
Value = str | int | float | bool | list[Any] | dict[str, Any]

EXACT: Final = 1 << 53
"""Integers up to here are the same number in JavaScript."""

_NO_LIST: Final = msgspec.Raw(b"[]")


class _Node(msgspec.Struct, rename="camel"):
    """Field names as protobuf's JSON mapping spells them."""


class AnyValue(_Node):
    """``AnyValue``: at most one field is there."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None
    array_value: ArrayValue | None = None
    kvlist_value: KeyValueList | None = None
    bytes_value: str | None = None


class ArrayValue(_Node):
    """``ArrayValue``."""

    values: list[AnyValue] = []


class KeyValue(_Node):
    """``KeyValue``."""

    key: str = ""
    value: AnyValue = msgspec.field(default_factory=AnyValue)


class KeyValueList(_Node):
    """``KeyValueList``."""

    values: list[KeyValue] = []


class Resource(_Node):
    """``Resource``."""

    attributes: msgspec.Raw = _NO_LIST


class Scope(_Node):
    """``InstrumentationScope``."""

    name: str = ""


class Status(_Node):
    """``Status``: 1 is ok, 2 an error."""

    code: int = 0
    message: str = ""


class Link(_Node):
    """``Span.Link``; ids in hex."""

    trace_id: str
    span_id: str
    attributes: msgspec.Raw = _NO_LIST


class Event(_Node):
    """``Span.Event``; the time in Unix nanoseconds."""

    time_unix_nano: int | str = 0
    name: str = ""
    attributes: msgspec.Raw = _NO_LIST


class Span(_Node):
    """``Span``; ids in hex, times in Unix nanoseconds."""

    trace_id: str
    span_id: str
    start_time_unix_nano: int | str
    end_time_unix_nano: int | str
    parent_span_id: str = ""
    name: str = ""
    kind: int = 0
    attributes: msgspec.Raw = _NO_LIST
    links: list[Link] = []
    events: list[Event] = []
    status: Status = msgspec.field(default_factory=Status)
    dropped_attributes_count: int = 0
    dropped_links_count: int = 0
    dropped_events_count: int = 0


class Metric(_Node):
    """``Metric``, of which sums and histograms are looked at."""

    name: str = ""
    sum: Points | None = None
    histogram: Points | None = None


class Points(_Node):
    """``Sum`` and ``Histogram``."""

    data_points: list[Point] = []
    aggregation_temporality: int = 0


class Point(_Node):
    """``NumberDataPoint`` and ``HistogramDataPoint``."""

    attributes: msgspec.Raw = _NO_LIST
    start_time_unix_nano: int | str = 0
    time_unix_nano: int | str = 0
    as_int: int | str | None = None
    as_double: float | str | None = None
    count: int | str = 0
    bucket_counts: list[int | str] = []
    explicit_bounds: list[float] = []


class ScopeSpans(_Node):
    """``ScopeSpans``."""

    scope: Scope = msgspec.field(default_factory=Scope)
    spans: list[msgspec.Raw] = []


class ScopeMetrics(_Node):
    """``ScopeMetrics``."""

    scope: Scope = msgspec.field(default_factory=Scope)
    metrics: list[msgspec.Raw] = []


class ResourceSpans(_Node):
    """``ResourceSpans``."""

    resource: Resource = msgspec.field(default_factory=Resource)
    scope_spans: list[ScopeSpans] = []


class ResourceMetrics(_Node):
    """``ResourceMetrics``."""

    resource: Resource = msgspec.field(default_factory=Resource)
    scope_metrics: list[ScopeMetrics] = []


class Document(_Node):
    """A line: ``TracesData``, ``MetricsData``, or another signal's, of which nothing is read."""

    resource_spans: list[ResourceSpans] = []
    resource_metrics: list[ResourceMetrics] = []


class Unreadable(Exception):
    """Text that is not what its place asks for."""


class Reader:
    """Decoders, made once."""

    def __init__(self) -> None:
        self._document = msgspec.json.Decoder(Document)
        self._span = msgspec.json.Decoder(Span)
        self._metric = msgspec.json.Decoder(Metric)
        self._attributes = msgspec.json.Decoder(list[KeyValue])

    def document(self, line: bytes) -> Document:
        """A line. Raises `Unreadable`."""
        return _decoded(self._document, line)

    def span(self, raw: msgspec.Raw) -> Span:
        """A span. Raises `Unreadable`."""
        return _decoded(self._span, raw)

    def metric(self, raw: msgspec.Raw) -> Metric:
        """A metric. Raises `Unreadable`."""
        return _decoded(self._metric, raw)

    def attributes(self, raw: bytes) -> list[tuple[str, Value]]:
        """Keys and values as JSON for the page. Raises `Unreadable`."""
        try:
            return [(each.key, plain(each.value)) for each in _decoded(self._attributes, raw)]
        except (ValueError, RecursionError) as error:
            raise Unreadable(str(error)) from error


def _decoded(decoder: msgspec.json.Decoder[Decoded], text: bytes | msgspec.Raw) -> Decoded:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(str(error)) from error


def plain(value: AnyValue) -> Value:
    """A value as JSON; what JavaScript's numbers do not hold is ``{"$": text}``. Raises ValueError."""
    if value.string_value is not None:
        return value.string_value
    if value.bool_value is not None:
        return value.bool_value
    if value.int_value is not None:
        number = int(value.int_value)
        return number if -EXACT <= number <= EXACT else {"$": str(number)}
    if value.double_value is not None:
        return number_or_text(float(value.double_value))
    if value.array_value is not None:
        return [plain(each) for each in value.array_value.values]
    if value.kvlist_value is not None:
        return {"$": str({each.key: plain(each.value) for each in value.kvlist_value.values})}
    return {"$": "" if value.bytes_value is None else f"{value.bytes_value} (base64)"}


def number_or_text(number: float) -> Value:
    """A double, which JSON holds unless it is infinite or not a number."""
    return number if math.isfinite(number) else {"$": str(number)}
