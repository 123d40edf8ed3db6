"""The dictionary of one batch of profile samples, of which each payload writes the part that it uses. Pure.

In: the tables of :class:`~otelgpu.model.profiles.ProfileColumns`. Out: fields of a ``ProfilesDictionary``
(opentelemetry/proto/profiles/v1development/profiles.proto). It must not know samples.

How. :class:`Entries` numbers what the samples reach, each distinct thing once: equal things under two codes,
or texts that differ only in what is not Unicode, become one. Then each table is columns. Number 0 of a table
is its zero value; what equals that (a function without names, an empty stack) has it. ``Need`` says from which
row on an entry is needed: from that follow the cost of every row, and what a payload up to it holds.

Example: row 40 is the first under a stack whose leaf's function is named nowhere before. In a payload of
rows 0 to 60, the stack, the location, the function and its name are needed from 40 on, and cost row 40 their
bytes. A payload of rows 61 to 90 needs them from 61, or not at all. Invariant: entries keep their order and are
numbered without gaps, so no entry is longer in a payload than :attr:`Dictionary.sizes` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.export.messages import Cells, Part, beside, constant, integers, sizes, spread, written
from otelgpu.export.protobuf import ANY_INT, AnyArray, any_value, delimited, utf8
from otelgpu.model.codes import Codes, combine, distinct, examples
from otelgpu.model.profiles import FrameType, Function, Line, Location, Mapping, ProfileColumns

FRAME_TYPE: Final = "profile.frame.type"
BUILD_ID_GNU: Final = "process.executable.build_id.gnu"
BUILD_ID_HTLHASH: Final = "process.executable.build_id.htlhash"

# Tag bytes: field number << 3 | wire type (0 varint, 2 bytes). Of ProfilesDictionary:
_MAPPINGS, _LOCATIONS, _FUNCTIONS, _LINKS = b"\x0a", b"\x12", b"\x1a", b"\x22"
_STRINGS, _ATTRIBUTES, _STACKS = b"\x2a", b"\x32", b"\x3a"
_MAPPING_ATTRIBUTES, _LOCATION_LINES, _LOCATION_ATTRIBUTES = b"\x2a", b"\x1a", b"\x22"
_LINK_TRACE_ID, _LINK_SPAN_ID = b"\x0a\x10", b"\x12\x08"
_ATTRIBUTE_VALUE, _STACK_LOCATIONS = b"\x12", b"\x0a"
# Of messages whose numbers are fields 1, 2, …
_FIRST, _SECOND, _THIRD, _FOURTH = b"\x08", b"\x10", b"\x18", b"\x20"

_EMPTY: Final = b"\x00"
"""Length and content of a message of nothing but zero values."""

_U64: Final = 0xFFFF_FFFF_FFFF_FFFF
TABLES: Final = ("mappings", "locations", "functions", "links", "strings", "attributes", "stacks")
"""In the order of their field numbers."""

Need = dict[str, Codes]
"""By table, the first row that needs each entry: the number of rows, or more, where none does."""

Numbers = dict[str, Codes]
"""By table, numbers of entries."""


class Lists(Struct, frozen=True):
    """A list of numbers per row, end to end."""

    counts: Codes
    flat: AnyArray

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> Lists:
        """From one sequence per row."""
        rows = list(rows)
        counts = np.fromiter(map(len, rows), dtype=np.intp, count=len(rows))
        flat = np.fromiter(chain.from_iterable(rows), dtype=np.intp, count=int(counts.sum()))
        return cls(counts, flat)

    def among(self, rows: Codes) -> Lists:
        """The lists of some rows."""
        starts = np.cumsum(self.counts) - self.counts
        counts = self.counts[rows]
        return Lists(counts, self.flat[spread(starts[rows], counts)])

    def lower(self, need: Codes, by: Codes) -> None:
        """What a row's list names is needed when the row is."""
        np.minimum.at(need, self.flat, np.repeat(by, self.counts))


