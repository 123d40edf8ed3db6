"""Lines of OTLP/JSON → a batch: what the page reads, in columns. Pure.

A batch needs no other: it has tables of its own, which the page joins. So files of any size are read in pieces of
bounded memory, and what a growing file got since the last look is one more batch.

Columns are base64 of little-endian numbers behind the letter of their type, ``I`` uint32, ``B`` uint8, ``d``
float64: ``{"start": "dAAAAAAAA8D8="}``. Spans are rows. A span's attributes are a *set* (spans of equal calls share
one), a set is a run of *pairs* (``set_end[i]`` is where set i ends), a pair a key and a value. Times are nanoseconds
after ``base``, so that doubles hold them exactly for a hundred days.
"""

from __future__ import annotations

import base64
import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np

from otelgpu.engine.names import SELF_SCOPE
from otelgpu.otlp_json import messages
from otelgpu.otlp_json.reader import (
    LINES,
    METRICS,
    RESOURCES,
    SPANS,
    Reader,
    Unreadable,
    double,
    identity,
    int64,
    key_values,
    time_ns,
)
from otelgpu.view.shown import shown_histograms

LOSSES: Final = "otelgpu.losses"
_NO_SPAN: Final = bytes(8)
_DELTA: Final = 1

EXACT: Final = 1 << 53
"""Integers up to here are the same number in JavaScript."""

Entry = TypeVar("Entry")
Value = str | int | float | bool | list[Any] | dict[str, Any]
"""As the page has it: JSON, and ``{"$": text}`` for what JavaScript's numbers do not hold."""

_SPAN_COLUMNS: Final = {
    **dict.fromkeys(("start", "duration"), "d"),
    **dict.fromkeys(("trace", "name", "message", "scope", "resource", "set"), "I"),
    **dict.fromkeys(("kind", "status"), "B"),
}
_LINK_COLUMNS: Final = {"span": "I", "trace": "I", "set": "I"}
_EVENT_COLUMNS: Final = {"span": "I", "time": "d", "name": "I", "set": "I"}


