"""One batch of spans made ready to be written: a template per layout, and what is stored over it. Pure.

In: :class:`~otelgpu.model.spans.SpanColumns`. Out: rows of known width, written piece by piece as the fields
``ScopeSpans.spans`` (opentelemetry/proto/trace/v1/trace.proto). It must not look at what names mean.

How. Everything of a span that is not a number or an id (texts, which attributes are there, status) takes few
distinct forms in a batch: *layouts*. Protobuf fields may come in any order, so a span is written as::

    12 <len> | block: ids, times, numbers every span has | optional: parent, numbers some spans have | texts

A layout's bytes are a *template*. Rows are put in the order of their layouts and their templates repeated; then
the block, a structured array filled column by column, and the optional numbers are stored through a view of
the result that starts at every byte. A number that is the same in all spans, or in all of one layout, is
part of the template.

Integers are over-long varints of one width per column (1, 2, 4, 8 or 10 bytes, by the largest value):
valid protobuf (https://protobuf.dev/programming-guides/encoding/#varints), fixed in place. An unsigned value
above 2^63-1 has no OTLP form; it wraps to the int64 with the same bits. Text that is not valid Unicode (lone
surrogates) has each bad character replaced by "?".

Example: 50,000 launches under 200 kernel names have 200 templates of some 400 bytes; a piece of 4,600 of them
fills 2 MiB with twenty of these, and one block array of 4,600 rows is stored over them.
Invariant: ``widths[layout]`` adds up to the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.export.messages import scatter
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
    utf8,
    varint,
    varint_width,
    varint_words,
    word_formats,
)
from otelgpu.export.span_links import link_fields
from otelgpu.model.codes import Codes, all_of, bounds, combine, examples, order_of
from otelgpu.model.spans import Attribute, Bytes, Links, SpanColumns, Text, plain

Bools = npt.NDArray[np.bool_]
Rows = slice | Codes

# Tag bytes: field number << 3 | wire type (0 varint, 1 fixed64, 2 bytes, 5 fixed32).
SPANS: Final = b"\x12"
TRACE_ID, SPAN_ID, _TRACE_STATE, PARENT = b"\x0a\x10", b"\x12\x08", b"\x1a", b"\x22\x08"
_SPAN_NAME, SPAN_KIND, START, END = b"\x2a", b"\x30", b"\x39", b"\x41"
SPAN_ATTRIBUTE, _SPAN_STATUS, FLAGS = b"\x4a", b"\x7a", b"\x85\x01"
_STATUS_MESSAGE, _STATUS_CODE = b"\x12", b"\x18"
_STATUS_CODES: Final = 256

_ROWS_WRITTEN: Final = 2048
"""Rows that are written together: what is read and written for them stays in the second-level cache."""

_SHORT_RUN: Final = 64
"""Rows of one layout, below which one by one is faster than run by run."""

_REPORTED_BY_SAMPLE: Final = 64
"""Rows that are looked at before a whole column is, to see whether the layout determines it."""


@lru_cache(maxsize=8192)
def name_field(text: str | tuple[str, ...]) -> bytes:
    """``Span.name``."""
    return delimited(_SPAN_NAME, utf8(plain(text)))


@lru_cache(maxsize=1024)
def trace_state_field(text: str | tuple[str, ...]) -> bytes:
    """``Span.trace_state``; nothing where it is empty."""
    return delimited(_TRACE_STATE, utf8(plain(text))) if text else b""


@lru_cache(maxsize=1024)
def status_field(code: int, message: str | tuple[str, ...]) -> bytes:
    """``Span.status``; nothing where neither code nor message says anything."""
    body = delimited(_STATUS_MESSAGE, utf8(plain(message))) if message else b""
    body += _STATUS_CODE + varint(code) if code else b""
    return delimited(_SPAN_STATUS, body) if body else b""


@lru_cache(maxsize=16384)
def text_attribute(key: str, text: str | tuple[str, ...]) -> bytes:
    """A field of ``Span.attributes``."""
    return delimited(SPAN_ATTRIBUTE, key_value(key, any_value(text)))


@lru_cache(maxsize=1024)
def number_lead(key: str, tag: bytes, width: int) -> bytes:
    """A field of ``Span.attributes`` up to the ``width`` bytes of a number's value."""
    body = delimited(KEY, utf8(key)) + VALUE + varint(len(tag) + width) + tag
    return SPAN_ATTRIBUTE + varint(len(body) + width) + body