class Entries:
    """Numbers for distinct things, from 1 on in order of appearance; and what 0 stands for.

    Raises :class:`ValueError` where a table names a position that another lacks.
    """

    def __init__(self, columns: ProfileColumns) -> None:
        self._columns = columns
        self._mapping_codes: dict[int, int] = {}
        self._function_codes: dict[int, int] = {}
        self._location_codes: dict[int, int] = {}
        self._frame_types: dict[FrameType, int] = {}
        self.strings: dict[bytes, int] = {b"": 0}
        self.attributes: dict[tuple[int, bytes], int] = {(0, b""): 0}
        self.mappings: dict[tuple[int, int, int, int, tuple[int, ...]], int] = {(0, 0, 0, 0, ()): 0}
        self.functions: dict[tuple[int, int, int], int] = {(0, 0, 0): 0}
        self.locations: dict[tuple[int, int, int, tuple[tuple[int, int], ...]], int] = {(0, 0, 0, ()): 0}
        self.stacks: dict[tuple[int, ...], int] = {(): 0}

    def string(self, text: str) -> int:
        """The number of a text, once it is valid UTF-8."""
        return _number(self.strings, utf8(text))

    def attribute(self, key: str, text: str | tuple[str, ...]) -> int:
        """The number of a key with a text."""
        return _number(self.attributes, (self.string(key), any_value(text)))

    def stack(self, codes: tuple[int, ...]) -> int:
        """The number of a stack of the batch's locations, which are numbered with all that they refer to."""
        known = self._location_codes
        for code in codes:
            if code not in known:
                known[code] = self._location(code)
        return _number(self.stacks, tuple(map(known.__getitem__, codes)))

    def _location(self, code: int) -> int:
        location: Location = _entry(self._columns.locations, code, "locations")
        key = (
            0 if location.mapping is None else self._mapping(location.mapping),
            location.address & _U64,
            self._frame_type(location.frame_type),
            tuple(map(self._line, location.lines)),
        )
        return _number(self.locations, key)

    def _frame_type(self, frame_type: FrameType) -> int:
        number = self._frame_types.get(frame_type)
        if number is None:
            number = self._frame_types[frame_type] = self.attribute(FRAME_TYPE, frame_type.value)
        return number

    def _line(self, line: Line) -> tuple[int, int]:
        return self._function(line.function), line.line & _U64

    def _function(self, code: int) -> int:
        number = self._function_codes.get(code)
        if number is None:
            function: Function = _entry(self._columns.functions, code, "functions")
            names = (function.name, function.system_name, function.file_name)
            name, system_name, file_name = map(self.string, names)
            number = self._function_codes[code] = _number(self.functions, (name, system_name, file_name))
        return number

    def _mapping(self, code: int) -> int:
        number = self._mapping_codes.get(code)
        if number is None:
            mapping: Mapping = _entry(self._columns.mappings, code, "mappings")
            ids = ((BUILD_ID_GNU, mapping.build_id_gnu), (BUILD_ID_HTLHASH, mapping.build_id_htlhash))
            key = (
                mapping.memory_start & _U64,
                mapping.memory_limit & _U64,
                mapping.file_offset & _U64,
                self.string(mapping.file_name),
                tuple(self.attribute(name, build_id) for name, build_id in ids if build_id),
            )
            number = self._mapping_codes[code] = _number(self.mappings, key)
        return number


def _number(table: dict[Any, int], key: object) -> int:
    return table.setdefault(key, len(table))


def _entry(table: Sequence[Any], code: int, what: str) -> Any:
    if not 0 <= code < len(table):
        raise ValueError(f"profile table {what!r} has no entry {code}; it has {len(table)}")
    return table[code]


def distinct_links(trace_id: npt.NDArray[np.uint8], span_id: npt.NDArray[np.uint8]) -> tuple[Cells, Codes]:
    """The 24 bytes of each distinct link, number 0 being none; and the number of each row of the table."""
    ids = np.ascontiguousarray(np.concatenate([trace_id, span_id], axis=1))
    words = ids.view("<u8")
    none = ((words[:, 0] | words[:, 1]) == 0) | (words[:, 2] == 0)
    parts = [distinct(words[:, i]) for i in range(3)]
    same, count = combine([(codes, len(values)) for values, codes in parts], len(ids))
    example = examples(same, count)
    is_link = ~none[example]
    number = np.where(is_link, np.cumsum(is_link), 0)
    zero = np.zeros((1, 24), dtype=np.uint8)
    return np.concatenate([zero, ids[example[is_link]]]), number[same]


