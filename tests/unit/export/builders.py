"""Valid spans in columns for the export tests, and the same spans as protobuf messages made the plain way."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status, TracesData

from otelgpu import __version__
from otelgpu.model.resource import Resource, resource
from otelgpu.model.spans import Attribute, Links, SpanColumns, SpanKind, Text


def spans(rows: int, **columns: Any) -> SpanColumns:
    """``rows`` spans named "work" in one trace, children of one parent; any column can be given instead."""
    n = np.arange(1, rows + 1, dtype=np.uint64)
    made: dict[str, Any] = {
        "resource": resource({"service.name": "llm"}),
        "scope": "otelgpu.cuda",
        "kind": SpanKind.INTERNAL,
        "trace_id": np.tile(np.arange(16, dtype=np.uint8), (rows, 1)),
        "span_id": n.astype(">u8").view(np.uint8).reshape(-1, 8),
        "parent_span_id": np.full((rows, 8), 7, dtype=np.uint8),
        "trace_state": None,
        "flags": np.ones(rows, dtype=np.uint32),
        "start_unix_ns": n * np.uint64(1000),
        "end_unix_ns": n * np.uint64(1000) + np.uint64(500),
        "name": text(["work"] * rows),
        "status": np.zeros(rows, dtype=np.uint8),
        "status_message": None,
        "attributes": (),
    }
    return SpanColumns(**(made | columns))


def text(values: list[str | tuple[str, ...]]) -> Text:
    """A dictionary-coded column of these values."""
    table = tuple(dict.fromkeys(values))
    return Text(codes=np.array([table.index(value) for value in values], dtype=np.intp), table=table)


def some(values: list[Any], dtype: Any) -> tuple[Any, Any]:
    """A numeric column and its mask from a list in which None means absent."""
    present = np.array([value is not None for value in values])
    return np.array([0 if value is None else value for value in values], dtype=dtype), present


def any_value(value: Any) -> AnyValue:
    """An AnyValue, by opentelemetry-proto's own classes."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=(value + 2**63) % 2**64 - 2**63)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=valid(value))
    return AnyValue(array_value=ArrayValue(values=[any_value(entry) for entry in value]))


def valid(value: str) -> str:
    """What must become of text that is not valid Unicode."""
    return "".join("?" if "\ud800" <= c <= "\udfff" else c for c in value)


def span_messages(columns: SpanColumns) -> list[Span]:
    """Each row as a ``Span``."""
    return [_span(columns, row) for row in range(len(columns))]


def _span(c: SpanColumns, row: int) -> Span:
    parent = c.parent_span_id[row].tobytes()
    message = _entry(c.status_message, row)
    code = int(c.status[row])
    return Span(
        trace_id=c.trace_id[row].tobytes(),
        span_id=c.span_id[row].tobytes(),
        parent_span_id=b"" if parent == bytes(8) else parent,
        trace_state=_entry(c.trace_state, row),
        flags=int(c.flags[row]),
        name=_entry(c.name, row),
        kind=int(c.kind),  # type: ignore[arg-type]
        start_time_unix_nano=int(c.start_unix_ns[row]),
        end_time_unix_nano=int(c.end_unix_ns[row]),
        status=Status(code=code, message=message) if code or message else None,  # type: ignore[arg-type]
        attributes=[
            KeyValue(key=valid(a.key), value=any_value(_value(a, row)))
            for a in c.attributes
            if a.present is None or a.present[row]
        ],
        links=[] if c.links is None else _links(c.links, row),
        dropped_links_count=0 if c.links is None or c.links.dropped is None else int(c.links.dropped[row]),
    )


def _links(links: Links, row: int) -> list[Span.Link]:
    return [
        Span.Link(
            trace_id=links.trace_id[i].tobytes(),
            span_id=links.span_id[i].tobytes(),
            flags=int(links.flags[i]),
            attributes=[
                KeyValue(key=valid(a.key), value=any_value(_value(a, i)))
                for a in links.attributes
                if a.present is None or a.present[i]
            ],
        )
        for i in np.flatnonzero(links.span == row).tolist()
    ]


def _entry(column: Text | None, row: int) -> str:
    return "" if column is None else valid(str(column.table[column.codes[row]]))


def _value(attribute: Attribute, row: int) -> Any:
    values = attribute.values
    return values.table[values.codes[row]] if isinstance(values, Text) else values[row].item()


def resource_spans(columns: SpanColumns) -> ResourceSpans:
    """One batch as a ``ResourceSpans``."""
    attributes = [KeyValue(key=valid(k), value=any_value(v)) for k, v in columns.resource.attributes]
    scope = InstrumentationScope(name=valid(columns.scope), version=__version__)
    scope_spans = ScopeSpans(scope=scope, spans=span_messages(columns))
    return ResourceSpans(resource=ResourceMessage(attributes=attributes), scope_spans=[scope_spans])


