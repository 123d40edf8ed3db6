"""OTLP/JSON lines in a file, as the Collector's file exporter writes them.

Each line is one ``TracesData``, ``MetricsData`` or ``ProfilesData`` (:mod:`otelgpu.export.profile_lines`): ids in lower
hex, 64-bit integers as decimal strings, enums as numbers, lowerCamelCase keys, defaults left out save ``resource``,
``scope``, ``status`` and ``value``, which the Collector always writes. Doubles that JSON lacks are "NaN", "Infinity",
"-Infinity".

Source: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding, ../otel/protocol/file-exporter/, and
the Collector's pdata/internal/generated_proto_span.go for what is left out.
"""

from __future__ import annotations

import base64
import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from otelgpu import __version__
from otelgpu.export.base import ExportError, deliveries_of
from otelgpu.export.protobuf import plain, utf8
from otelgpu.export.span_links import link_values
from otelgpu.kernel.output_files import open_output
from otelgpu.model.resource import AttributeValue, Resource
from otelgpu.model.spans import Attribute, Links, SpanColumns, Text
from otelgpu.model.vitals import Delivery
from otelgpu.signals import names

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    from otelgpu.model.profiles import ProfileColumns

SPANS_PER_LINE = 2048
SETTLED_S = 5.0
"""How long nothing may fail before it is said that writing works again: a full disk still takes short lines."""

_log = logging.getLogger("otelgpu.export")
_encode = msgspec.json.Encoder().encode

Json = dict[str, Any]


def clean(text: str) -> str:
    """``text`` without what UTF-8 cannot carry; the same replacement as in the protobuf encoding."""
    return utf8(text).decode()


def json_value(value: AttributeValue) -> Json:
    """An AnyValue."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str((value + 2**63) % 2**64 - 2**63)}
    if isinstance(value, float):
        return {"doubleValue": _double(value)}
    if isinstance(value, str):
        return {"stringValue": clean(value)}
    values = [json_value(entry) for entry in value]
    return {"arrayValue": {"values": values} if values else {}}


def json_attribute(key: str, value: AttributeValue) -> Json:
    """A KeyValue."""
    return {"key": clean(key), "value": json_value(value)}


def _double(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _fragment(field: str, value: Any) -> str:
    """``,"field":value`` as JSON text."""
    return f',"{field}":{_encode(value).decode()}'


def _attribute_column(attribute: Attribute, rows: slice) -> list[str]:
    """One KeyValue as JSON text per row, "" where it is missing. Text is encoded once per table entry."""
    key, values = attribute.key, attribute.values
    column: list[str]
    if isinstance(values, Text):
        codes = values.codes[rows].tolist()
        there = attribute.present[rows].tolist() if attribute.present is not None else repeat(True)
        used = {code for code, present in zip(codes, there, strict=False) if present}
        known = {code: _encode(json_attribute(key, values.table[code])).decode() for code in used}
        column = [known.get(code, "") for code in codes]
    else:
        column = _number_column(key, values[rows])
    if attribute.present is not None:
        present = attribute.present[rows].tolist()
        column = [value if there else "" for value, there in zip(column, present, strict=True)]
    return column


def _number_column(key: str, values: npt.NDArray[Any]) -> list[str]:
    head = f'{{"key":{_encode(clean(key)).decode()},"value":'
    if values.dtype.kind == "b":
        words = ["true" if value else "false" for value in values.tolist()]
        return [f'{head}{{"boolValue":{word}}}}}' for word in words]
    if values.dtype.kind == "f":
        doubles = [_encode(_double(value)).decode() for value in values.tolist()]
        return [f'{head}{{"doubleValue":{value}}}}}' for value in doubles]
    if values.dtype.kind == "u":
        values = values.astype(np.uint64).view(np.int64)  # wraps, as the protobuf encoding does
    return [f'{head}{{"intValue":"{value}"}}}}' for value in values.tolist()]


def _text_column(field: str, text: Text | None, rows: slice) -> Iterator[str]:
    """``,"field":"…"`` per row, "" for empty text."""
    if text is None:
        return repeat("")
    codes = text.codes[rows].tolist()
    known = {code: plain(text.table[code]) for code in set(codes)}
    shown = {code: _fragment(field, clean(entry)) if entry else "" for code, entry in known.items()}
    return (shown[code] for code in codes)


def _status_column(columns: SpanColumns, rows: slice) -> Iterator[str]:
    messages = _text_column("message", columns.status_message, rows)
    for code, message in zip(columns.status[rows].tolist(), messages, strict=False):
        fields = message + (f',"code":{code}' if code else "")
        yield f"{{{fields[1:]}}}"


def _link_column(links: Links | None, spans: int, rows: slice) -> Iterator[str]:
    """``,"links":[…],"droppedLinksCount":n`` per row, "" where a span has none."""
    if links is None:
        return repeat("")
    shown: dict[int, list[Json]] = {}
    columns = [(clean(each.key), link_values(each, len(links.span))) for each in links.attributes]
    ids = zip(_hex(links.trace_id, 16), _hex(links.span_id, 8), links.flags.tolist(), strict=True)
    for row, (span, (trace_id, span_id, flags)) in enumerate(zip(links.span.tolist(), ids, strict=True)):
        link: Json = {"traceId": trace_id, "spanId": span_id}
        attributes = [
            json_attribute(key, value) for key, values in columns if (value := values[row]) is not None
        ]
        if attributes:
            link["attributes"] = attributes
        if flags:
            link["flags"] = flags
        shown.setdefault(span, []).append(link)
    dropped = links.dropped.tolist() if links.dropped is not None else [0] * spans
    return (
        (_fragment("links", shown[row]) if row in shown else "")
        + (_fragment("droppedLinksCount", dropped[row]) if dropped[row] else "")
        for row in range(*rows.indices(spans))
    )


def json_spans(columns: SpanColumns, rows: slice) -> list[str]:
    """``Span`` objects of some rows as JSON text, keys in the Collector's order."""
    parents = _hex(columns.parent_span_id[rows], 8)
    attributes = [_attribute_column(attribute, rows) for attribute in columns.attributes]
    joined = (
        (",".join(filter(None, row)) for row in zip(*attributes, strict=True)) if attributes else repeat("")
    )
    return [
        f'{{"traceId":"{trace_id}","spanId":"{span_id}"{state}{parent}{flags}{name},"kind":{columns.kind:d}'
        f',"startTimeUnixNano":"{start}","endTimeUnixNano":"{end}"{values}{links},"status":{status}}}'
        for trace_id, span_id, state, parent, flags, name, start, end, values, links, status in zip(
            _hex(columns.trace_id[rows], 16),
            _hex(columns.span_id[rows], 8),
            _text_column("traceState", columns.trace_state, rows),
            ("" if parent == "0000000000000000" else f',"parentSpanId":"{parent}"' for parent in parents),
            (f',"flags":{flags}' if flags else "" for flags in columns.flags[rows].tolist()),
            _text_column("name", columns.name, rows),
            columns.start_unix_ns[rows].tolist(),
            columns.end_unix_ns[rows].tolist(),
            (f',"attributes":[{values}]' if values else "" for values in joined),
            _link_column(columns.links, len(columns), rows),
            _status_column(columns, rows),
            strict=False,  # a column that is the same for all has no end
        )
    ]