def check(holds: bool, what: str, fault: str) -> None:
    """Raise ValueError on a column that breaks the contract of ``SpanColumns``."""
    if not holds:
        raise ValueError(f"span column {what!r} has {fault}")


class _Slot(Struct, frozen=True):
    """A value stored in place: ``lead``, then the words that hold it."""

    lead: bytes
    formats: tuple[str, ...]  # dtypes of the words
    words: Callable[[Rows], tuple[AnyArray, ...]]  # of the rows asked for, one array per format
    values: AnyArray | None = None  # of all rows, where equal ones may move into the template
    present: Bools | None = None  # None: in every row

    @property
    def size(self) -> int:
        return len(self.lead) + sum(np.dtype(form).itemsize for form in self.formats)

    def encoded(self, row: int) -> bytes:
        """Lead and value of one row."""
        words = self.words(np.array([row]))
        return self.lead + b"".join(
            word.astype(form).tobytes() for word, form in zip(words, self.formats, strict=True)
        )


def _opaque(ids: npt.NDArray[np.uint8], width: int) -> AnyArray:
    return np.ascontiguousarray(ids).view(f"V{width}").reshape(-1)


def _plain_slot(
    lead: bytes, column: AnyArray, form: str, values: AnyArray | None = None, present: Bools | None = None
) -> _Slot:
    return _Slot(lead, (form,), lambda rows: (column[rows],), values, present)


def _number(attribute: Attribute, rows: int) -> _Slot | None:
    """The slot of a number; None when no span carries it."""
    values, key = attribute.values, attribute.key
    assert not isinstance(values, Text)
    check(len(values) == rows, key, f"{len(values)} values for {rows} spans")
    present = _mask(attribute, rows)
    if present is not None and not np.count_nonzero(present):
        return None
    if values.dtype.kind == "f":
        bits = np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)  # reports 0.0 from -0.0
        return _plain_slot(number_lead(key, ANY_DOUBLE, 8), bits, "<u8", bits, present)
    if values.dtype.kind == "b":
        flags = np.ascontiguousarray(values).view(np.uint8)
        return _plain_slot(number_lead(key, ANY_BOOL, 1), flags, "u1", flags, present)
    integers: AnyArray = values
    width = varint_width(integers if present is None else integers[present])
    return _Slot(
        number_lead(key, ANY_INT, width),
        word_formats(width),
        lambda rows: varint_words(integers[rows], width),
        integers,
        present,
    )


def _mask(attribute: Attribute, rows: int) -> Bools | None:
    present = attribute.present
    if present is None:
        return None
    check(len(present) == rows, attribute.key, f"a mask of {len(present)} for {rows} spans")
    return None if all_of(present) else present


