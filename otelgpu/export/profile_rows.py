"""One batch of profile observations made ready to be written: samples, and where payloads may be cut. Pure.

In: :class:`~otelgpu.model.profiles.ProfileColumns`. Out: the fields ``Profile.samples`` and those of the
``ProfilesDictionary`` (opentelemetry/proto/profiles/v1development/profiles.proto) of any run of rows.

How. Rows are put in the order of their identity (stack, link, attributes); rows of one identity are a *sample*,
and keep their order. A run of rows may begin or end inside a sample, which is then one in either payload. The
cost of a row is known before anything is written: its value and time, the head of its sample if it is the
first of it in the payload, and every entry of the dictionary that no row before it needs.

Example: three samples of 10, 1 and 400 rows, and room for 200: the first run is both small samples and 189 rows
of the third; the second repeats the head of that, and its stack, in front of the other 211.

Invariant: a payload is never longer than the costs of its rows, for numbers in it are no greater.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.export.messages import Bytes, Cells, Part, beside, fixed64, integers, sizes, written
from otelgpu.export.profile_dictionary import (
    TABLES,
    Dictionary,
    Entries,
    IntegerAttributes,
    Numbers,
    distinct_links,
)
from otelgpu.export.protobuf import utf8
from otelgpu.model.codes import Codes, bounds, combine, distinct, order_of, values_of
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.spans import Attribute, Text

# Tag bytes: field number << 3 | wire type (0 varint, 2 bytes).
_SAMPLES = b"\x12"
_SAMPLE_STACK, _SAMPLE_ATTRIBUTES, _SAMPLE_LINK, _SAMPLE_VALUES, _SAMPLE_TIMES = (
    *(b"\x08", b"\x12", b"\x18", b"\x22", b"\x2a"),
)


def check(holds: bool, what: str, fault: str) -> None:
    """Raise ValueError on a column that breaks the contract of ``ProfileColumns``."""
    if not holds:
        raise ValueError(f"profile column {what!r} has {fault}")


class Run(Struct, frozen=True):
    """Rows first..last-1 of a batch, and what they need of the dictionary: its entries, and their new numbers."""

    first: int
    last: int
    used: Numbers
    numbers: Numbers


class SampleRows:
    """The observations of one batch, in the order of their identities.

    Raises :class:`ValueError` when columns differ in length, a code is outside its table, an attribute is
    neither text nor integer, or two have one key.
    """

    def __init__(self, columns: ProfileColumns) -> None:
        rows = len(columns)
        check(columns.value.dtype.kind in "iu", "value", "values that are not integers")
        entries = Entries(columns)
        types = (columns.sample_type, columns.period_type)
        self._strings_of_all = np.array([entries.string(text) for of in types for text in (of.type, of.unit)])
        stack = _stacks(columns, entries)
        link, links = _links(columns)
        attributes, integer = _attributes(columns, entries)
        self._dictionary = Dictionary(entries, integer, links)
        lengths = self._dictionary.lengths

        identity, count = combine(
            [
                (stack, lengths["stacks"]),
                (link, lengths["links"]),
                *((column, lengths["attributes"]) for column in attributes.T),
            ],
            rows,
        )
        order = order_of(identity, count)
        self._sample = identity[order]
        self._starts = np.flatnonzero(np.diff(self._sample, prepend=-1))
        example = order[self._starts]
        self._stack, self._link = stack[example], link[example]
        self._attributes = attributes[example]
        self._values = integers(b"", columns.value[order])
        self._times: Cells | None = None
        if columns.time_unix_ns is not None:
            check(len(columns.time_unix_ns) == rows, "time_unix_ns", f"not {rows} rows")
            self._times = fixed64(columns.time_unix_ns[order])
        self._plan()

    def __len__(self) -> int:
        return len(self._sample)

    def _plan(self) -> None:
        """What each row costs at least, and each sample's head at most."""
        counts = np.diff(self._starts, append=len(self._sample))
        whole = slice(0, len(self._sample)), slice(0, len(counts))
        unchanged = {table: np.arange(length) for table, length in self._dictionary.lengths.items()}
        parts = self._parts(*whole, counts, unchanged)
        self._row_bytes = sum(part.cells.shape[1] for part in parts if part.counts is counts)
        self._head_bytes = sizes(parts, len(counts)) - counts * self._row_bytes
        cost = np.full(len(self._sample), self._row_bytes, dtype=np.intp)
        cost[self._starts] += self._head_bytes
        first_of_stack = np.flatnonzero(np.diff(self._stack, prepend=0))
        cost[self._starts[first_of_stack]] += self._dictionary.sizes["stacks"][self._stack[first_of_stack]]
        self._least = np.cumsum(cost)

    def run(self, first: int, room: int) -> Run:
        """Rows from ``first`` on that take at most ``room`` bytes with their dictionary; at least one."""
        before = int(self._least[first - 1]) if first else 0
        rows = max(int(np.searchsorted(self._least, before + room, side="right")) - first, 1)
        samples = slice(int(self._sample[first]), int(self._sample[first + rows - 1]) + 1)
        at = np.maximum(self._starts[samples] - first, 0)

        need = self._dictionary.need(rows)
        need["strings"][self._strings_of_all] = 0
        np.minimum.at(need["stacks"], self._stack[samples], at)
        np.minimum.at(need["links"], self._link[samples], at)
        np.minimum.at(need["attributes"], self._attributes[samples], at[:, None])
        self._dictionary.close(need, rows)

        cost = np.full(rows, self._row_bytes, dtype=np.intp)
        cost[at] += self._head_bytes[samples]
        for table in TABLES:
            some = np.flatnonzero(need[table] < rows)
            np.add.at(cost, need[table][some], self._dictionary.sizes[table][some])
        rows = max(int(np.searchsorted(np.cumsum(cost), room, side="right")), 1)
        return self._run(first, rows, {table: first_need < rows for table, first_need in need.items()})

    @staticmethod
    def _run(first: int, rows: int, used: dict[str, npt.NDArray[np.bool_]]) -> Run:
        return Run(
            first,
            first + rows,
            {table: np.flatnonzero(mask) for table, mask in used.items()},
            {table: np.cumsum(mask) - 1 for table, mask in used.items()},
        )

    def samples(self, run: Run) -> Bytes:
        """The fields ``Profile.samples`` of a run."""
        samples = slice(int(self._sample[run.first]), int(self._sample[run.last - 1]) + 1)
        starts = np.maximum(self._starts[samples], run.first)
        counts = np.diff(starts, append=run.last)
        parts = self._parts(slice(run.first, run.last), samples, counts, run.numbers)
        return written(_SAMPLES, parts, len(counts))

    def dictionary(self, run: Run) -> list[bytes | Cells]:
        """The fields of the ``ProfilesDictionary`` of a run."""
        return self._dictionary.write(run.used, run.numbers)

    def type_numbers(self, run: Run) -> list[int]:
        """Numbers of the strings of the sample type and the period type: type, unit, type, unit."""
        numbers: list[int] = run.numbers["strings"][self._strings_of_all].tolist()
        return numbers

    def _parts(self, rows: slice, samples: slice, counts: Codes, numbers: Numbers) -> list[Part]:
        """``counts``: how many of ``rows`` each of ``samples`` has."""
        attributes = self._attributes[samples]
        present = attributes != 0
        head = [integers(_SAMPLE_STACK, numbers["stacks"][self._stack[samples]])]
        if self._dictionary.lengths["links"] > 1:
            head.append(integers(_SAMPLE_LINK, numbers["links"][self._link[samples]]))
        parts = [Part(beside(*head))]
        if attributes.shape[1]:
            carried = integers(b"", numbers["attributes"][attributes[present]])
            parts.append(Part(carried, np.count_nonzero(present, axis=1), _SAMPLE_ATTRIBUTES))
        parts.append(Part(self._values[rows], counts, _SAMPLE_VALUES))
        if self._times is not None:
            parts.append(Part(self._times[rows], counts, _SAMPLE_TIMES))
        return parts