def _hex(ids: npt.NDArray[np.uint8], width: int) -> list[str]:
    text = np.ascontiguousarray(ids).tobytes().hex()
    return [text[i : i + 2 * width] for i in range(0, len(text), 2 * width)]


def json_resource(resource: Resource) -> Json:
    """A ``Resource``."""
    attributes = [json_attribute(key, value) for key, value in resource.attributes]
    return {"attributes": attributes} if attributes else {}


def span_lines(columns: SpanColumns) -> Iterator[tuple[bytes, int]]:
    """Lines of OTLP/JSON and how many spans each holds, at most :data:`SPANS_PER_LINE`."""
    resource = _encode(json_resource(columns.resource)).decode()
    scope = _encode({"name": clean(columns.scope), "version": __version__}).decode()
    schema = f'"schemaUrl":"{names.SCHEMA_URL}"'
    head = f'{{"resourceSpans":[{{"resource":{resource},{schema},"scopeSpans":[{{"scope":{scope},{schema},"spans":['
    for first in range(0, len(columns), SPANS_PER_LINE):
        spans = json_spans(columns, slice(first, first + SPANS_PER_LINE))
        body = ",".join(spans)
        yield f"{head}{body}]}}]}}]}}\n".encode(), len(spans)


def metrics_line(data: MetricsData) -> bytes:
    """One line of OTLP/JSON; exemplars' ids in hex."""
    from google.protobuf.json_format import MessageToDict

    message = MessageToDict(data, use_integers_for_enums=True)
    _hex_ids(message)
    return _encode(message) + b"\n"


