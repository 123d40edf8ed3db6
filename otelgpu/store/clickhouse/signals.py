"""Spans and sums of the tables that the Collector's exporter fills, as the OTLP/JSON lines that they were made of.

In: an address that names the table of spans; the table of sums is beside it. Out: lines, each of one resource and
scope. They are as long as they have to be: what a question leaves out is what says nothing new. Attributes are texts
there, whatever they were; of spans and points "true" and "false" are made booleans again, and numbers stay texts,
which readers of whole numbers take. A resource's stay texts all.

Source: ``opentelemetry-collector-contrib/exporter/clickhouseexporter/internal/sqltemplates`` (traces_table.sql,
metrics_sum_table.sql); kinds and codes are spelled as pdata's ``String()`` does, by exporters before 0.110 as protobuf.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from otelgpu.store.clickhouse.address import Address
from otelgpu.store.clickhouse.client import Client
from otelgpu.store.clickhouse.spans import REQUIRED
from otelgpu.store.queries import tuples
from otelgpu.store.row_checks import text_literal

SUMS: Final = "otel_metrics_sum"
MOST_REQUESTS: Final = 200_000
MOST_ROWS: Final = 1 << 20
"""Of each other question."""
_SUM_COLUMNS: Final = frozenset(
    (
        *("ResourceAttributes", "ScopeName", "MetricName", "Attributes"),
        *("StartTimeUnix", "TimeUnix", "Value", "AggregationTemporality"),
    )
)
_KINDS: Final = {"server": 2, "client": 3}
_DELTA, _ERROR = 1, 2
_OF_A_LINE: Final = 4096
_MOST_KEPT: Final = 1 << 16
_DELTA_TIME: Final = f"if(AggregationTemporality = {_DELTA}, toUnixTimestamp64Nano(TimeUnix), 0)"

_Row = tuple[Any, ...]
_Decode = Callable[[str], Raw]


class Wanted(Struct, frozen=True, kw_only=True):
    """What is asked for, by names.

    ``scopes``: of spans that are read whole. ``alike``: scope → attributes; of spans that agree in these and in their
    resource one is enough. ``requests``: spans of kind server or client, of this scope and of all that are not
    ``otelgpu.*``; without attributes. ``states``: sums of which a series' newest point is enough, ``switches``: the
    newest of each value, ``counters``: the first point of each value.
    """

    scopes: Collection[str]
    alike: Mapping[str, tuple[str, ...]]
    requests: str
    states: Collection[str]
    switches: Collection[str]
    counters: Collection[str]


def lines(
    address: Address, wanted: Wanted, begin_s: float | None, end_s: float | None, limits: list[str]
) -> Iterator[bytes]:
    """What began in [begin_s, end_s), in no order but that of the points of a series; ``limits``: what is not read.

    Nothing where the table is none of spans. Raises `StoreError` for a server or a table that is not there.
    """
    client = Client(address)
    if not _columns(client, address, address.table).issuperset((*REQUIRED, "SpanKind", "StatusCode")):
        return
    spans = f"{address.database}.{address.table}"
    for question in _span_questions(spans, wanted, _bounds("Timestamp", begin_s, end_s)):
        yield from _span_lines(client, question)
    yield from _request_lines(client, spans, wanted, _bounds("Timestamp", begin_s, end_s), limits)
    if not _columns(client, address, SUMS) >= _SUM_COLUMNS:
        limits.append(f"no metrics are read: there is no table {address.database}.{SUMS} of the exporter")
        return
    sums = f"{address.database}.{SUMS}"
    for question in _sum_questions(sums, wanted, _bounds("TimeUnix", begin_s, end_s)):
        yield from _sum_lines(client, question)


def _columns(client: Client, address: Address, table: str) -> frozenset[str]:
    found = client.run(
        "SELECT name FROM system.columns "
        f"WHERE database = {text_literal(address.database)} AND table = {text_literal(table)}"
    )
    return frozenset(map(str, found["name"]))


def _bounds(column: str, begin_s: float | None, end_s: float | None) -> str:
    return "".join(
        f" AND {column} {sign} fromUnixTimestamp64Nano({round(bound * 1e9)})"
        for sign, bound in ((">=", begin_s), ("<", end_s))
        if bound is not None
    )


def _texts(names: Collection[str]) -> str:
    return ", ".join(map(text_literal, sorted(names)))


# -- Spans -----------------------------------------------------------------------------------------------


def _spans(table: str, attributes: str, condition: str) -> str:
    kinds = ", ".join(f"endsWith(lower(SpanKind), '{name}'), {number}" for name, number in _KINDS.items())
    return f"""
        SELECT
            toJSONString(ResourceAttributes) AS resource, ScopeName AS scope, TraceId AS trace, SpanId AS span,
            ParentSpanId AS parent, CAST(SpanName AS String) AS span_name, toUInt8(multiIf({kinds}, 1)) AS kind,
            toUnixTimestamp64Nano(Timestamp) AS begin_ns, toInt64(Duration) AS took_ns,
            toUInt8(if(endsWith(lower(StatusCode), 'error'), {_ERROR}, 0)) AS code, StatusMessage AS message,
            {attributes} AS attributes
        FROM {table}
        WHERE {condition}
        ORDER BY resource, scope, begin_ns
    """


def _span_questions(table: str, wanted: Wanted, bounds: str) -> Iterator[str]:
    attributes = "toJSONString(SpanAttributes)"
    whole = _spans(table, attributes, f"ScopeName IN ({_texts(wanted.scopes)}){bounds}")
    yield f"{whole} LIMIT {MOST_ROWS}"
    for scope, keys in wanted.alike.items():
        alike = ", ".join(f"SpanAttributes[{text_literal(key)}]" for key in keys)
        some = _spans(table, attributes, f"ScopeName = {text_literal(scope)}{bounds}")
        yield f"{some} LIMIT 1 BY ResourceAttributes, {alike} LIMIT {MOST_ROWS}"


def _request_lines(
    client: Client, table: str, wanted: Wanted, bounds: str, limits: list[str]
) -> Iterator[bytes]:
    kinds = " OR ".join(f"endsWith(lower(SpanKind), '{name}')" for name in _KINDS)
    scopes = f"ScopeName = {text_literal(wanted.requests)} OR NOT startsWith(ScopeName, 'otelgpu')"
    condition = f"({kinds}) AND ({scopes}){bounds}"
    ((count,),) = tuples(client.run(f"SELECT count() AS requests FROM {table} WHERE {condition}"))
    if count > MOST_REQUESTS:
        limits.append(f"of {count} spans of requests the newest {MOST_REQUESTS} are looked at: --from, --to")
    newest = f"(SELECT * FROM {table} WHERE {condition} ORDER BY Timestamp DESC LIMIT {MOST_REQUESTS})"
    yield from _span_lines(client, _spans(newest, "'{}'", "1 = 1"))


def _span_lines(client: Client, question: str) -> Iterator[bytes]:
    decode = _decoder(booleans=True)

    def span(row: _Row) -> dict[str, Any]:
        _, _, trace, identity, parent, name, kind, begin_ns, took_ns, code, message, attributes = row
        return {
            "traceId": trace,
            "spanId": identity,
            "parentSpanId": parent,
            "name": name,
            "kind": kind,
            "startTimeUnixNano": begin_ns,
            "endTimeUnixNano": begin_ns + took_ns,
            "attributes": decode(attributes),
            "status": {"code": code, "message": message},
        }

    for resource, scope, rows in _grouped(client, question):
        scopes = [{"scope": {"name": scope}, "spans": [span(row) for row in rows]}]
        yield msgspec.json.encode(
            {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": scopes}]}
        )


# -- Sums ------------------------------------------------------------------------------------------------


def _sum_questions(table: str, wanted: Wanted, bounds: str) -> Iterator[str]:
    newest, first = "DESC", "ASC"
    for names, apart, order in (
        (wanted.states, "", newest),
        (wanted.switches, ", Value", newest),
        (wanted.counters, f", StartTimeUnix, Value, {_DELTA_TIME}", first),
    ):
        yield f"""
            SELECT * FROM (
                SELECT
                    toJSONString(ResourceAttributes) AS resource, ScopeName AS scope, MetricName AS metric,
                    toUInt8(AggregationTemporality = {_DELTA}) AS is_delta,
                    toUnixTimestamp64Nano(StartTimeUnix) AS start_ns, toUnixTimestamp64Nano(TimeUnix) AS time_ns,
                    Value AS value, toJSONString(Attributes) AS attributes
                FROM {table}
                WHERE MetricName IN ({_texts(names)}){bounds}
                ORDER BY TimeUnix {order}
                LIMIT 1 BY ResourceAttributes, ScopeName, MetricName, Attributes{apart}
            )
            ORDER BY resource, scope, metric, time_ns
            LIMIT {MOST_ROWS}
        """


def _sum_lines(client: Client, question: str) -> Iterator[bytes]:
    decode = _decoder(booleans=True)

    def metric(row: _Row) -> dict[str, Any]:
        _, _, name, is_delta, start_ns, time_ns, value, attributes = row
        point = {
            "attributes": decode(attributes),
            "startTimeUnixNano": start_ns,
            "timeUnixNano": time_ns,
            "asDouble": value,
        }
        temporality = _DELTA if is_delta else 2
        return {"name": name, "sum": {"aggregationTemporality": temporality, "dataPoints": [point]}}

    for resource, scope, rows in _grouped(client, question):
        scopes = [{"scope": {"name": scope}, "metrics": [metric(row) for row in rows]}]
        yield msgspec.json.encode(
            {"resourceMetrics": [{"resource": {"attributes": resource}, "scopeMetrics": scopes}]}
        )


# -- Rows ------------------------------------------------------------------------------------------------


def _grouped(client: Client, question: str) -> Iterator[tuple[Raw, str, list[_Row]]]:
    """Rows that are sorted by their first two columns, resource and scope."""
    decode = _decoder(booleans=False)
    for (resource, scope), some in groupby(tuples(client.run(question)), itemgetter(0, 1)):
        rows = list(some)
        for begin in range(0, len(rows), _OF_A_LINE):
            yield decode(resource), scope, rows[begin : begin + _OF_A_LINE]


def _decoder(*, booleans: bool) -> _Decode:
    """A map as ClickHouse writes it in JSON → OTLP/JSON's list of attributes."""
    kept: dict[str, Raw] = {}

    def value(text: str) -> dict[str, Any]:
        return (
            {"boolValue": text == "true"} if booleans and text in ("true", "false") else {"stringValue": text}
        )

    def decode(text: str) -> Raw:
        found = kept.get(text)
        if found is None:
            if len(kept) >= _MOST_KEPT:
                kept.clear()
            attributes = msgspec.json.decode(text, type=dict[str, str])
            listed = [{"key": key, "value": value(each)} for key, each in attributes.items()]
            found = kept[text] = Raw(msgspec.json.encode(listed))
        return found

    return decode