def _stacks(columns: ProfileColumns, entries: Entries) -> Codes:
    """The number of each row's stack."""
    _check_codes(columns.stack, len(columns), len(columns.stacks), "stack")
    number = np.zeros(len(columns.stacks), dtype=np.intp)
    for code in values_of(columns.stack):
        number[code] = entries.stack(columns.stacks[code])
    return number[columns.stack]


def _links(columns: ProfileColumns) -> tuple[Codes, Cells]:
    """The number of each row's link, and the distinct links."""
    links = columns.links
    if links is None:
        return np.zeros(len(columns), dtype=np.intp), np.zeros((1, 24), dtype=np.uint8)
    check(len(links.trace_id) == len(links.span_id), "links", "not as many span ids as trace ids")
    _check_codes(links.codes, len(columns), len(links.trace_id), "links")
    distinct_ids, number = distinct_links(links.trace_id, links.span_id)
    return number[links.codes], distinct_ids


def _attributes(columns: ProfileColumns, entries: Entries) -> tuple[Codes, list[IntegerAttributes]]:
    """Each row's numbers in the attribute table: shape (n, keys), 0 where it has none. And the integers' entries."""
    keys = [utf8(attribute.key) for attribute in columns.attributes]
    check(len(set(keys)) == len(keys), "attributes", "a key twice")
    masks = [_mask(attribute, len(columns)) for attribute in columns.attributes]
    numbers = np.zeros((len(columns), len(keys)), dtype=np.intp, order="F")
    for attribute, mask, number in zip(columns.attributes, masks, numbers.T, strict=True):
        if isinstance(attribute.values, Text):
            codes, table = attribute.values.codes[mask], attribute.values.table
            _check_codes(codes, len(codes), len(table), attribute.key)
            entry = np.zeros(len(table), dtype=np.intp)
            for code in values_of(codes) if len(codes) else ():
                entry[code] = entries.attribute(attribute.key, table[code])
            number[mask] = entry[codes]
    known = len(entries.attributes)
    integer: list[IntegerAttributes] = []
    for attribute, mask, number in zip(columns.attributes, masks, numbers.T, strict=True):
        if not isinstance(attribute.values, Text):
            check(attribute.values.dtype.kind in "iu", attribute.key, "values that are not integers")
            values, codes = distinct(attribute.values[mask])
            if len(values):
                number[mask] = codes + known
                integer.append(IntegerAttributes(entries.string(attribute.key), values))
                known += len(values)
    return numbers, integer


def _mask(attribute: Attribute, rows: int) -> npt.NDArray[np.bool_]:
    values = attribute.values.codes if isinstance(attribute.values, Text) else attribute.values
    check(len(values) == rows, attribute.key, f"{len(values)} values for {rows} samples")
    if attribute.present is None:
        return np.ones(rows, dtype=np.bool_)
    check(
        len(attribute.present) == rows,
        attribute.key,
        f"a mask of {len(attribute.present)} for {rows} samples",
    )
    return attribute.present


def _check_codes(codes: Codes, rows: int, size: int, what: str) -> None:
    check(len(codes) == rows, what, f"not {rows} rows")
    low, high = bounds(codes)
    check(low >= 0 and high < size, what, f"a code outside its table of {size}")
