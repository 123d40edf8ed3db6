"""Spans in columns: what ``signals`` makes and ``export`` encodes.

A batch holds n spans of one resource, one scope and one span kind. Every per-span value is a column of
length n; text is dictionary-coded, so that a name repeated a million times is stored once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.model.codes import distinct
from otelgpu.model.resource import Resource

Bytes = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.intp]


class SpanKind(IntEnum):
    """opentelemetry.proto.trace.v1.Span.SpanKind."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3
    PRODUCER = 4
    CONSUMER = 5


class StatusCode(IntEnum):
    """opentelemetry.proto.trace.v1.Status.StatusCode."""

    UNSET = 0
    OK = 1
    ERROR = 2


class Text(Struct, frozen=True, kw_only=True):
    """A dictionary-coded column: row i is ``table[codes[i]]``.

    ``codes``: shape (n,), dtype intp, each in ``range(len(table))``. An entry of ``table`` may be a tuple
    of strings, which becomes an OTLP array value (attributes only). Columns that one thing determines share
    one array of codes, which is distinguished from others by identity: they cost the encoder no more than one.
    """

    codes: Codes
    table: tuple[str | tuple[str, ...], ...]

    @classmethod
    def of(cls, values: Sequence[str | tuple[str, ...]]) -> Self:
        """Dictionary-code a sequence; entries of the table are in order of appearance."""
        if values and values.count(values[0]) == len(values):  # as most are: found without a look-up for each
            return cls(codes=_zeros(len(values)), table=(values[0],))
        table = {value: code for code, value in enumerate(dict.fromkeys(values))}
        codes = np.fromiter(map(table.__getitem__, values), dtype=np.intp, count=len(values))
        return cls(codes=codes, table=tuple(table))


@lru_cache(maxsize=16)
def _zeros(count: int) -> Codes:
    """Codes of columns that are the same in every row: one array, so that they cost the encoder no more than one."""
    codes = np.zeros(count, dtype=np.intp)
    codes.flags.writeable = False
    return codes


def plain(text: str | tuple[str, ...]) -> str:
    """An entry of a text's table where only a string can stand."""
    return text if isinstance(text, str) else " ".join(text)


class Attribute(Struct, frozen=True, kw_only=True):
    """One attribute of every span in a batch.

    ``values``: any integer type (an OTLP int), float64 (double), bool, or :class:`Text`; length n.
    ``present``: bool (n,), or None when every span carries it.
    """

    key: str
    values: npt.NDArray[np.integer[Any]] | npt.NDArray[np.float64] | npt.NDArray[np.bool_] | Text
    present: npt.NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, key: str, values: Sequence[Any]) -> Self:
        """From one value per span: str, tuple of str, bool, int or float, all of one type, or None for absent."""
        present: npt.NDArray[np.bool_] | None = None
        if None in values:
            present = np.array([value is not None for value in values], dtype=np.bool_)
        sample = next((value for value in values if value is not None), 0)
        if present is not None:
            nothing = type(sample)()
            values = [nothing if value is None else value for value in values]
        if isinstance(sample, str | tuple):
            return cls(key=key, values=Text.of(values), present=present)
        dtype = {bool: np.bool_, int: np.int64, float: np.float64}[type(sample)]
        return cls(key=key, values=np.array(values, dtype=dtype), present=present)

    def rows(self, count: int) -> list[str | tuple[str, ...] | int | float | bool | None]:
        """The value in each of ``count`` rows; None where it is absent. Raises ValueError for another length."""
        column = self.values
        values: list[Any]
        match column:
            case Text():
                values = [column.table[code] for code in column.codes.tolist()]
            case _:
                values = column.tolist()
        there = [True] * count if self.present is None else self.present.tolist()
        if not len(values) == len(there) == count:
            raise ValueError(f"column {self.key!r} has not {count} rows")
        return [value if here else None for value, here in zip(values, there, strict=True)]


class Links(Struct, frozen=True, kw_only=True):
    """Links of the spans of a batch: k of them, ordered by the span that has them.

    ``span``: (k,) ascending positions in the batch. ``attributes`` are columns of length k.
    """

    span: Codes
    trace_id: Bytes  # (k, 16)
    span_id: Bytes  # (k, 8)
    flags: npt.NDArray[np.uint32]  # (k,)
    attributes: tuple[Attribute, ...] = ()
    dropped: npt.NDArray[np.uint32] | None = None  # (n,) links of each span that were left out; None: none


class SpanColumns(Struct, frozen=True, kw_only=True):
    """n spans that share resource, scope and kind."""

    resource: Resource
    scope: str
    kind: SpanKind
    trace_id: Bytes  # (n, 16)
    span_id: Bytes  # (n, 8)
    parent_span_id: Bytes  # (n, 8); all zero: a root span
    trace_state: Text | None  # None: empty for all
    flags: npt.NDArray[np.uint32]  # (n,) W3C trace flags in the low byte
    start_unix_ns: U64  # (n,)
    end_unix_ns: U64  # (n,)
    name: Text
    status: npt.NDArray[np.uint8]  # (n,) StatusCode
    status_message: Text | None  # an empty string is left out
    attributes: tuple[Attribute, ...]
    links: Links | None = None

    def __len__(self) -> int:
        return len(self.start_unix_ns)

    def in_columns(self) -> Iterator[SpanColumns]:
        """As they are."""
        yield self


class SpanBatch(Protocol):
    """Spans that share resource and scope: :class:`SpanColumns`, or what they can be made of."""

    @property
    def resource(self) -> Resource:
        """Whose spans they are."""

    @property
    def scope(self) -> str:
        """The instrumentation scope."""

    def __len__(self) -> int: ...

    def in_columns(self) -> Iterator[SpanColumns]:
        """All of them; those that are made for it are made as they are taken."""


def in_columns(batches: Iterable[SpanBatch]) -> Iterator[SpanColumns]:
    """All of them, as columns."""
    for batch in batches:
        yield from batch.in_columns()


def constant_text(value: str, rows: int) -> Text:
    """The same value in every row."""
    return Text(codes=_zeros(rows), table=(value,))


def text_of_codes(codes: npt.NDArray[Any], label: Callable[[int], str]) -> Text:
    """Text from integer codes through ``label``, called once per distinct code."""
    values, dense = distinct(codes)
    return Text(codes=dense, table=tuple(map(label, values.tolist())))


def attributes_of_rows(rows: Sequence[dict[str, Any]]) -> tuple[Attribute, ...]:
    """Attributes in columns from one mapping per span; a key that a row lacks is absent there.

    Values of one key have one type: str, tuple of str, bool, int or float. For low-rate spans only.
    """
    keys = dict.fromkeys(key for row in rows for key in row)
    return tuple(Attribute.of(key, [row.get(key) for row in rows]) for key in keys)


def merged(first: Sequence[Attribute], then: Sequence[Attribute]) -> list[Attribute]:
    """Attributes of the same spans from two hands: where both report one, the second is believed.

    Values of one key have one type in both, and are no text.
    """
    found = {attribute.key: attribute for attribute in first}
    for attribute in then:
        before = found.get(attribute.key)
        if before is not None and attribute.present is not None:
            assert not isinstance(before.values, Text) and not isinstance(attribute.values, Text)
            values = np.where(attribute.present, attribute.values, before.values)
            present = None if before.present is None else before.present | attribute.present
            attribute = Attribute(key=attribute.key, values=values, present=present)
        found[attribute.key] = attribute
    return list(found.values())
