"""Requests, and one trace, out of the table of spans that the Collector's exporter fills.

In: an address that names the table. Out: the OTLP/JSON lines of :mod:`otelgpu.store.clickhouse.span_lines`, with at
least the spans that were asked for. How many rows a question may give is bounded; what is beyond is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from msgspec import Struct

from otelgpu.store.clickhouse.address import Address
from otelgpu.store.clickhouse.client import Client
from otelgpu.store.clickhouse.span_lines import (
    IS_ERROR,
    IS_EXCHANGE,
    MOST_REQUESTS,
    NOTHING,
    Cells,
    Value,
    are_spans,
    bounds,
    columns_of,
    newest,
    span_lines,
    spans,
    texts,
)
from otelgpu.store.files import StoreError
from otelgpu.store.queries import tuples
from otelgpu.store.row_checks import text_literal

MOST_SPANS: Final = 50_000
"""Of a trace."""
MOST_EVENTS, MOST_LINKS = 50, 20
"""Of a span, and spans that link to it."""
_LONGEST_TEXT: Final = 1024
"""Characters of an attribute of a request."""
_LATEST_S: Final = 9.2e9
_AROUND_S: Final = 86_400.0
"""What links to a span began within a day of it: other days' partitions are not looked through."""


class Requests(Struct, frozen=True, kw_only=True):
    """Which are asked for. Of texts a part is enough; times are of their beginnings, in Unix seconds.

    ``keys``: the attributes that are wanted. ``models``: those of them that name the model, the first that is there.
    """

    keys: Collection[str]
    models: Collection[str]
    role: str = ""  # server, client or any
    name: str = ""
    service: str = ""
    model: str = ""
    only_errors: bool = False
    least_s: float = 0.0
    begin_s: float = 0.0
    end_s: float = _LATEST_S


