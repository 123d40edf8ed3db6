"""Columns of spans to OTLP protobuf bytes, with no Python statement per span. Pure.

In: :class:`~otelgpu.model.spans.SpanColumns`. Out: serialized ``ExportTraceServiceRequest`` messages
(opentelemetry/proto/collector/trace/v1/trace_service.proto). It must not look at what names mean.

How. In one batch, everything of a span that is not a number or an id (texts, which attributes are there,
status) takes few distinct forms: *layouts*. Protobuf fields may come in any order, so a span is written as::

    12 <len> | block: ids, times, flags, numbers every span has | optional: parent, numbers some have | texts

The block has one width and one form in the batch, so it is a numpy structured array whose columns are
filled at once. The rest is one byte template per layout. Templates are joined in span order into one
buffer, whose blocks and optional numbers are then stored through a one-byte-stride view of that buffer.

Integers are over-long varints of one width per column (1, 2, 4, 8 or 10 bytes, by the largest value):
valid protobuf (https://protobuf.dev/programming-guides/encoding/#varints), fixed in place. An unsigned value
above 2^63-1 has no OTLP form; it wraps to the int64 with the same bits. Text that is not valid Unicode (lone
surrogates) has each bad character replaced by "?".

Example: 50,000 launches under 200 kernel names give 200 templates, one (50,000,) block array, one join and
two scattered stores. Invariant: ``len(encode(rows)) == sum(width[layout[row]])``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat

import numpy as np
import numpy.typing as npt

from otelgpu import __version__
from otelgpu.export.base import Payload, Signal
from otelgpu.export.protobuf import (
    ANY_BOOL,
    ANY_DOUBLE,
    ANY_INT,
    KEY,
    VALUE,
    AnyArray,
    any_value,
    delimited,
    key_value,
    plain,
    utf8,
    varint,
    varint_width,
    varint_words,
)
from otelgpu.model.resource import Resource
from otelgpu.model.spans import Attribute, Bytes, Codes, SpanColumns, Text
from otelgpu.signals.names import SCHEMA_URL

DEFAULT_MAX_BYTES = 2 * 1024 * 1024
"""Half of the 4 MiB that OTLP servers take in one gRPC message by default."""

Bools = npt.NDArray[np.bool_]

# Tag bytes: field number << 3 | wire type (0 varint, 1 fixed64, 2 bytes, 5 fixed32).
_RESOURCE_SPANS = _SCOPE = _RESOURCE = b"\x0a"
_SCOPE_SPANS = _SPANS = b"\x12"
_RESOURCE_ATTRIBUTE = b"\x0a"
_SPAN_TRACE_ID, _SPAN_ID, _SPAN_TRACE_STATE, _SPAN_PARENT = b"\x0a\x10", b"\x12\x08", b"\x1a", b"\x22\x08"
_SPAN_NAME, _SPAN_KIND, _SPAN_START, _SPAN_END = b"\x2a", b"\x30", b"\x39", b"\x41"
_SPAN_ATTRIBUTE, _SPAN_STATUS, _SPAN_FLAGS = b"\x4a", b"\x7a", b"\x85\x01"
_STATUS_MESSAGE, _STATUS_CODE = b"\x12", b"\x18"
_STATUS_CODES = 256
# Field 3 of ResourceSpans and of ScopeSpans alike.
_SCHEMA_URL = delimited(b"\x1a", utf8(SCHEMA_URL))


def _resource_field(resource: Resource) -> bytes:
    """``ResourceSpans.resource`` and its schema.

    Not cached: resources that Python calls equal (1, True) encode apart.
    """
    attributes = (delimited(_RESOURCE_ATTRIBUTE, key_value(k, any_value(v))) for k, v in resource.attributes)
    return delimited(_RESOURCE, b"".join(attributes)) + _SCHEMA_URL


@lru_cache(maxsize=64)
def _scope_field(name: str) -> bytes:
    return (
        delimited(_SCOPE, delimited(b"\x0a", utf8(name)) + delimited(b"\x12", utf8(__version__)))
        + _SCHEMA_URL
    )


@lru_cache(maxsize=8192)
def _name_field(text: str | tuple[str, ...]) -> bytes:
    return delimited(_SPAN_NAME, utf8(plain(text)))


@lru_cache(maxsize=1024)
def _trace_state_field(text: str | tuple[str, ...]) -> bytes:
    return delimited(_SPAN_TRACE_STATE, utf8(plain(text))) if text else b""


@lru_cache(maxsize=1024)
def _status_field(code: int, message: str | tuple[str, ...]) -> bytes:
    body = delimited(_STATUS_MESSAGE, utf8(plain(message))) if message else b""
    body += _STATUS_CODE + varint(code) if code else b""
    return delimited(_SPAN_STATUS, body) if body else b""


@lru_cache(maxsize=16384)
def _text_attribute(key: str, text: str | tuple[str, ...]) -> bytes:
    return delimited(_SPAN_ATTRIBUTE, key_value(key, any_value(text)))


@dataclass(frozen=True, slots=True)
class _Number:
    """An attribute whose value is stored in place: ``lead`` bytes, then ``width`` bytes of value."""

    lead: bytes
    values: AnyArray  # uint64 (bit patterns), float64 or uint8
    width: int
    present: Bools | None

    @property
    def size(self) -> int:
        return len(self.lead) + self.width

    def formats(self) -> tuple[str, ...]:
        """dtypes of the consecutive words that hold the value."""
        if self.values.dtype == np.float64:
            return ("<f8",)
        return {1: ("u1",), 2: ("<u2",), 4: ("<u4",), 8: ("<u8",), 10: ("<u8", "<u2")}[self.width]

    def words(self, selected: slice | Codes) -> tuple[AnyArray, ...]:
        """The words of the selected rows, one array per format."""
        values = self.values[selected]
        if values.dtype != np.uint64:
            return (values,)
        return varint_words(values.astype(np.uint64, copy=False), self.width)


def _number(attribute: Attribute, rows: int) -> _Number:
    values = attribute.values
    assert not isinstance(values, Text)
    _check(len(values) == rows, attribute.key, f"{len(values)} values for {rows} spans")
    present = _mask(attribute, rows)
    words: AnyArray
    if values.dtype.kind == "f":
        words, tag, width = np.ascontiguousarray(values, dtype=np.float64), ANY_DOUBLE, 8
    elif values.dtype.kind == "b":
        words, tag, width = np.ascontiguousarray(values).view(np.uint8), ANY_BOOL, 1
    else:
        wide: npt.NDArray[np.uint64] = np.ascontiguousarray(
            values, dtype=np.uint64 if values.dtype.kind == "u" else np.int64
        ).view(np.uint64)
        words, tag, width = wide, ANY_INT, varint_width(wide if present is None else wide[present])
    body = delimited(KEY, utf8(attribute.key)) + VALUE + varint(len(tag) + width) + tag
    return _Number(_SPAN_ATTRIBUTE + varint(len(body) + width) + body, words, width, present)


def _mask(attribute: Attribute, rows: int) -> Bools | None:
    if attribute.present is None:
        return None
    _check(
        len(attribute.present) == rows, attribute.key, f"a mask of {len(attribute.present)} for {rows} spans"
    )
    return None if attribute.present.all() else attribute.present


def _check(holds: bool, what: str, fault: str) -> None:
    if not holds:
        raise ValueError(f"span column {what!r} has {fault}")


def _coded(text: Text, what: str, rows: int, present: Bools | None = None) -> Codes:
    """Checked codes; where ``present`` is given they are one higher, and 0 stands for absence."""
    codes = np.asarray(text.codes, dtype=np.intp)
    _check(len(codes) == rows, what, f"{len(codes)} codes for {rows} spans")
    if present is not None:
        codes = np.where(present, codes + 1, 0)
    low, high = (0, len(text.table) - 1) if present is None else (0, len(text.table))
    if rows:
        _check(
            low <= codes.min() and codes.max() <= high, what, f"a code outside its table of {len(text.table)}"
        )
    return codes


def dense(codes: Codes, size: int) -> tuple[Codes, int]:
    """Renumber ``codes`` (each in ``range(size)``) to 0..k-1, order kept; and k."""
    if size > max(1 << 16, 8 * len(codes)):
        found, inverse = np.unique(codes, return_inverse=True)
        return inverse.reshape(-1), len(found)
    seen = np.zeros(size, dtype=np.bool_)
    seen[codes] = True
    found = np.flatnonzero(seen)
    renumber = np.empty(size, dtype=np.intp)
    renumber[found] = np.arange(len(found))
    return renumber[codes], len(found)


def layouts(columns: Iterable[tuple[Codes, int]], rows: int) -> tuple[Codes, int]:
    """One dense code per distinct combination of the columns' codes; and how many there are.

    Each column comes with the size of its range. The running product of sizes is renumbered whenever it
    outgrows a lookup table, so it never overflows.
    """
    code, size = np.zeros(rows, dtype=np.intp), 1
    for column, radix in columns:
        if radix <= 1:
            continue
        if size > 1 and size * radix > max(1 << 16, 8 * rows):
            code, size = dense(code, size)
        code, size = code * radix + column, size * radix
    return dense(code, size)


class _Rows:
    """One batch made ready: templates per layout, block form, and where each span starts."""

    def __init__(self, columns: SpanColumns) -> None:
        rows = len(columns)
        self._columns = columns
        numbers = [_number(a, rows) for a in columns.attributes if not isinstance(a.values, Text)]
        self._block_numbers = [number for number in numbers if number.present is None]
        self._optional = [number for number in numbers if number.present is not None]
        for what in ("trace_id", "span_id", "parent_span_id", "flags", "end_unix_ns", "status"):
            _check(len(getattr(columns, what)) == rows, what, f"not {rows} rows")
        self._parent = np.ascontiguousarray(columns.parent_span_id).view("<u8").reshape(-1)
        self._has_parent: Bools = self._parent != 0
        self._block, self._block_template = self._block_form()
        self._templates, widths, self._layout = self._make_templates()
        row_bytes = widths[self._layout]
        self.ends: Codes = np.cumsum(row_bytes)
        self._starts = self.ends - row_bytes

    def _block_form(self) -> tuple[np.dtype[np.void], bytes]:
        """The dtype of the block with its values' offsets, and the constant bytes around them."""
        parts: list[tuple[bytes, tuple[str, ...]]] = [
            (_SPAN_TRACE_ID, ("V16",)),
            (_SPAN_ID, ("V8",)),
            (_SPAN_START, ("<u8",)),
            (_SPAN_END, ("<u8",)),
        ]
        if self._columns.flags.any():
            parts.append((_SPAN_FLAGS, ("<u4",)))
        parts.extend((number.lead, number.formats()) for number in self._block_numbers)
        template = bytearray(_SPAN_KIND + varint(self._columns.kind))
        formats: list[str] = []
        offsets: list[int] = []
        for lead, words in parts:
            template += lead
            for word in words:
                formats.append(word)
                offsets.append(len(template))
                template += bytes(np.dtype(word).itemsize)
        names = [str(i) for i in range(len(formats))]
        form = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": len(template)})
        return form, bytes(template)

    def _make_templates(self) -> tuple[npt.NDArray[np.object_], Codes, Codes]:
        """Per layout: the template, its length; and per row: the layout."""
        c, rows = self._columns, len(self._columns)
        state = c.trace_state or Text(codes=np.zeros(rows, dtype=np.intp), table=("",))
        message = c.status_message or Text(codes=np.zeros(rows, dtype=np.intp), table=("",))
        coded: list[tuple[Codes, int]] = [
            (_coded(c.name, "name", rows), len(c.name.table)),
            (_coded(state, "trace_state", rows), len(state.table)),
            (c.status.astype(np.intp), _STATUS_CODES if c.status.any() else 1),
            (_coded(message, "status_message", rows), len(message.table)),
        ]
        texts: list[tuple[Attribute, Text, bool, Codes]] = []
        for attribute in c.attributes:
            if isinstance(attribute.values, Text):
                present = _mask(attribute, rows)
                codes = _coded(attribute.values, attribute.key, rows, present)
                texts.append((attribute, attribute.values, present is not None, codes))
                coded.append((codes, len(attribute.values.table) + (present is not None)))
        there = [
            self._has_parent,
            *(number.present for number in self._optional if number.present is not None),
        ]
        coded.extend((mask.astype(np.intp), 2) for mask in there)
        layout, count = layouts(coded, rows)
        example = np.empty(count, dtype=np.intp)  # any one row of each layout
        example[layout] = np.arange(rows)

        fields: list[list[bytes]] = [
            [_name_field(c.name.table[i]) for i in coded[0][0][example].tolist()],
            [_trace_state_field(state.table[i]) for i in coded[1][0][example].tolist()],
            [
                _status_field(code, message.table[i])
                for code, i in zip(coded[2][0][example].tolist(), coded[3][0][example].tolist(), strict=True)
            ],
        ]
        for attribute, text, maskable, codes in texts:
            pieces = [b""] * maskable + [b""] * len(text.table)
            used = codes[example]
            for i in set(used.tolist()) - ({0} if maskable else set()):
                pieces[i] = _text_attribute(attribute.key, text.table[i - maskable])
            fields.append([pieces[i] for i in used.tolist()])
        tails = list(map(b"".join, zip(*fields, strict=True)))

        leads = [_SPAN_PARENT + bytes(8), *(number.lead + bytes(number.width) for number in self._optional)]
        masks = np.stack([mask[example] for mask in there], axis=1)
        sizes = masks * np.array([len(lead) for lead in leads])
        optional_bytes = sizes.sum(axis=1)
        joined: dict[tuple[bool, ...], bytes] = {}
        for row in set(map(tuple, masks.tolist())):
            joined[row] = b"".join(lead for lead, on in zip(leads, row, strict=True) if on)
        options = [joined[row] for row in map(tuple, masks.tolist())]
        bodies = len(self._block_template) + optional_bytes + np.array(list(map(len, tails)), dtype=np.intp)
        heads = [_SPANS + varint(size) for size in bodies.tolist()]
        head_bytes = np.array(list(map(len, heads)), dtype=np.intp)
        templates = np.empty(count, dtype=np.object_)
        templates[:] = list(
            map(b"".join, zip(heads, repeat(bytes(len(self._block_template))), options, tails))
        )
        # Where each optional field of each layout starts, from the start of the span.
        self._option_at = (head_bytes + len(self._block_template))[:, None] + np.cumsum(sizes, axis=1) - sizes
        self._head_bytes = head_bytes
        return templates, head_bytes + bodies, layout

    def encode(self, first: int, last: int) -> bytearray:
        """The ``ScopeSpans.spans`` fields of rows first..last-1, in order."""
        rows = slice(first, last)
        layout = self._layout[rows]
        out = bytearray().join(self._templates[layout].tolist())
        starts = self._starts[rows] - self._starts[first]

        block = np.frombuffer(bytearray(self._block_template) * (last - first), dtype=self._block)
        for name, words in zip(self._block.names or (), self._block_words(rows), strict=True):
            block[name] = words
        _scatter(out, starts + self._head_bytes[layout], block.view(f"V{self._block.itemsize}"))

        self._store_optional(out, 0, self._has_parent[rows], starts, layout, [(2, self._parent[rows])])
        for column, number in enumerate(self._optional, start=1):
            assert number.present is not None
            offsets = (len(number.lead), len(number.lead) + 8)
            stores = list(zip(offsets, number.words(rows), strict=False))  # a second word is rare
            self._store_optional(out, column, number.present[rows], starts, layout, stores)
        return out

    def _block_words(self, rows: slice) -> Iterable[AnyArray]:
        c = self._columns
        yield _opaque(c.trace_id[rows], 16)
        yield _opaque(c.span_id[rows], 8)
        yield c.start_unix_ns[rows]
        yield c.end_unix_ns[rows]
        if c.flags.any():
            yield c.flags[rows]
        for number in self._block_numbers:
            yield from number.words(rows)

    def _store_optional(
        self,
        out: bytearray,
        column: int,
        present: Bools,
        starts: Codes,
        layout: Codes,
        stores: Sequence[tuple[int, AnyArray]],
    ) -> None:
        at = starts + self._option_at[:, column][layout]
        everywhere = bool(present.all())
        for offset, words in stores:
            if everywhere:
                _scatter(out, at + offset, words)
            else:
                _scatter(out, at[present] + offset, words[present])


