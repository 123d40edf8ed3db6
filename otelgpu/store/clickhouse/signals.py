"""Spans and sums of the tables that the Collector's exporter fills, as the OTLP/JSON lines that they were made of.

In: an address that names the table of spans; the table of sums is beside it. Out: lines, each of one resource and
scope (:mod:`otelgpu.store.clickhouse.span_lines`). They are as long as they have to be: what a question leaves out is
what says nothing new. "true" and "false" are made booleans again, and numbers stay texts, which readers of whole
numbers take. A resource's stay texts all.

Source: ``opentelemetry-collector-contrib/exporter/clickhouseexporter/internal/sqltemplates/metrics_sum_table.sql``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from otelgpu.store.clickhouse.address import Address
from otelgpu.store.clickhouse.client import Client
from otelgpu.store.clickhouse.span_lines import (
    IS_EXCHANGE,
    MOST_REQUESTS,
    WHOLE,
    Row,
    are_spans,
    as_text,
    attributes_of,
    bounds,
    columns_of,
    grouped,
    newest,
    span_lines,
    spans,
    texts,
)
from otelgpu.store.queries import tuples
from otelgpu.store.row_checks import text_literal

SUMS: Final = "otel_metrics_sum"
MOST_ROWS: Final = 1 << 20
"""Of each other question."""
_SUM_COLUMNS: Final = frozenset(
    (
        *("ResourceAttributes", "ScopeName", "MetricName", "Attributes"),
        *("StartTimeUnix", "TimeUnix", "Value", "AggregationTemporality"),
    )
)
_DELTA: Final = 1
_DELTA_TIME: Final = f"if(AggregationTemporality = {_DELTA}, toUnixTimestamp64Nano(TimeUnix), 0)"


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
    if not are_spans(columns_of(client, address, address.table)):
        return
    table = f"{address.database}.{address.table}"
    for question in _span_questions(table, wanted, bounds("Timestamp", begin_s, end_s)):
        yield from span_lines(client, question, _value, as_text)
    yield from _request_lines(client, table, wanted, bounds("Timestamp", begin_s, end_s), limits)
    if not columns_of(client, address, SUMS) >= _SUM_COLUMNS:
        limits.append(f"no metrics are read: there is no table {address.database}.{SUMS} of the exporter")
        return
    sums = f"{address.database}.{SUMS}"
    for question in _sum_questions(sums, wanted, bounds("TimeUnix", begin_s, end_s)):
        yield from _sum_lines(client, question)


def _value(_: str, text: str) -> str | bool:
    return text == "true" if text in ("true", "false") else text


# -- Spans -----------------------------------------------------------------------------------------------


def _span_questions(table: str, wanted: Wanted, within: str) -> Iterator[str]:
    whole = spans(table, f"ScopeName IN ({texts(wanted.scopes)}){within}", WHOLE)
    yield f"{whole} LIMIT {MOST_ROWS}"
    for scope, keys in wanted.alike.items():
        alike = ", ".join(f"SpanAttributes[{text_literal(key)}]" for key in keys)
        some = spans(table, f"ScopeName = {text_literal(scope)}{within}", WHOLE)
        yield f"{some} LIMIT 1 BY ResourceAttributes, {alike} LIMIT {MOST_ROWS}"


def _request_lines(
    client: Client, table: str, wanted: Wanted, within: str, limits: list[str]
) -> Iterator[bytes]:
    scopes = f"ScopeName = {text_literal(wanted.requests)} OR NOT startsWith(ScopeName, 'otelgpu')"
    condition = f"{IS_EXCHANGE} AND ({scopes}){within}"
    ((count,),) = tuples(client.run(f"SELECT count() AS requests FROM {table} WHERE {condition}"))
    if count > MOST_REQUESTS:
        limits.append(f"of {count} spans of requests the newest {MOST_REQUESTS} are looked at: --from, --to")
    question = spans(newest(table, condition, MOST_REQUESTS), "1 = 1")
    yield from span_lines(client, question, _value, as_text)


# -- Sums ------------------------------------------------------------------------------------------------


def _sum_questions(table: str, wanted: Wanted, within: str) -> Iterator[str]:
    latest, first = "DESC", "ASC"
    for names, apart, order in (
        (wanted.states, "", latest),
        (wanted.switches, ", Value", latest),
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
                WHERE MetricName IN ({texts(names)}){within}
                ORDER BY TimeUnix {order}
                LIMIT 1 BY ResourceAttributes, ScopeName, MetricName, Attributes{apart}
            )
            ORDER BY resource, scope, metric, time_ns
            LIMIT {MOST_ROWS}
        """


def _sum_lines(client: Client, question: str) -> Iterator[bytes]:
    decode = attributes_of(_value)

    def metric(row: Row) -> dict[str, Any]:
        _, _, name, is_delta, start_ns, time_ns, value, attributes = row
        point = {
            "attributes": decode(attributes),
            "startTimeUnixNano": start_ns,
            "timeUnixNano": time_ns,
            "asDouble": value,
        }
        temporality = _DELTA if is_delta else 2
        return {"name": name, "sum": {"aggregationTemporality": temporality, "dataPoints": [point]}}

    for resource, scope, rows in grouped(client, question, as_text):
        scopes = [{"scope": {"name": scope}, "metrics": [metric(row) for row in rows]}]
        yield msgspec.json.encode(
            {"resourceMetrics": [{"resource": {"attributes": resource}, "scopeMetrics": scopes}]}
        )
