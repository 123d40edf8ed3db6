"""``otel_traces`` and ``otel_metrics_sum`` as the Collector's ClickHouse exporter makes and fills them.

In: OTLP/JSON lines. The exporter speaks ClickHouse's own protocol over TCP, which chDB does not; the columns and their
types are those of its templates (exporter/clickhouseexporter/internal/sqltemplates: traces_table.sql,
metrics_sum_table.sql), less indices, compression and exemplars.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from tests.rig.clickhouse import ClickHouse

_TABLE: Final = """
CREATE TABLE {database}.otel_traces (
    Timestamp DateTime64(9), TraceId String, SpanId String, ParentSpanId String, TraceState String,
    SpanName LowCardinality(String), SpanKind LowCardinality(String), ServiceName LowCardinality(String),
    ResourceAttributes Map(LowCardinality(String), String), ScopeName String, ScopeVersion String,
    SpanAttributes Map(LowCardinality(String), String), Duration UInt64, StatusCode LowCardinality(String),
    StatusMessage String,
    Events Nested (
        Timestamp DateTime64(9), Name LowCardinality(String), Attributes Map(LowCardinality(String), String)
    ),
    Links Nested (TraceId String, SpanId String, TraceState String, Attributes Map(LowCardinality(String), String))
) ENGINE = MergeTree PARTITION BY toDate(Timestamp)
ORDER BY (ServiceName, SpanName, toDateTime(Timestamp), Timestamp)
"""
_SUMS: Final = """
CREATE TABLE {database}.otel_metrics_sum (
    ResourceAttributes Map(LowCardinality(String), String), ResourceSchemaUrl String, ScopeName String,
    ScopeVersion String, ScopeAttributes Map(LowCardinality(String), String), ScopeDroppedAttrCount UInt32,
    ScopeSchemaUrl String, ServiceName LowCardinality(String), MetricName String, MetricDescription String,
    MetricUnit String, Attributes Map(LowCardinality(String), String), StartTimeUnix DateTime64(9),
    TimeUnix DateTime64(9), Value Float64, Flags UInt32, AggregationTemporality Int32, IsMonotonic Bool
) ENGINE = MergeTree PARTITION BY toDate(TimeUnix)
ORDER BY (ServiceName, MetricName, Attributes, toUnixTimestamp64Nano(TimeUnix))
"""
_KINDS: Final = ("Unspecified", "Internal", "Server", "Client", "Producer", "Consumer")
_CODES: Final = ("Unset", "Ok", "Error")


def fill_sums(engine: ClickHouse, database: str, lines: Iterable[bytes]) -> None:
    """A table anew in a database that is there, with the sums of these lines."""
    engine.ask(f"DROP TABLE IF EXISTS {database}.otel_metrics_sum")
    engine.ask(_SUMS.format(database=database))
    rows = "\n".join(json.dumps(row) for line in lines for row in _sums(json.loads(line)))
    if rows:
        engine.ask(f"INSERT INTO {database}.otel_metrics_sum FORMAT JSONEachRow {rows}")


def _sums(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for of_resource in document.get("resourceMetrics", ()):
        resource = _texts(of_resource["resource"].get("attributes", ()))
        for of_scope in of_resource["scopeMetrics"]:
            for metric in of_scope["metrics"]:
                for point in metric.get("sum", {}).get("dataPoints", ()):
                    yield {
                        "ResourceAttributes": resource,
                        "ServiceName": resource.get("service.name", ""),
                        "ScopeName": of_scope["scope"]["name"],
                        "MetricName": metric["name"],
                        "Attributes": _texts(point.get("attributes", ())),
                        "StartTimeUnix": _time(int(point.get("startTimeUnixNano", 0))),
                        "TimeUnix": _time(int(point["timeUnixNano"])),
                        "Value": float(point.get("asDouble", point.get("asInt", 0))),
                        "AggregationTemporality": metric["sum"]["aggregationTemporality"],
                    }


def _time(unix_ns: int) -> str:
    return f"{unix_ns // 10**9}.{unix_ns % 10**9:09d}"


def fill_spans(engine: ClickHouse, database: str, lines: Iterable[bytes]) -> None:
    """A database anew, with the spans of these lines."""
    engine.ask(f"DROP DATABASE IF EXISTS {database}")
    engine.ask(f"CREATE DATABASE {database}")
    engine.ask(_TABLE.format(database=database))
    rows = "\n".join(json.dumps(row) for line in lines for row in _rows(json.loads(line)))
    if rows:
        engine.ask(f"INSERT INTO {database}.otel_traces FORMAT JSONEachRow {rows}")


def _rows(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for of_resource in document.get("resourceSpans", ()):
        resource = _texts(of_resource["resource"].get("attributes", ()))
        for of_scope in of_resource["scopeSpans"]:
            for span in of_scope["spans"]:
                begin, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
                yield {
                    "Timestamp": _time(begin),
                    "Duration": max(end - begin, 0),
                    "TraceId": span["traceId"],
                    "SpanId": span["spanId"],
                    "ParentSpanId": span.get("parentSpanId", ""),
                    "SpanName": span["name"],
                    "SpanKind": _KINDS[span.get("kind", 0)],
                    "StatusCode": _CODES[span.get("status", {}).get("code", 0)],
                    "StatusMessage": span.get("status", {}).get("message", ""),
                    "ServiceName": resource.get("service.name", ""),
                    "ResourceAttributes": resource,
                    "ScopeName": of_scope["scope"]["name"],
                    "SpanAttributes": _texts(span.get("attributes", ())),
                    **{f"Events.{name}": cells for name, cells in _events(span.get("events", ())).items()},
                    **{f"Links.{name}": cells for name, cells in _links(span.get("links", ())).items()},
                }


def _events(events: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {
        "Timestamp": [_time(int(each["timeUnixNano"])) for each in events],
        "Name": [each["name"] for each in events],
        "Attributes": [_texts(each.get("attributes", ())) for each in events],
    }


def _links(links: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {
        "TraceId": [each["traceId"] for each in links],
        "SpanId": [each["spanId"] for each in links],
        "TraceState": ["" for _ in links],
        "Attributes": [_texts(each.get("attributes", ())) for each in links],
    }


def _texts(attributes: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The exporter keeps every value as a text."""
    return {each["key"]: _text(each["value"]) for each in attributes}


def _text(value: dict[str, Any]) -> str:
    ((kind, found),) = value.items()
    if kind == "arrayValue":
        return json.dumps([_text(each) for each in found.get("values", ())])
    if kind == "doubleValue" and float(found).is_integer():
        return str(int(found))  # as Go's JSON writes it
    return str(found).lower() if kind == "boolValue" else str(found)
