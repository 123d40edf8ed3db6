"""OTLP messages made by opentelemetry-proto, and what fake backends were sent, by name.

In: a few facts of a span. Out: requests as an SDK would send them. Nothing here knows otelgpu.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from tests.contract.otlp_servers import Request
from tests.unit.export.builders import any_value

SERVICE: Final = {"service.name": "llm", "service.instance.id": "llm-1"}
_SCOPE: Final = InstrumentationScope(name="otelgpu.http")
_SECOND: Final = 1_000_000_000


def _attributes(values: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in values.items()]


def trace_id(number: int) -> bytes:
    """Of a test's trace: the same in each run, and as even as random ones, which samplers rely on."""
    return hashlib.sha256(number.to_bytes(8, "big")).digest()[:16]


def span(
    name: str,
    trace: int,
    number: int = 1,
    *,
    parent: int = 0,
    kind: Span.SpanKind.ValueType = Span.SPAN_KIND_SERVER,
    seconds: float = 0.1,
    error: bool = False,
    attributes: Mapping[str, Any] | None = None,
) -> Span:
    """A span that ended just now. ``trace`` and ``number`` make its ids."""
    end = time.time_ns()
    return Span(
        trace_id=trace_id(trace),
        span_id=number.to_bytes(8, "big"),
        parent_span_id=parent.to_bytes(8, "big") if parent else b"",
        name=name,
        kind=kind,
        start_time_unix_nano=end - int(seconds * _SECOND),
        end_time_unix_nano=end,
        status=Status(code=Status.STATUS_CODE_ERROR) if error else None,
        attributes=_attributes(attributes or {}),
    )


def traces(spans: Iterable[Span], resource: Mapping[str, Any] = SERVICE) -> ExportTraceServiceRequest:
    """The spans of one resource."""
    part = ResourceSpans(
        resource=Resource(attributes=_attributes(resource)),
        scope_spans=[ScopeSpans(scope=_SCOPE, spans=spans)],
    )
    return ExportTraceServiceRequest(resource_spans=[part])


def metrics(name: str, resource: Mapping[str, Any] = SERVICE) -> ExportMetricsServiceRequest:
    """A counter that is 7."""
    now = time.time_ns()
    point = NumberDataPoint(start_time_unix_nano=now - _SECOND, time_unix_nano=now, as_int=7)
    counter = Sum(
        data_points=[point], aggregation_temporality=AGGREGATION_TEMPORALITY_CUMULATIVE, is_monotonic=True
    )
    part = ResourceMetrics(
        resource=Resource(attributes=_attributes(resource)),
        scope_metrics=[ScopeMetrics(scope=_SCOPE, metrics=[Metric(name=name, sum=counter)])],
    )
    return ExportMetricsServiceRequest(resource_metrics=[part])


def events(name: str, resource: Mapping[str, Any] = SERVICE) -> ExportLogsServiceRequest:
    """One event of this name."""
    record = LogRecord(time_unix_nano=time.time_ns(), event_name=name)
    part = ResourceLogs(
        resource=Resource(attributes=_attributes(resource)),
        scope_logs=[ScopeLogs(scope=_SCOPE, log_records=[record])],
    )
    return ExportLogsServiceRequest(resource_logs=[part])


def sent_spans(requests: Iterable[Request]) -> list[tuple[dict[str, Any], Span]]:
    """Every span that came by OTLP, with its resource's attributes."""
    return [
        (_plain(part.resource.attributes), each)
        for request in requests
        if "TraceService" in request.path
        for part in ExportTraceServiceRequest.FromString(request.body).resource_spans
        for scope in part.scope_spans
        for each in scope.spans
    ]


def sent_metrics(requests: Iterable[Request]) -> list[tuple[dict[str, Any], Metric]]:
    """Every metric that came by OTLP, with its resource's attributes."""
    return [
        (_plain(part.resource.attributes), metric)
        for request in requests
        if "MetricsService" in request.path or request.path.endswith("/v1/metrics")
        for part in ExportMetricsServiceRequest.FromString(request.body).resource_metrics
        for scope in part.scope_metrics
        for metric in scope.metrics
    ]


def sent_events(requests: Iterable[Request]) -> list[str]:
    """The name of every event that came by OTLP."""
    return [
        record.event_name
        for request in requests
        if "LogsService" in request.path
        for part in ExportLogsServiceRequest.FromString(request.body).resource_logs
        for scope in part.scope_logs
        for record in scope.log_records
    ]


def sent_profiles(requests: Iterable[Request]) -> list[ExportProfilesServiceRequest]:
    """Every request of profiles."""
    return [
        ExportProfilesServiceRequest.FromString(request.body)
        for request in requests
        if "ProfilesService" in request.path
    ]


def names_sent(requests: Iterable[Request]) -> Iterator[tuple[str, str]]:
    """Signal and name of each span, metric and event, and of each text of a profile, whatever protocol they came by."""
    requests = list(requests)
    for _, each in sent_spans(requests):
        yield "traces", each.name
    for _, metric in sent_metrics(requests):
        yield "metrics", metric.name
    yield from (("logs", name) for name in sent_events(requests))
    for profiles in sent_profiles(requests):
        yield from (("profiles", text) for text in profiles.dictionary.string_table)
    for request in requests:
        if request.path == "/api/v2/spans":
            yield from (("traces", each["name"]) for each in json.loads(request.body))
        elif request.path == "/api/v1/write":
            yield from (("metrics", text) for text in label_values(snappy(request.body), "__name__"))


def attributes_of(item: Any) -> dict[str, Any]:
    """Of a span or a data point."""
    return _plain(item.attributes)


def _plain(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value") for each in attributes
    }


def label_values(write_request: bytes, label: str) -> set[str]:
    """Of a Prometheus ``WriteRequest``: the values of one label. A label is two texts: its name, then its value."""
    head = b"\x0a" + bytes([len(label)]) + label.encode() + b"\x12"
    found = set()
    for piece in write_request.split(head)[1:]:
        found.add(piece[1 : 1 + piece[0]].decode())
    return found


def snappy(block: bytes) -> bytes:
    """Decompressed. Format: google/snappy, format_description.txt."""
    at = next(i for i, byte in enumerate(block) if byte < 0x80) + 1  # behind the length, which is not needed
    made = bytearray()
    while at < len(block):
        tag, kind = block[at], block[at] & 3
        at += 1
        if kind == 0:  # a literal
            size = tag >> 2
            if size >= 60:
                width = size - 59
                size = int.from_bytes(block[at : at + width], "little")
                at += width
            made += block[at : at + size + 1]
            at += size + 1
            continue
        if kind == 1:
            size, offset = (tag >> 2 & 7) + 4, (tag >> 5 << 8) | block[at]
            at += 1
        else:
            width = 2 if kind == 2 else 4
            size, offset = (tag >> 2) + 1, int.from_bytes(block[at : at + width], "little")
            at += width
        for _ in range(size):  # it may copy what it has just made
            made.append(made[-offset])
    return bytes(made)