def _opaque(ids: Bytes, width: int) -> AnyArray:
    return np.ascontiguousarray(ids).view(f"V{width}").reshape(-1)


def _scatter(out: bytearray, positions: Codes, words: AnyArray) -> None:
    """Store ``words[i]`` at byte ``positions[i]`` of ``out``, through a view that starts at every byte."""
    if not len(words):
        return
    little = words.dtype.newbyteorder("<")
    view: AnyArray = np.ndarray((len(out) - little.itemsize + 1,), dtype=little, buffer=out, strides=(1,))
    view[positions] = words


class _Packer:
    """Fills payloads up to a size, opening ResourceSpans and ScopeSpans messages as needed.

    Resources and scopes are known by their encoded fields.
    """

    _OVERHEAD = 6  # a tag and a length of at most five bytes

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.payloads: list[Payload] = []
        self._begin()

    def _begin(self) -> None:
        self._used = 0
        self._items = 0
        self._open: dict[bytes, dict[bytes, list[bytearray]]] = {}

    def add(self, resource: bytes, scope: bytes, rows: _Rows) -> None:
        first, written = 0, 0
        while first < len(rows.ends):
            extra = self._opening_bytes(resource, scope)
            room = self._max_bytes - self._used - extra
            last = int(np.searchsorted(rows.ends, written + room, side="right"))
            if last <= first:
                if self._items:
                    self.finish()
                    continue
                last = first + 1  # a span that is larger than a payload goes alone
            self._open.setdefault(resource, {}).setdefault(scope, []).append(rows.encode(first, last))
            self._used += extra + int(rows.ends[last - 1]) - written
            self._items += last - first
            first, written = last, int(rows.ends[last - 1])

    def _opening_bytes(self, resource: bytes, scope: bytes) -> int:
        if resource not in self._open:
            return 2 * self._OVERHEAD + len(resource) + len(scope)
        return 0 if scope in self._open[resource] else self._OVERHEAD + len(scope)

    def finish(self) -> None:
        if not self._items:
            return
        parts: list[bytes | bytearray] = []
        for resource, scopes in self._open.items():
            inner: list[bytes | bytearray] = [resource]
            for scope, spans in scopes.items():
                inner.append(_SCOPE_SPANS + varint(len(scope) + sum(map(len, spans))) + scope)
                inner.extend(spans)
            parts.append(_RESOURCE_SPANS + varint(sum(map(len, inner))))
            parts.extend(inner)
        self.payloads.append(Payload(signal=Signal.TRACES, body=b"".join(parts), items=self._items))
        self._begin()


def encode_spans(batches: Sequence[SpanColumns], *, max_bytes: int = DEFAULT_MAX_BYTES) -> list[Payload]:
    """Serialize every span of ``batches``, in payloads of at most ``max_bytes``.

    Spans are grouped by resource and scope; within those, batches and their rows keep their order. Only a
    single span that is larger than ``max_bytes`` by itself makes a larger payload, alone.

    Raises :class:`ValueError` when columns differ in length or a code is outside its table.
    """
    groups: dict[bytes, dict[bytes, list[SpanColumns]]] = {}
    for columns in batches:
        if len(columns):
            scopes = groups.setdefault(_resource_field(columns.resource), {})
            scopes.setdefault(_scope_field(columns.scope), []).append(columns)
    packer = _Packer(max_bytes)
    for resource, scopes in groups.items():
        for scope, group in scopes.items():
            for columns in group:
                packer.add(resource, scope, _Rows(columns))
    packer.finish()
    return packer.payloads