class _Layouts:
    """Collects the columns that distinguish layouts, and then says what each looks like.

    Columns that are one array count once: texts reported by the same code cost no more than one.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._codes: dict[int, tuple[Codes, int]] = {}  # by id of the array, which the batch keeps alive
        self._bounds: dict[int, tuple[int, int]] = {}
        self._masked: list[tuple[Codes, int]] = []
        self._masks: list[tuple[Codes, int]] = []
        self._fields: list[Callable[[Codes], list[bytes]]] = []

    def add_text(self, text: Text, what: str, field: Callable[[Any], bytes], present: Bools | None) -> None:
        """A text column, each entry of which makes a field."""
        codes = np.asarray(text.codes, dtype=np.intp)
        check(len(codes) == self._rows, what, f"{len(codes)} codes for {self._rows} spans")
        if present is not None and not np.count_nonzero(present):
            return
        low, high = self._range(text.codes) if present is None else bounds(codes[present])
        check(low >= 0 and high < len(text.table), what, f"a code outside its table of {len(text.table)}")
        if present is None and low == high:
            only = field(text.table[low])
            self._fields.append(lambda rows: [only] * len(rows))
            return
        if present is None:
            self._codes[id(text.codes)] = (codes, high + 1)
            self._fields.append(lambda rows: [field(text.table[i]) for i in codes[rows].tolist()])
            return
        self._masked.append((np.where(present, codes + 1, 0), high + 2))
        self._fields.append(
            lambda rows: [
                field(text.table[i]) if on else b""
                for i, on in zip(codes[rows].tolist(), present[rows].tolist(), strict=True)
            ]
        )

    def _range(self, codes: Codes) -> tuple[int, int]:
        """The bounds of an array, found once."""
        known = self._bounds.get(id(codes))
        if known is None:
            known = self._bounds[id(codes)] = bounds(codes)
        return known

    def add_status(self, status: npt.NDArray[np.uint8], message: Text | None) -> None:
        """Status codes with their messages, which make one field."""
        nowhere = not np.count_nonzero(status)
        if message is None:
            if nowhere:
                return
            message = Text(codes=np.zeros(self._rows, dtype=np.intp), table=("",))
        codes, table = np.asarray(message.codes, dtype=np.intp), message.table
        self.add_text(message, "status_message", lambda _: b"", None)
        if not nowhere:
            self._masks.append((status.astype(np.intp), _STATUS_CODES))
        self._fields.append(
            lambda rows: [
                status_field(code, table[i])
                for code, i in zip(status[rows].tolist(), codes[rows].tolist(), strict=True)
            ]
        )

    def add_links(self, links: Links) -> None:
        """Links, which make each span that has any a layout of its own."""
        fields = link_fields(links, self._rows)
        if not fields:
            return
        codes = np.zeros(self._rows, dtype=np.intp)
        codes[list(fields)] = np.arange(1, len(fields) + 1)
        self._masks.append((codes, len(fields) + 1))
        self._fields.append(lambda rows: [fields.get(row, b"") for row in rows.tolist()])

    def add_mask(self, present: Bools) -> None:
        """Something that only some spans have."""
        self._masks.append((present.astype(np.intp), 2))

    def find(self) -> tuple[Codes, int]:
        """The dense layout of each row, and how many there are."""
        return combine([*self._codes.values(), *self._masked, *self._masks], self._rows)

    def texts(self, example: Codes) -> list[bytes]:
        """All text fields of the example row of each layout."""
        if not self._fields:
            return [b""] * len(example)
        return list(map(b"".join, zip(*(field(example) for field in self._fields), strict=True)))


class SpanRows:
    """The spans of one batch, in the order of their layouts.

    ``ends``: shape (n,), where each span ends if all were written one after the other.
    Raises :class:`ValueError` when columns differ in length or a code is outside its table.
    """

    ends: Codes

    def __init__(self, columns: SpanColumns) -> None:
        rows = len(columns)
        for what in ("trace_id", "span_id", "parent_span_id", "flags", "end_unix_ns", "status"):
            check(len(getattr(columns, what)) == rows, what, f"not {rows} rows")
        parent = np.ascontiguousarray(columns.parent_span_id).view("<u8").reshape(-1)
        has_parent: Bools = parent != 0
        numbers = [_number(a, rows) for a in columns.attributes if not isinstance(a.values, Text)]
        slots = [slot for slot in numbers if slot is not None]
        if np.count_nonzero(has_parent):
            partly = None if all_of(has_parent) else has_parent
            slots.insert(0, _plain_slot(PARENT, parent, "<u8", present=partly))
        self._optional = [slot for slot in slots if slot.present is not None]

        layouts = self._layouts_of(columns)
        for slot in self._optional:
            assert slot.present is not None
            layouts.add_mask(slot.present)
        layout, count = layouts.find()
        example = examples(layout, count)
        tails = layouts.texts(example)
        everywhere = _fixed_slots(columns) + [slot for slot in slots if slot.present is None]
        everywhere, tails, constant = _reported(everywhere, layout, example, tails)

        self._block, block_bytes = _block_form(everywhere, SPAN_KIND + varint(columns.kind) + constant)
        self._block_words = [slot.words for slot in everywhere]
        template = np.frombuffer(block_bytes, dtype=f"V{len(block_bytes)}")[0]
        self._blocks = np.full(min(rows, _ROWS_WRITTEN), template).view(self._block)
        self._make_templates(block_bytes, example, tails)
        self._order = None if all_of(layout[1:] >= layout[:-1]) else order_of(layout, count)
        self._layout = layout if self._order is None else layout[self._order]
        row_bytes = self._widths[self._layout]
        self.ends = np.cumsum(row_bytes)
        self._starts = self.ends - row_bytes

    @staticmethod
    def _layouts_of(columns: SpanColumns) -> _Layouts:
        layouts = _Layouts(len(columns))
        layouts.add_text(columns.name, "name", name_field, None)
        if columns.trace_state is not None:
            layouts.add_text(columns.trace_state, "trace_state", trace_state_field, None)
        layouts.add_status(columns.status, columns.status_message)
        if columns.links is not None:
            layouts.add_links(columns.links)
        for attribute in columns.attributes:
            if isinstance(attribute.values, Text):
                key = attribute.key
                present = _mask(attribute, len(columns))
                layouts.add_text(attribute.values, key, partial(text_attribute, key), present)
        return layouts

    def _make_templates(self, block: bytes, example: Codes, tails: Sequence[bytes]) -> None:
        """A template, its width and the places of the optional fields, per layout."""
        masks = np.stack(
            [np.ones(len(example), dtype=np.bool_)]
            + [slot.present[example] for slot in self._optional if slot.present is not None],
            axis=1,
        )[:, 1:]
        sizes = masks * np.array([slot.size for slot in self._optional], dtype=np.intp)
        leads = [slot.lead + bytes(slot.size - len(slot.lead)) for slot in self._optional]
        options = _chosen(leads, list(map(tuple, masks.tolist()))) if leads else [b""] * len(example)
        rests = list(zip(options, tails, strict=True))
        heads = [SPANS + varint(len(block) + len(option) + len(tail)) for option, tail in rests]
        self._templates = [
            b"".join((head, block, option, tail)) for head, (option, tail) in zip(heads, rests, strict=True)
        ]
        self._widths = np.array(list(map(len, self._templates)), dtype=np.intp)
        self._block_at = np.array(list(map(len, heads)), dtype=np.intp)
        self._option_at = (self._block_at + len(block))[:, None] + np.cumsum(sizes, axis=1) - sizes

    def __len__(self) -> int:
        return len(self.ends)

    def size_of(self, span: int) -> int:
        """Bytes that one of them takes."""
        return int(self.ends[span] - self._starts[span])

    def write(self, out: Bytes, first: int) -> tuple[int, int]:
        """As many as fit in ``out``, from span ``first`` on: the first one not written, and the bytes."""
        start = int(self._starts[first])
        last = int(np.searchsorted(self.ends, start + len(out), side="right"))
        for begin in range(first, last, _ROWS_WRITTEN):
            end = min(begin + _ROWS_WRITTEN, last)
            self._fill(out, -start, begin, end)
            self._store(out, -start, begin, end)
        return last, (int(self.ends[last - 1]) - start if last > first else 0)

    def _fill(self, out: Bytes, moved: int, first: int, last: int) -> None:
        """Templates."""
        layout = self._layout[first:last]
        at = int(self._starts[first]) + moved
        begins = [0, *(np.flatnonzero(layout[1:] != layout[:-1]) + 1).tolist(), last - first]
        if len(begins) * _SHORT_RUN > last - first:
            joined = b"".join(map(self._templates.__getitem__, layout.tolist()))
            out[at : at + len(joined)] = np.frombuffer(joined, dtype=np.uint8)
            return
        for begin, end in pairwise(begins):
            template = self._templates[layout[begin]]
            after = at + (end - begin) * len(template)
            out[at:after].reshape(-1, len(template))[:] = np.frombuffer(template, dtype=np.uint8)
            at = after

    def _store(self, out: Bytes, moved: int, first: int, last: int) -> None:
        """Values over the templates."""
        rows: Rows = slice(first, last) if self._order is None else self._order[first:last]
        layout = self._layout[first:last]
        starts = self._starts[first:last] + moved
        block = self._blocks[: last - first]
        names = iter(self._block.names or ())
        for words in self._block_words:
            for word in words(rows):
                block[next(names)] = word
        scatter(out, starts + self._block_at[layout], block.view(f"V{self._block.itemsize}"))
        for column, slot in enumerate(self._optional):
            assert slot.present is not None
            at, present = starts + self._option_at[:, column][layout] + len(slot.lead), slot.present[rows]
            at = at[present]
            for word, form in zip(slot.words(rows), slot.formats, strict=True):
                scatter(out, at, word[present].astype(form, copy=False))
                at = at + np.dtype(form).itemsize


def _chosen(parts: Sequence[bytes], masks: Sequence[tuple[bool, ...]]) -> list[bytes]:
    """The parts that each mask wants, joined; few masks are different."""
    joined = {mask: b"".join(part for part, on in zip(parts, mask, strict=True) if on) for mask in set(masks)}
    return [joined[mask] for mask in masks]


def _fixed_slots(columns: SpanColumns) -> list[_Slot]:
    """What every span has: ids and times, and flags unless they are all zero."""
    slots = [
        _plain_slot(TRACE_ID, _opaque(columns.trace_id, 16), "V16"),
        _plain_slot(SPAN_ID, _opaque(columns.span_id, 8), "V8"),
        _plain_slot(START, columns.start_unix_ns, "<u8"),
        _plain_slot(END, columns.end_unix_ns, "<u8"),
    ]
    if np.count_nonzero(columns.flags):
        slots.append(_plain_slot(FLAGS, columns.flags, "<u4", columns.flags))
    return slots


def _reported(
    slots: list[_Slot], layout: Codes, example: Codes, tails: list[bytes]
) -> tuple[list[_Slot], list[bytes], bytes]:
    """Take out of the slots what is the same in the whole batch, or in each layout.

    What remains; the tails with what the layout reports; the bytes that all spans have.
    """
    remain, constant = [], b""
    for slot in slots:
        values = slot.values
        if values is None or not _is_reported(values, layout, example):
            remain.append(slot)
        elif all_of(values[example] == values[0]):
            constant += slot.encoded(0)
        else:
            tails = [tail + slot.encoded(row) for tail, row in zip(tails, example.tolist(), strict=True)]
    return remain, tails, constant


def _is_reported(values: AnyArray, layout: Codes, example: Codes) -> bool:
    if 2 * len(example) > len(layout) > 1:
        return False  # next to nothing would be gained
    of_layout = values[example]
    few = slice(0, _REPORTED_BY_SAMPLE)
    return all_of(values[few] == of_layout[layout[few]]) and all_of(values == of_layout[layout])


def _block_form(slots: Sequence[_Slot], constant: bytes) -> tuple[np.dtype[np.void], bytes]:
    """The dtype of the block with its values' offsets, and the bytes around them."""
    template = bytearray(constant)
    formats: list[str] = []
    offsets: list[int] = []
    for slot in slots:
        template += slot.lead
        for form in slot.formats:
            formats.append(form)
            offsets.append(len(template))
            template += bytes(np.dtype(form).itemsize)
    names = [str(i) for i in range(len(formats))]
    form_of_all = np.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "itemsize": len(template)}
    )
    return form_of_all, bytes(template)
