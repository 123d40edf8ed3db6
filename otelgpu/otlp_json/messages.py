"""OTLP/JSON's messages, as far as something here reads them. Pure.

A line of a file is a :class:`Document`: one ``TracesData``, ``MetricsData`` or ``ProfilesData``. Fields that nobody
reads are passed over, as OTLP asks of receivers. Spans, metrics, profiles and attributes stay raw JSON until each is
looked at, so that one that cannot be read costs no other, and what is not looked at costs little. 64-bit integers are
decimal strings or numbers: :func:`otelgpu.otlp_json.reader.int64` reads either.

Source: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding and opentelemetry/proto (release 1.10).
"""

from __future__ import annotations

from typing import Final

import msgspec

Number = int | str
"""A 64-bit integer, as OTLP/JSON has it."""

_NO_LIST: Final = msgspec.Raw(b"[]")
_NO_OBJECT: Final = msgspec.Raw(b"{}")


class _Node(msgspec.Struct, rename="camel"):
    """Field names as protobuf's JSON mapping spells them."""


class AnyValue(_Node):
    """``AnyValue``: at most one field is there."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: Number | None = None
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

    time_unix_nano: Number = 0
    name: str = ""
    attributes: msgspec.Raw = _NO_LIST


class Span(_Node):
    """``Span``; ids in hex, times in Unix nanoseconds."""

    trace_id: str
    span_id: str
    start_time_unix_nano: Number
    end_time_unix_nano: Number
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
    start_time_unix_nano: Number = 0
    time_unix_nano: Number = 0
    as_int: Number | None = None
    as_double: float | str | None = None
    count: Number = 0
    sum: float | str | None = None
    bucket_counts: list[Number] = []
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
    """A line: ``TracesData``, ``MetricsData``, ``ProfilesData`` or ``LogsData``.

    ``resource_profiles`` and ``dictionary``: see :mod:`otelgpu.otlp_json.profile_reader`; ``resource_logs``:
    :mod:`otelgpu.otlp_json.log_reader`.
    """

    resource_spans: list[ResourceSpans] = []
    resource_metrics: list[ResourceMetrics] = []
    resource_profiles: msgspec.Raw = _NO_LIST
    dictionary: msgspec.Raw = _NO_OBJECT
    resource_logs: msgspec.Raw = _NO_LIST