class _Table(Generic[Entry]):
    """Numbers entries by their first use."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._codes: dict[Entry, int] = {}

    def code(self, entry: Entry) -> int:
        code = self._codes.get(entry)
        if code is None:
            code = self._codes[entry] = len(self.entries)
            self.entries.append(entry)
        return code


class Batch:
    """Takes lines in their order, then gives the columns. ``histograms``: metrics that the page shows as such."""

    def __init__(self, reader: Reader, histograms: Collection[str] | None = None) -> None:
        self._reader = reader
        self._histograms = shown_histograms() if histograms is None else histograms
        self._strings = _Table[str]()
        self._traces = _Table[bytes]()
        self._resources = _Table[bytes]()
        self._resource_attributes: list[list[tuple[str, Value]]] = []
        self._pairs = _Table[tuple[int, str]]()
        self._sets = _Table[tuple[int, ...]]()
        self._raw_sets: dict[bytes, int] = {}
        self._pair_values: list[Value] = []
        self._base: int | None = None
        self._span = {name: array(kind) for name, kind in _SPAN_COLUMNS.items()}
        self._link = {name: array(kind) for name, kind in _LINK_COLUMNS.items()}
        self._event = {name: array(kind) for name, kind in _EVENT_COLUMNS.items()}
        self._span_ids, self._parent_ids, self._link_ids = bytearray(), bytearray(), bytearray()
        self._dropped: list[tuple[int, str, int]] = []
        self._series: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._counters: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._span["start"])

    def take(self, lines: Iterable[bytes]) -> None:
        """Read lines; what is not OTLP/JSON is counted."""
        for document in self._reader.documents(lines):
            self._counters["lines"] += 1
            for of_resource in document.resource_spans:
                resource = self._resource(of_resource.resource)
                for of_scope in of_resource.scope_spans:
                    scope = self._strings.code(of_scope.scope.name)
                    for span in self._reader.spans(of_scope):
                        try:
                            self._add(resource, scope, span)
                        except Unreadable as error:
                            self._reader.skip(SPANS, error)
            for metrics in document.resource_metrics:
                resource = self._resource(metrics.resource)
                for of_metrics in metrics.scope_metrics:
                    for metric in self._reader.metrics(of_metrics):
                        self._measure(resource, of_metrics.scope.name, metric)

    def take_last(self, line: bytes) -> None:
        """A line at the end of a file, which may be cut off within it."""
        counts = self._reader.skips.counts
        before = counts[LINES]
        self.take([line])
        if counts[LINES] > before:
            counts[LINES] = before
            self._counters["line_unfinished"] += 1

    def count(self, name: str, amount: int = 1) -> None:
        """Say that something could not be shown."""
        self._counters[name] += amount

    def columns(self) -> dict[str, Any]:
        """The batch as JSON."""
        ends = np.cumsum([len(members) for members in self._sets.entries], dtype=np.uint32)
        members = [pair for of_set in self._sets.entries for pair in of_set]
        return {
            "base": str(self._base or 0),
            "strings": self._strings.entries,
            "traces": [trace.hex() for trace in self._traces.entries],
            "resources": self._resource_attributes,
            "keys": packed(array("I", (key for key, _ in self._pairs.entries))),
            "values": self._pair_values,
            "set_end": packed(array("I", ends.tolist())),
            "set_pair": packed(array("I", members)),
            "spans": {name: packed(column) for name, column in self._span.items()}
            | {"id": packed(array("B", self._span_ids)), "parent": packed(array("B", self._parent_ids))},
            "links": {name: packed(column) for name, column in self._link.items()}
            | {"id": packed(array("B", self._link_ids))},
            "events": {name: packed(column) for name, column in self._event.items()},
            "dropped": self._dropped,
            "series": list(self._series.values()),
            "counters": dict(self._counters + self._reader.skips.counts),
        }

    def _add(self, resource: int, scope: int, span: messages.Span) -> None:
        # Everything that can fail comes first: a row is added whole or not at all.
        trace_id, span_id = identity(span.trace_id, 16), identity(span.span_id, 8)
        parent = identity(span.parent_span_id, 8) if span.parent_span_id else _NO_SPAN
        start, end = time_ns(span.start_time_unix_nano), time_ns(span.end_time_unix_nano)
        attributes = self._set(span.attributes)
        links = [
            (identity(link.trace_id, 16), identity(link.span_id, 8), self._set(link.attributes))
            for link in span.links
        ]
        events = [
            (time_ns(each.time_unix_nano), self._strings.code(each.name), self._set(each.attributes))
            for each in span.events
        ]
        if self._base is None:
            self._base = start
        if end < start:
            self._counters["spans_end_before_start"] += 1
        row = len(self)
        for name, value in (
            ("start", start - self._base),
            ("duration", max(end - start, 0)),
            ("trace", self._traces.code(trace_id)),
            ("name", self._strings.code(span.name)),
            ("message", self._strings.code(span.status.message)),
            ("scope", scope),
            ("resource", resource),
            ("set", attributes),
            ("kind", span.kind if 0 <= span.kind <= 5 else 0),
            ("status", span.status.code if 0 <= span.status.code <= 2 else 0),
        ):
            self._span[name].append(value)
        self._span_ids += span_id
        self._parent_ids += parent
        for trace, target, of_link in links:
            self._append(self._link, span=row, trace=self._traces.code(trace), set=of_link)
            self._link_ids += target
        for time, code, of_event in events:
            self._append(self._event, span=row, time=time - self._base, name=code, set=of_event)
        for what, dropped in (
            ("attributes", span.dropped_attributes_count),
            ("links", span.dropped_links_count),
            ("events", span.dropped_events_count),
        ):
            if dropped > 0:
                self._dropped.append((row, what, dropped))

    def _append(self, columns: dict[str, array[Any]], **values: int) -> None:
        for name, value in values.items():
            columns[name].append(value)

    def _resource(self, resource: messages.Resource) -> int:
        raw = bytes(resource.attributes)
        code = self._resources.code(raw)
        if code == len(self._resource_attributes):
            try:
                self._resource_attributes.append(_attributes(raw))
            except Unreadable as error:
                self._resource_attributes.append([])
                self._reader.skip(RESOURCES, error)
        return code

    def _set(self, attributes: msgspec.Raw) -> int:
        """The number of a set of attributes. The same text is decoded once. Raises `Unreadable`."""
        raw = bytes(attributes)
        code = self._raw_sets.get(raw)
        if code is None:
            members = []
            for key, value in _attributes(raw):
                pair = self._pairs.code((self._strings.code(key), msgspec.json.encode(value).decode()))
                if pair == len(self._pair_values):
                    self._pair_values.append(value)
                members.append(pair)
            code = self._raw_sets[raw] = self._sets.code(tuple(members))
        return code

    def _measure(self, resource: int, scope: str, metric: messages.Metric) -> None:
        try:
            if metric.sum is not None and metric.name == LOSSES and scope == SELF_SCOPE:
                for point in metric.sum.data_points:
                    value = point.as_int if point.as_int is not None else point.as_double
                    self._keep(
                        resource,
                        metric.name,
                        point,
                        metric.sum,
                        {"value": _number_or_text(double(value or 0))},
                    )
            elif metric.histogram is not None and metric.name in self._histograms:
                for point in metric.histogram.data_points:
                    counts = [int64(count) for count in point.bucket_counts]
                    if len(counts) != len(point.explicit_bounds) + 1:
                        raise Unreadable("a histogram has one count more than bounds")
                    self._keep(
                        resource,
                        metric.name,
                        point,
                        metric.histogram,
                        {"counts": counts, "bounds": point.explicit_bounds},
                    )
        except Unreadable as error:
            self._reader.skip(METRICS, error)

    def _keep(
        self,
        resource: int,
        name: str,
        point: messages.Point,
        points: messages.Points,
        reported: dict[str, Any],
    ) -> None:
        """The last value of a cumulative series; every one of the others, which are of separate times."""
        is_delta = points.aggregation_temporality == _DELTA
        start, time = time_ns(point.start_time_unix_nano), time_ns(point.time_unix_nano)
        key = (resource, name, bytes(point.attributes), start, time if is_delta else 0)
        self._series[key] = {
            "name": name,
            "resource": resource,
            "attributes": dict(_attributes(point.attributes)),
            "start": str(start),
            "time": str(time),
            "delta": is_delta,
            **reported,
        }


def packed(column: array[Any]) -> str:
    """A column as text; the page's ``unpack`` is the other way."""
    return (
        column.typecode
        + base64.b64encode(np.asarray(column).astype(_LITTLE[column.typecode]).tobytes()).decode()
    )


_LITTLE: Final = {"I": "<u4", "B": "u1", "d": "<f8"}


def _attributes(raw: bytes | msgspec.Raw) -> list[tuple[str, Value]]:
    """Keys and values for the page. Raises `Unreadable`."""
    try:
        return [(each.key, _shown(each.value)) for each in key_values(raw)]
    except RecursionError as error:
        raise Unreadable(str(error)) from error


def _shown(value: messages.AnyValue) -> Value:
    if value.string_value is not None:
        return value.string_value
    if value.bool_value is not None:
        return value.bool_value
    if value.int_value is not None:
        number = int64(value.int_value)
        return number if -EXACT <= number <= EXACT else {"$": str(number)}
    if value.double_value is not None:
        return _number_or_text(double(value.double_value))
    if value.array_value is not None:
        return [_shown(each) for each in value.array_value.values]
    if value.kvlist_value is not None:
        return {"$": str({each.key: _shown(each.value) for each in value.kvlist_value.values})}
    return {"$": "" if value.bytes_value is None else f"{value.bytes_value} (base64)"}


def _number_or_text(number: float) -> Value:
    """A double, which JSON holds unless it is infinite or not a number."""
    return number if math.isfinite(number) else {"$": str(number)}
