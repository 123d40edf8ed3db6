"""Writes OTLP/JSON lines, as the Collector's file exporter does. Pure.

In: columns of spans, or protobuf messages of metrics and profiles. Out: lines, each one ``TracesData``, ``MetricsData``
or ``ProfilesData``: ids in lower hex, 64-bit integers as decimal strings, enums as numbers, lowerCamelCase keys. Of
spans defaults are left out save ``resource``, ``scope``, ``status`` and ``value``, which the Collector always writes.
Doubles that JSON lacks are "NaN", "Infinity", "-Infinity".

Source: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding, ../otel/protocol/file-exporter/, and
the Collector's pdata/internal/generated_proto_span.go for what is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from otelgpu import __version__
from otelgpu.engine import names
from otelgpu.model.resource import AttributeValue, Resource
from otelgpu.model.spans import Attribute, Links, SpanColumns, Text, plain
from otelgpu.otlp_json.protobuf_messages import Json, json_double, json_message

if TYPE_CHECKING:
    from google.protobuf.message import Message

SPANS_PER_LINE: Final = 2048
BYTES_PER_LINE: Final = 2 << 20
"""Of spans: those of large batches have thousands of links. One that is larger has a line for itself."""

_encode = msgspec.json.Encoder().encode


def clean(text: str) -> str:
    """``text`` without what UTF-8 cannot carry; the same replacement as in the protobuf encoding."""
    return text.encode("utf-8", "replace").decode()


def json_value(value: AttributeValue) -> Json:
    """An AnyValue."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str((value + 2**63) % 2**64 - 2**63)}
    if isinstance(value, float):
        return {"doubleValue": json_double(value)}
    if isinstance(value, str):
        return {"stringValue": clean(value)}
    values = [json_value(entry) for entry in value]
    return {"arrayValue": {"values": values} if values else {}}


def json_attribute(key: str, value: AttributeValue) -> Json:
    """A KeyValue."""
    return {"key": clean(key), "value": json_value(value)}


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
        doubles = [_encode(json_double(value)).decode() for value in values.tolist()]
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
    columns = [(clean(each.key), each.rows(len(links.span))) for each in links.attributes]
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
    """Lines of OTLP/JSON and how many spans each holds, within :data:`SPANS_PER_LINE` and :data:`BYTES_PER_LINE`."""
    resource = _encode(json_resource(columns.resource)).decode()
    scope = _encode({"name": clean(columns.scope), "version": __version__}).decode()
    schema = f'"schemaUrl":"{names.SCHEMA_URL}"'
    head = f'{{"resourceSpans":[{{"resource":{resource},{schema},"scopeSpans":[{{"scope":{scope},{schema},"spans":['
    for first in range(0, len(columns), SPANS_PER_LINE):
        for spans in _fitting(json_spans(columns, slice(first, first + SPANS_PER_LINE))):
            body = ",".join(spans)
            yield f"{head}{body}]}}]}}]}}\n".encode(), len(spans)


def _fitting(spans: list[str]) -> Iterator[list[str]]:
    """The spans in order, in parts that are no larger than a line may be."""
    begin = size = 0
    for position, span in enumerate(spans):
        length = len(span) if span.isascii() else len(span.encode())
        if size + length > BYTES_PER_LINE and position > begin:
            yield spans[begin:position]
            begin, size = position, 0
        size += length
    yield spans[begin:]


def message_line(message: Message) -> bytes:
    """A ``MetricsData`` or ``ProfilesData`` as a line."""
    return _encode(json_message(message)) + b"\n"
