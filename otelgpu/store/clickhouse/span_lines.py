"""Rows of the table of spans that the Collector's exporter fills, as the OTLP/JSON lines that they were made of.

In: questions. Out: lines, each of one resource and scope. Attributes are texts there, whatever they were; who asks says
what becomes of each again.

Source: ``opentelemetry-collector-contrib/exporter/clickhouseexporter/internal/sqltemplates/traces_table.sql``; kinds
and codes are spelled as pdata's ``String()`` does, by exporters before 0.110 as protobuf.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from otelgpu.store.clickhouse.address import Address
from otelgpu.store.clickhouse.client import Client
from otelgpu.store.clickhouse.spans import REQUIRED
from otelgpu.store.files import StoreError
from otelgpu.store.queries import tuples
from otelgpu.store.row_checks import text_literal

MOST_REQUESTS: Final = 200_000
_KINDS: Final = {"server": 2, "client": 3}
IS_EXCHANGE: Final = f"match(lower(SpanKind), '({'|'.join(_KINDS)})$')"
"""It is a request's span, of either side."""
IS_ERROR: Final = "endsWith(lower(StatusCode), 'error')"
_ERROR: Final = 2
_OF_A_LINE: Final = 4096
_MOST_KEPT: Final = 1 << 16

Row = tuple[Any, ...]
Value = Callable[[str, str], "str | bool | int | float | list[Any]"]
"""An attribute's key and text → what it was."""


class Cells(Struct, frozen=True, kw_only=True):
    """SQL of what each span has besides, as JSON: a map, and lists of lists with maps as texts. ``[]``: none.

    Of events: times, names, maps; of links: traces, spans, maps.
    """

    attributes: str = "'{}'"
    events: str = "'[]'"
    links: str = "'[]'"


NOTHING: Final = Cells()
WHOLE: Final = Cells(attributes="toJSONString(SpanAttributes)")


def columns_of(client: Client, address: Address, table: str) -> frozenset[str]:
    """Names of a table's columns; none of a table that is not there."""
    found = client.run(
        "SELECT name FROM system.columns "
        f"WHERE database = {text_literal(address.database)} AND table = {text_literal(table)}"
    )
    return frozenset(map(str, found["name"]))


def are_spans(columns: Collection[str]) -> bool:
    """Whether a table has what :func:`spans` asks for."""
    return {*REQUIRED, "SpanKind", "StatusCode", "StatusMessage"}.issubset(columns)


def bounds(column: str, begin_s: float | None, end_s: float | None) -> str:
    """A condition, from " AND " on: a time in [begin_s, end_s), in Unix seconds."""
    return "".join(
        f" AND {column} {sign} fromUnixTimestamp64Nano({round(bound * 1e9)})"
        for sign, bound in ((">=", begin_s), ("<", end_s))
        if bound is not None
    )


def texts(names: Collection[str]) -> str:
    """A list of texts in SQL."""
    return ", ".join(map(text_literal, sorted(names)))


def newest(table: str, condition: str, most: int) -> str:
    """The newest ``most`` rows, as a table."""
    return f"(SELECT * FROM {table} WHERE {condition} ORDER BY Timestamp DESC LIMIT {most})"


def spans(table: str, condition: str, cells: Cells = NOTHING) -> str:
    """A question for :func:`span_lines`."""
    kinds = ", ".join(f"endsWith(lower(SpanKind), '{name}'), {number}" for name, number in _KINDS.items())
    return f"""
        SELECT
            toJSONString(ResourceAttributes) AS resource, ScopeName AS scope, TraceId AS trace, SpanId AS span,
            ParentSpanId AS parent, CAST(SpanName AS String) AS span_name, toUInt8(multiIf({kinds}, 1)) AS kind,
            toUnixTimestamp64Nano(Timestamp) AS begin_ns, toInt64(Duration) AS took_ns,
            toUInt8(if({IS_ERROR}, {_ERROR}, 0)) AS code, StatusMessage AS message,
            {cells.attributes} AS attributes, {cells.events} AS events, {cells.links} AS links
        FROM {table}
        WHERE {condition}
        ORDER BY resource, scope, begin_ns
    """


def span_lines(client: Client, question: str, value: Value, of_resource: Value) -> Iterator[bytes]:
    """Lines of ``resourceSpans``. ``value``: of attributes of spans, events and links. Raises `StoreError`."""
    decode = attributes_of(value)

    def parts(text: str, *names: str) -> list[dict[str, Any]]:
        found = _decoded(text, list[list[Any]]) if text != "[]" else ()
        return [
            {**dict(zip(names, row, strict=False)), "attributes": decode(row[-1])}
            for row in zip(*found, strict=True)
        ]

    def span(row: Row) -> dict[str, Any]:
        trace, identity, parent, name, kind, begin_ns, took_ns, code, message, attributes, events, links = (
            row[2:]
        )
        return {
            "traceId": trace,
            "spanId": identity,
            "parentSpanId": parent,
            "name": name,
            "kind": kind,
            "startTimeUnixNano": begin_ns,
            "endTimeUnixNano": begin_ns + took_ns,
            "attributes": decode(attributes),
            "events": parts(events, "timeUnixNano", "name"),
            "links": parts(links, "traceId", "spanId"),
            "status": {"code": code, "message": message},
        }

    for resource, scope, rows in grouped(client, question, of_resource):
        scopes = [{"scope": {"name": scope}, "spans": [span(row) for row in rows]}]
        yield msgspec.json.encode(
            {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": scopes}]}
        )


def grouped(client: Client, question: str, of_resource: Value) -> Iterator[tuple[Raw, str, list[Row]]]:
    """Rows that are sorted by their first two columns, resource and scope."""
    decode = attributes_of(of_resource)
    for (resource, scope), some in groupby(tuples(client.run(question)), itemgetter(0, 1)):
        rows = list(some)
        for begin in range(0, len(rows), _OF_A_LINE):
            yield decode(resource), scope, rows[begin : begin + _OF_A_LINE]


def as_text(_: str, text: str) -> str:
    """A :data:`Value`: what stands there."""
    return text


def attributes_of(value: Value) -> Callable[[str], Raw]:
    """A map as ClickHouse writes it in JSON → OTLP/JSON's list of attributes. Raises `StoreError`."""
    kept: dict[str, Raw] = {}

    def decode(text: str) -> Raw:
        found = kept.get(text)
        if found is None:
            if len(kept) >= _MOST_KEPT:
                kept.clear()
            given = _decoded(text, dict[str, str])
            listed = [{"key": key, "value": _any_value(value(key, each))} for key, each in given.items()]
            found = kept[text] = Raw(msgspec.json.encode(listed))
        return found

    return decode


def _any_value(found: Any) -> dict[str, Any]:
    match found:
        case bool():
            return {"boolValue": found}
        case int():
            return {"intValue": found}
        case float():
            return {"doubleValue": found}
        case list():
            return {"arrayValue": {"values": [_any_value(str(each)) for each in found]}}
        case _:
            return {"stringValue": found}


def _decoded(text: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise StoreError(f"ClickHouse wrote no JSON of a span's attributes: {error}") from error
