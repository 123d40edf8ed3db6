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
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np

from otelgpu.signals.names import SELF_SCOPE
from otelgpu.view import documents
from otelgpu.view.documents import Reader, Unreadable

LOSSES: Final = "otelgpu.losses"
HISTOGRAMS: Final = frozenset(
    {
        "gen_ai.server.time_to_first_token",
        "gen_ai.server.time_per_output_token",
        "otelgpu.gen_ai.server.time_between_chunks",
    }
)
"""Metrics that the page shows; others are passed over."""

_LATEST: Final = 1 << 63  # nanoseconds: in 2262
_NO_SPAN: Final = bytes(8)
_DELTA: Final = 1

Entry = TypeVar("Entry")


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
    """Takes lines in their order, then gives the columns."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._strings = _Table[str]()
        self._traces = _Table[bytes]()
        self._resources = _Table[bytes]()
        self._resource_attributes: list[list[tuple[str, documents.Value]]] = []
        self._pairs = _Table[tuple[int, str]]()
        self._sets = _Table[tuple[int, ...]]()
        self._raw_sets: dict[bytes, int] = {}
        self._pair_values: list[documents.Value] = []
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
        for line in lines:
            if not line.strip():
                continue
            try:
                document = self._reader.document(line)
            except Unreadable:
                self._counters["lines_unreadable"] += 1
                continue
            self._counters["lines"] += 1
            for of_resource in document.resource_spans:
                resource = self._resource(of_resource.resource)
                for of_scope in of_resource.scope_spans:
                    scope = self._strings.code(of_scope.scope.name)
                    for raw in of_scope.spans:
                        try:
                            self._add(resource, scope, self._reader.span(raw))
                        except (Unreadable, ValueError):
                            self._counters["spans_unreadable"] += 1
            for metrics in document.resource_metrics:
                resource = self._resource(metrics.resource)
                for of_metrics in metrics.scope_metrics:
                    for raw in of_metrics.metrics:
                        self._measure(resource, of_metrics.scope.name, raw)

    def take_last(self, line: bytes) -> None:
        """A line at the end of a file, which may be cut off within it."""
        before = self._counters["lines_unreadable"]
        self.take([line])
        if self._counters["lines_unreadable"] > before:
            self._counters["lines_unreadable"] = before
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
            "counters": dict(+self._counters),
        }

    def _add(self, resource: int, scope: int, span: documents.Span) -> None:
        # Everything that can fail comes first: a row is added whole or not at all.
        trace_id, span_id = _identity(span.trace_id, 16), _identity(span.span_id, 8)
        parent = _identity(span.parent_span_id, 8) if span.parent_span_id else _NO_SPAN
        start, end = _time(span.start_time_unix_nano), _time(span.end_time_unix_nano)
        attributes = self._set(span.attributes)
        links = [
            (_identity(link.trace_id, 16), _identity(link.span_id, 8), self._set(link.attributes))
            for link in span.links
        ]
        events = [
            (_time(each.time_unix_nano), self._strings.code(each.name), self._set(each.attributes))
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

    def _resource(self, resource: documents.Resource) -> int:
        raw = bytes(resource.attributes)
        code = self._resources.code(raw)
        if code == len(self._resource_attributes):
            try:
                self._resource_attributes.append(self._reader.attributes(raw))
            except Unreadable:
                self._resource_attributes.append([])
                self._counters["resources_unreadable"] += 1
        return code

    def _set(self, attributes: msgspec.Raw) -> int:
        """The number of a set of attributes. The same text is decoded once. Raises `Unreadable`."""
        raw = bytes(attributes)
        code = self._raw_sets.get(raw)
        if code is None:
            members = []
            for key, value in self._reader.attributes(raw):
                pair = self._pairs.code((self._strings.code(key), msgspec.json.encode(value).decode()))
                if pair == len(self._pair_values):
                    self._pair_values.append(value)
                members.append(pair)
            code = self._raw_sets[raw] = self._sets.code(tuple(members))
        return code

    def _measure(self, resource: int, scope: str, raw: msgspec.Raw) -> None:
        try:
            metric = self._reader.metric(raw)
            if metric.sum is not None and metric.name == LOSSES and scope == SELF_SCOPE:
                for point in metric.sum.data_points:
                    value = point.as_int if point.as_int is not None else point.as_double
                    self._keep(
                        resource,
                        metric.name,
                        point,
                        metric.sum,
                        {"value": documents.number_or_text(float(value or 0))},
                    )
            elif metric.histogram is not None and metric.name in HISTOGRAMS:
                for point in metric.histogram.data_points:
                    counts = [int(count) for count in point.bucket_counts]
                    if len(counts) != len(point.explicit_bounds) + 1:
                        raise Unreadable("a histogram has one count more than bounds")
                    self._keep(
                        resource,
                        metric.name,
                        point,
                        metric.histogram,
                        {"counts": counts, "bounds": point.explicit_bounds},
                    )
        except (Unreadable, ValueError):
            self._counters["metrics_unreadable"] += 1

    def _keep(
        self,
        resource: int,
        name: str,
        point: documents.Point,
        points: documents.Points,
        told: dict[str, Any],
    ) -> None:
        """The last value of a cumulative series; every one of the others, which are of separate times."""
        is_delta = points.aggregation_temporality == _DELTA
        start, time = _time(point.start_time_unix_nano), _time(point.time_unix_nano)
        key = (resource, name, bytes(point.attributes), start, time if is_delta else 0)
        self._series[key] = {
            "name": name,
            "resource": resource,
            "attributes": dict(self._reader.attributes(bytes(point.attributes))),
            "start": str(start),
            "time": str(time),
            "delta": is_delta,
            **told,
        }


def packed(column: array[Any]) -> str:
    """A column as text; the page's ``unpack`` is the other way."""
    return (
        column.typecode
        + base64.b64encode(np.asarray(column).astype(_LITTLE[column.typecode]).tobytes()).decode()
    )


_LITTLE: Final = {"I": "<u4", "B": "u1", "d": "<f8"}


def _identity(text: str, width: int) -> bytes:
    identity = bytes.fromhex(text)
    if len(identity) != width:
        raise ValueError(text)
    return identity


def _time(text: int | str) -> int:
    time_ns = int(text)
    if not 0 <= time_ns < _LATEST:
        raise ValueError(text)
    return time_ns