class StoredSpans:
    """One table. ``value``: what attributes were; ``limits``: what was left out, in sentences."""

    def __init__(self, address: Address, value: Value, limits: list[str]) -> None:
        """Raises `StoreError` where the server or the table is not there, or the table is of something else."""
        self._client, self._value, self._limits = Client(address), value, limits
        self._table = f"{address.database}.{address.table}"
        self._columns = columns_of(self._client, address, address.table)
        if not are_spans(self._columns):
            raise StoreError(
                f"{address.shown}: there are no spans: it is no table of the Collector's exporter",
                "the URL names it: …/DATABASE/otel_traces",
            )

    def requests(self, wanted: Requests) -> Iterator[bytes]:
        """The newest :data:`~otelgpu.store.clickhouse.span_lines.MOST_REQUESTS` of them. Raises `StoreError`."""
        condition = _condition(wanted)
        ((count,),) = tuples(
            self._client.run(f"SELECT count() AS requests FROM {self._table} WHERE {condition}")
        )
        if count > MOST_REQUESTS:
            self._limits.append(
                f"of {count} requests the newest {MOST_REQUESTS} were looked at: filter by time, name or least_seconds"
            )
        some = f"mapFilter((k, v) -> k IN ({texts(wanted.keys)}), SpanAttributes)"
        short = f"mapApply((k, v) -> (k, leftUTF8(v, {_LONGEST_TEXT})), {some})"
        found = newest(self._table, condition, MOST_REQUESTS)
        yield from self._lines(spans(found, "1 = 1", Cells(attributes=f"toJSONString({short})")))

    def trace(self, trace: str, span: str) -> Iterator[bytes]:
        """Spans of a trace, and what links to one of them, which alone has its attributes, events and links.

        Ids are in hex; ``span``: "" for none. Raises `StoreError`.
        """
        of_trace, is_chosen = f"TraceId = {text_literal(trace)}", f"SpanId = {text_literal(span)}"
        summed = f"""
            SELECT count() AS spans, minIf(toUnixTimestamp64Nano(Timestamp), {is_chosen}) AS begin_ns,
                countIf({is_chosen}) AS chosen
            FROM {self._table} WHERE {of_trace}
        """
        ((count, begin_ns, chosen),) = tuples(self._client.run(summed))
        if count > MOST_SPANS:
            self._limits.append(f"of {count} spans of the trace the first {MOST_SPANS} were looked at")
        order = f"{is_chosen} DESC, Timestamp"
        first = f"(SELECT * FROM {self._table} WHERE {of_trace} ORDER BY {order} LIMIT {MOST_SPANS})"
        yield from self._lines(spans(first, "1 = 1", self._details(is_chosen) if chosen else NOTHING))
        if chosen and self._has("Links"):
            yield from self._linking(trace, span, begin_ns * 1e-9)

    def named(self, traces: Collection[str], ids: Collection[str]) -> Iterator[bytes]:
        """Spans of these ids in these traces, without attributes. Raises `StoreError`."""
        condition = f"TraceId IN ({texts(traces)}) AND SpanId IN ({texts(ids)})"
        yield from self._lines(f"{spans(self._table, condition)} LIMIT {MOST_SPANS}")

    def _lines(self, question: str) -> Iterator[bytes]:
        return span_lines(self._client, question, self._value, self._value)

    def _linking(self, trace: str, span: str, at_s: float) -> Iterator[bytes]:
        leads = f"t = {text_literal(trace)} AND s = {text_literal(span)}"
        within = bounds("Timestamp", max(at_s - _AROUND_S, 0.0), min(at_s + _AROUND_S, _LATEST_S))
        condition = f"arrayExists((t, s) -> {leads}, Links.TraceId, Links.SpanId){within}"
        first = f"(SELECT * FROM {self._table} WHERE {condition} ORDER BY Timestamp LIMIT {MOST_LINKS})"
        mine = (
            f"arrayFilter((x, t, s) -> {leads}, Links.{name}, Links.TraceId, Links.SpanId)"
            for name in _OF_LINKS
        )
        yield from self._lines(spans(first, "1 = 1", Cells(links=_json(*mine))))

    def _details(self, condition: str) -> Cells:
        """Of the span that is so alone."""
        events, links = (
            [f"arraySlice({name}.{each}, 1, {most})" for each in lists]
            for name, lists, most in (("Events", _OF_EVENTS, MOST_EVENTS), ("Links", _OF_LINKS, MOST_LINKS))
        )
        times = f"arrayMap(x -> toString(toUnixTimestamp64Nano(x)), {events[0]})"
        said = _json(times, *events[1:]) if self._has("Events") else "'[]'"
        leading = _json(*links) if self._has("Links") else "'[]'"
        return Cells(
            attributes=f"if({condition}, toJSONString(SpanAttributes), '{{}}')",
            events=f"if({condition}, {said}, '[]')",
            links=f"if({condition}, {leading}, '[]')",
        )

    def _has(self, name: str) -> bool:
        """Whether it has this nested column, however it is kept."""
        return name in self._columns or f"{name}.Attributes" in self._columns


_OF_EVENTS: Final = ("Timestamp", "Name", "Attributes")
_OF_LINKS: Final = ("TraceId", "SpanId", "Attributes")


def _json(first: str, second: str, attributes: str) -> str:
    """Three lists, as :class:`~otelgpu.store.clickhouse.span_lines.Cells` has them."""
    return f"toJSONString(tuple({first}, {second}, arrayMap(x -> toJSONString(x), {attributes})))"


def _condition(wanted: Requests) -> str:
    given = [IS_EXCHANGE]
    if wanted.role:
        given.append(f"endsWith(lower(SpanKind), {text_literal(wanted.role)})")
    if wanted.only_errors:
        given.append(IS_ERROR)
    if wanted.least_s:
        given.append(f"Duration >= {int(wanted.least_s * 1e9)}")
    names = [f"nullIf(SpanAttributes[{text_literal(key)}], '')" for key in wanted.models]
    given += [
        f"position({cell}, {text_literal(part)}) > 0"
        for cell, part in (
            ("SpanName", wanted.name),
            ("ServiceName", wanted.service),
            (f"coalesce({', '.join(names)}, '')", wanted.model),
        )
        if part
    ]
    begin_s = min(wanted.begin_s, _LATEST_S) if wanted.begin_s else None
    end_s = wanted.end_s if wanted.end_s < _LATEST_S else None
    return " AND ".join(given) + bounds("Timestamp", begin_s, end_s)