def by_identity(data: TracesData) -> dict[tuple[bytes, bytes], list[bytes]]:
    """What matters, without order: (resource, scope) to its spans, attributes sorted by key."""
    found: dict[tuple[bytes, bytes], list[bytes]] = {}
    for part in data.resource_spans:
        for scope in part.scope_spans:
            key = part.resource.SerializeToString(), scope.scope.SerializeToString()
            found.setdefault(key, []).extend(canonical(span) for span in scope.spans)
    return {key: sorted(spans) for key, spans in found.items() if spans}


def canonical(span: Span) -> bytes:
    """Serialized by protobuf with attributes in key order: the order of fields on the wire is free."""
    copy = Span()
    copy.CopyFrom(span)
    if copy.status == Status():
        copy.ClearField("status")  # an empty status says the same as none
    ordered = sorted(copy.attributes, key=lambda a: (a.key, a.value.SerializeToString()))
    del copy.attributes[:]
    copy.attributes.extend(ordered)
    return copy.SerializeToString(deterministic=True)


# Any text, lone surrogates included; any number.
any_text = st.text(st.characters(), max_size=12)
entries = any_text | st.lists(any_text, max_size=3).map(tuple)
attribute_values = (
    any_text
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.lists(any_text, max_size=3).map(tuple)
)
resources = st.dictionaries(any_text, attribute_values, max_size=3).map(resource)


@st.composite
def text_columns(draw: st.DrawFn, rows: int, values: st.SearchStrategy[Any]) -> Text:
    """A text column, with unused table entries too."""
    table = draw(st.lists(values, min_size=1, max_size=5))
    return Text(
        codes=draw(hnp.arrays(np.intp, rows, elements=st.integers(0, len(table) - 1))), table=tuple(table)
    )


@st.composite
def attributes(draw: st.DrawFn, rows: int, key: str) -> Attribute:
    """An attribute of any type, on all spans or some."""
    numeric = {
        "i8": st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 300),
        "u8": st.integers(0, 2**64 - 1) | st.integers(0, 2**28),
        "f8": st.floats(allow_nan=False),
        "?": st.booleans(),
    }
    kind = draw(st.sampled_from([*numeric, "text"]))
    values = (
        draw(text_columns(rows, entries))
        if kind == "text"
        else draw(hnp.arrays(np.dtype(kind), rows, elements=numeric[kind]))
    )
    masked = draw(st.booleans())
    present = draw(hnp.arrays(np.bool_, rows)) if masked else None
    return Attribute(key=key, values=values, present=present)


@st.composite
def links_of(draw: st.DrawFn, rows: int) -> Links:
    """Any links of a batch, spans without and with several included."""
    of = draw(st.lists(st.integers(0, rows - 1), max_size=8)) if rows else []
    count = len(of)
    keys = draw(st.lists(any_text, max_size=2, unique=True))
    return Links(
        span=np.array(sorted(of), dtype=np.intp),
        trace_id=draw(hnp.arrays(np.uint8, (count, 16))),
        span_id=draw(hnp.arrays(np.uint8, (count, 8))),
        flags=draw(hnp.arrays(np.uint32, count)),
        attributes=tuple(draw(attributes(count, key)) for key in keys),
        dropped=draw(st.none() | hnp.arrays(np.uint32, rows)),
    )


@st.composite
def span_batches(draw: st.DrawFn, resource: Resource | None = None) -> SpanColumns:
    """Any batch, empty ones included."""
    rows = draw(st.integers(0, 12))
    parents = draw(hnp.arrays(np.uint8, (rows, 8), elements=st.sampled_from([0, 0, 0, 1, 255])))
    times = hnp.arrays(np.uint64, rows, elements=st.integers(0, 2**64 - 1))
    keys = draw(st.lists(any_text, max_size=4, unique=True))
    return spans(
        rows,
        resource=resource or draw(resources),
        scope=draw(any_text),
        kind=draw(st.sampled_from(SpanKind)),
        trace_id=draw(hnp.arrays(np.uint8, (rows, 16))),
        span_id=draw(hnp.arrays(np.uint8, (rows, 8))),
        parent_span_id=parents,
        trace_state=draw(st.none() | text_columns(rows, any_text)),
        flags=draw(hnp.arrays(np.uint32, rows)),
        start_unix_ns=draw(times),
        end_unix_ns=draw(times),
        name=draw(text_columns(rows, any_text)),
        status=draw(hnp.arrays(np.uint8, rows, elements=st.integers(0, 2))),
        status_message=draw(st.none() | text_columns(rows, any_text)),
        links=draw(st.none() | links_of(rows)),
        attributes=tuple(draw(attributes(rows, key)) for key in keys),
    )
