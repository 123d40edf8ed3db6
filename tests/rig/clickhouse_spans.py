"""``otel_traces`` as the Collector's ClickHouse exporter makes and fills it, from OTLP/JSON lines.

The exporter speaks ClickHouse's own protocol over TCP, which chDB does not; the columns and their types are those of
its template (exporter/clickhouseexporter/internal/sqltemplates/traces_table.sql), less indices and compression.
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


def fill_spans(engine: ClickHouse, database: str, lines: Iterable[bytes]) -> None:
    """A database anew, with the spans of these lines."""
    engine.ask(f"DROP DATABASE IF EXISTS {database}")
    engine.ask(f"CREATE DATABASE {database}")
    engine.ask(_TABLE.format(database=database))
    rows = "\n".join(json.dumps(row) for line in lines for row in _rows(json.loads(line)))
    engine.ask(f"INSERT INTO {database}.otel_traces FORMAT JSONEachRow {rows}")


def _rows(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for of_resource in document.get("resourceSpans", ()):
        resource = _texts(of_resource["resource"].get("attributes", ()))
        for of_scope in of_resource["scopeSpans"]:
            for span in of_scope["spans"]:
                begin, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
                yield {
                    "Timestamp": f"{begin // 10**9}.{begin % 10**9:09d}",
                    "Duration": max(end - begin, 0),
                    "TraceId": span["traceId"],
                    "SpanId": span["spanId"],
                    "ParentSpanId": span.get("parentSpanId", ""),
                    "SpanName": span["name"],
                    "ServiceName": resource.get("service.name", ""),
                    "ResourceAttributes": resource,
                    "ScopeName": of_scope["scope"]["name"],
                    "SpanAttributes": _texts(span.get("attributes", ())),
                }


def _texts(attributes: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The exporter keeps every value as a text."""
    return {each["key"]: _text(each["value"]) for each in attributes}


def _text(value: dict[str, Any]) -> str:
    ((kind, found),) = value.items()
    if kind == "arrayValue":
        return json.dumps([_text(each) for each in found.get("values", ())])
    return str(found).lower() if kind == "boolValue" else str(found)