def _hex_ids(node: Any) -> None:
    """``traceId`` and ``spanId`` from base64 (protobuf's JSON mapping) to hex (OTLP's), in place."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("traceId", "spanId") and isinstance(value, str):
                node[key] = base64.b64decode(value).hex()
            else:
                _hex_ids(value)
    elif isinstance(node, list):
        for entry in node:
            _hex_ids(entry)


class FileExporter:
    """Appends lines to a file; an :class:`~otelgpu.export.base.Exporter`.

    Lines are written at once and whole: nothing is queued. When the disk fails, the line is counted as lost
    ("write_failed"), cut off again if part of it was written, and the next one is tried.
    """

    def __init__(self, path: str) -> None:
        """Opens ``path`` for appending. Raises :class:`ExportError` when that is not possible."""
        self._path = path
        try:
            self._fd: int | None = open_output(path, 0o644, append=True)
        except OSError as error:
            hint = "Give a file in a directory that exists and may be written to."
            raise ExportError(f"cannot write to {path!r}: {error.strerror}", hint) from error
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._failing_since: float | None = None
        self._failed_at = 0.0  # last
        self._told = False  # that it fails
        self._torn = False  # the file ends within a line

    def export_spans(self, batches: Iterable[SpanColumns]) -> None:
        """See :class:`~otelgpu.export.base.Exporter`."""
        for columns in batches:
            left = len(columns)
            try:
                for line, items in span_lines(columns):
                    self._write("spans", line, items)
                    left -= items
            except (ValueError, IndexError):
                _log.exception("spans that break their contract were dropped")
                with self._lock:
                    self._counts["spans_given"] += left
                    self._counts["spans_lost_unencodable"] += left

    def export_metrics(self, data: MetricsData, items: int) -> None:
        """See :class:`~otelgpu.export.base.Exporter`."""
        if data.resource_metrics:
            self._write("points", metrics_line(data), items)

    def export_profiles(self, batches: Sequence[ProfileColumns]) -> None:
        """See :class:`~otelgpu.export.base.Exporter`."""
        from otelgpu.export.profile_lines import profile_lines  # most sessions have none

        for columns in batches:
            left = len(columns)
            try:
                for line, items in profile_lines(columns):
                    self._write("profiles", line, items)
                    left -= items
            except ValueError:
                _log.exception("profiles that break their contract were dropped")
                with self._lock:
                    self._counts["profiles_given"] += left
                    self._counts["profiles_lost_unencodable"] += left

    def flush(self, deadline_s: float) -> bool:
        """Nothing is ever queued."""
        return True

    def close(self, deadline_s: float) -> None:
        """Close the file; what comes later is counted as lost ("shutdown")."""
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def stats(self) -> Mapping[str, int]:
        """See :class:`~otelgpu.export.base.Exporter`."""
        keys = ("given", "accepted", "queued", "lost_write_failed", "lost_shutdown", "lost_unencodable")
        with self._lock:
            told = ("spans", "points", *(("profiles",) if self._counts["profiles_given"] else ()))
            return {f"{items}_{key}": self._counts[f"{items}_{key}"] for items in told for key in keys}

    def deliveries(self) -> Sequence[Delivery]:
        """See :class:`~otelgpu.export.base.Exporter`."""
        since = self._failing_since
        return deliveries_of("file", self.stats(), time.monotonic() - since if since is not None else 0.0)

    def _write(self, kind: str, line: bytes, items: int) -> None:
        with self._lock:
            self._counts[f"{kind}_given"] += items
            if self._fd is None:
                self._counts[f"{kind}_lost_shutdown"] += items
                return
            try:
                self._append(self._fd, line)
            except OSError as error:
                self._counts[f"{kind}_lost_write_failed"] += items
                self._failed_at = time.monotonic()
                if self._failing_since is None:
                    self._failing_since = self._failed_at
                if not self._told:
                    self._told = True
                    _log.warning(
                        "cannot write to %s: %s; data is dropped until it works again", self._path, error
                    )
                return
            self._counts[f"{kind}_accepted"] += items
            self._failing_since = None
            if self._told and time.monotonic() - self._failed_at >= SETTLED_S:
                self._told = False
                _log.warning("writing to %s works again", self._path)

    def _append(self, fd: int, line: bytes) -> None:
        whole = b"\n" + line if self._torn else line
        rest = memoryview(whole)
        try:
            while rest:
                rest = rest[os.write(fd, rest) :]
        except OSError:
            written = len(whole) - len(rest)
            if written:
                self._torn = not _cut(fd, written)
            raise
        self._torn = False


def _cut(fd: int, size: int) -> bool:
    """Take the last ``size`` bytes off the file; whether that worked."""
    try:
        os.ftruncate(fd, os.fstat(fd).st_size - size)
    except OSError:
        return False
    return True