class IntegerAttributes(Struct, frozen=True):
    """Distinct values of one attribute; they are numbered after those of :class:`Entries`."""

    key: int  # number of the string
    values: AnyArray


class Dictionary:
    """The tables as columns. ``sizes``: by table, bytes of each entry at most."""

    def __init__(
        self, entries: Entries, integer_attributes: Sequence[IntegerAttributes], links: Cells
    ) -> None:
        self._strings = [delimited(_STRINGS, text) for text in entries.strings]
        self._functions = np.array(list(entries.functions), dtype=np.intp)
        start, limit, offset, file_name, build_ids = zip(*entries.mappings, strict=True)
        self._memory = np.array([start, limit, offset], dtype=np.uint64)
        self._mapping_file = np.array(file_name, dtype=np.intp)
        self._mapping_attributes = Lists.of(build_ids)
        mapping, address, frame_type, lines = zip(*entries.locations, strict=True)
        self._location_mapping = np.array(mapping, dtype=np.intp)
        self._address = np.array(address, dtype=np.uint64)
        self._frame_type = np.array(frame_type, dtype=np.intp)
        self._line_functions = Lists.of([[function for function, _ in of] for of in lines])
        numbers = np.array([line for of in lines for _, line in of], dtype=np.uint64)
        self._line_numbers = Lists(self._line_functions.counts, numbers)
        self._stacks = Lists.of(entries.stacks)
        self._links = links
        self._take_attributes(entries, integer_attributes)
        self._writers = {
            "mappings": (_MAPPINGS, self._mapping_parts),
            "locations": (_LOCATIONS, self._location_parts),
            "functions": (_FUNCTIONS, self._function_parts),
            "links": (_LINKS, self._link_parts),
            "attributes": (_ATTRIBUTES, self._attribute_parts),
            "stacks": (_STACKS, self._stack_parts),
        }
        self.lengths = {
            "mappings": len(entries.mappings),
            "locations": len(entries.locations),
            "functions": len(entries.functions),
            "links": len(links),
            "strings": len(entries.strings),
            "attributes": len(self._attribute_key),
            "stacks": len(entries.stacks),
        }
        unchanged = {table: np.arange(length) for table, length in self.lengths.items()}
        self.sizes = {
            table: sizes(parts(unchanged[table], unchanged), self.lengths[table])
            for table, (_, parts) in self._writers.items()
        }
        for of_table in self.sizes.values():
            of_table[0] = 1 + len(_EMPTY)
        self.sizes["strings"] = np.fromiter(map(len, self._strings), dtype=np.intp)

    def _take_attributes(self, entries: Entries, integer: Sequence[IntegerAttributes]) -> None:
        texts = [value for _, value in entries.attributes]
        keys = [np.array([key for key, _ in entries.attributes], dtype=np.intp)]
        counts = [np.fromiter(map(len, texts), dtype=np.intp, count=len(texts))]
        data = [np.frombuffer(b"".join(texts), dtype=np.uint8)]
        for attribute in integer:
            value = integers(ANY_INT, attribute.values)
            keys.append(np.full(len(value), attribute.key, dtype=np.intp))
            counts.append(np.full(len(value), value.shape[1], dtype=np.intp))
            data.append(value.reshape(-1))
        self._attribute_key = np.concatenate(keys)
        self._attribute_value = Lists(np.concatenate(counts), np.concatenate(data))

    def need(self, rows: int) -> Need:
        """Nothing is needed by any of ``rows`` rows, but the zero values by the first."""
        need = {table: np.full(length, rows, dtype=np.intp) for table, length in self.lengths.items()}
        for first in need.values():
            first[0] = 0
        return need

    def close(self, need: Need, rows: int) -> None:
        """What needed entries refer to is needed as early as they are.

        Entries that none of the ``rows`` rows needs say so to what they refer to, which changes nothing.
        """
        used = np.flatnonzero(need["stacks"] < rows)
        self._stacks.among(used).lower(need["locations"], need["stacks"][used])
        used = np.flatnonzero(need["locations"] < rows)
        by = need["locations"][used]
        self._line_functions.among(used).lower(need["functions"], by)
        np.minimum.at(need["mappings"], self._location_mapping[used], by)
        np.minimum.at(need["attributes"], self._frame_type[used], by)
        self._mapping_attributes.lower(need["attributes"], need["mappings"])
        np.minimum.at(need["strings"], self._functions, need["functions"][:, None])
        np.minimum.at(need["strings"], self._mapping_file, need["mappings"])
        np.minimum.at(need["strings"], self._attribute_key, need["attributes"])

    def write(self, used: Numbers, numbers: Numbers) -> list[bytes | Cells]:
        """The tables' fields: the entries ``used``, in order, under their new ``numbers``."""
        fields: list[bytes | Cells] = []
        for table in TABLES:
            rows = used[table]
            if table == "strings":
                fields.append(b"".join(map(self._strings.__getitem__, rows.tolist())))
                continue
            tag, parts = self._writers[table]
            rows = rows[1:]
            fields += [tag + _EMPTY, written(tag, parts(rows, numbers), len(rows))]
        return fields

    def _mapping_parts(self, rows: Codes, numbers: Numbers) -> list[Part]:
        start, limit, offset = self._memory[:, rows]
        attributes = self._mapping_attributes.among(rows)
        return [
            Part(
                beside(
                    integers(_FIRST, start),
                    integers(_SECOND, limit),
                    integers(_THIRD, offset),
                    integers(_FOURTH, numbers["strings"][self._mapping_file[rows]]),
                )
            ),
            Part(
                integers(b"", numbers["attributes"][attributes.flat]), attributes.counts, _MAPPING_ATTRIBUTES
            ),
        ]

    def _location_parts(self, rows: Codes, numbers: Numbers) -> list[Part]:
        functions, lines = self._line_functions.among(rows), self._line_numbers.among(rows)
        line = beside(integers(_FIRST, numbers["functions"][functions.flat]), integers(_SECOND, lines.flat))
        return [
            Part(
                beside(
                    integers(_FIRST, numbers["mappings"][self._location_mapping[rows]]),
                    integers(_SECOND, self._address[rows]),
                )
            ),
            Part(integers(b"", numbers["attributes"][self._frame_type[rows]]), None, _LOCATION_ATTRIBUTES),
            Part(
                beside(constant(_LOCATION_LINES + bytes([line.shape[1]]), len(line)), line), functions.counts
            ),
        ]

    def _function_parts(self, rows: Codes, numbers: Numbers) -> list[Part]:
        names = numbers["strings"][self._functions[rows]].T
        tags = (_FIRST, _SECOND, _THIRD)
        return [Part(beside(*(integers(tag, name) for tag, name in zip(tags, names, strict=True))))]

    def _link_parts(self, rows: Codes, _: Numbers) -> list[Part]:
        ids, count = self._links[rows], len(rows)
        trace, span = constant(_LINK_TRACE_ID, count), constant(_LINK_SPAN_ID, count)
        return [Part(beside(trace, ids[:, :16], span, ids[:, 16:]))]

    def _attribute_parts(self, rows: Codes, numbers: Numbers) -> list[Part]:
        values = self._attribute_value.among(rows)
        return [
            Part(integers(_FIRST, numbers["strings"][self._attribute_key[rows]])),
            Part(values.flat.reshape(-1, 1), values.counts, _ATTRIBUTE_VALUE),
        ]

    def _stack_parts(self, rows: Codes, numbers: Numbers) -> list[Part]:
        stacks = self._stacks.among(rows)
        return [Part(integers(b"", numbers["locations"][stacks.flat]), stacks.counts, _STACK_LOCATIONS)]
