"""pprof: one gzipped ``Profile`` message with every sample type, as ``go tool pprof`` reads it. Pure.

In: batches of any types. Out: bytes. Observations of one stack and one set of labels are one sample, with a
value for each type, zero where it has none. Labels are the observations' attributes (thread, state) and the ids
of the span.

Source: https://github.com/google/pprof/blob/main/proto/profile.proto; field numbers below are its.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from otelgpu.model.codes import combine, distinct, examples
from otelgpu.model.profiles import Location, ProfileColumns, ValueType
from otelgpu.model.spans import Attribute, Text
from otelgpu.render.frames import GPU_PREFIX, Kind, location_frames
from otelgpu.render.stacks import Codes, by_type

_SAMPLE_TYPE, _SAMPLE, _MAPPING, _LOCATION, _FUNCTION, _STRING = 1, 2, 3, 4, 5, 6
_TIME, _DURATION, _PERIOD_TYPE, _PERIOD, _DEFAULT_TYPE = 9, 10, 11, 12, 14
_U64: Final = 0xFFFF_FFFF_FFFF_FFFF

Label = tuple[int, int, int]
"""Key, text, number: positions of strings, and the integer of labels that have one."""


def pprof(batches: Sequence[ProfileColumns]) -> bytes:
    """The profile of all batches."""
    writer = _Writer(by_type(batches))
    return gzip.compress(writer.message(), compresslevel=6, mtime=0)


class _Writer:
    """Numbers what samples name, and sums samples that are alike."""

    def __init__(self, groups: dict[ValueType, list[ProfileColumns]]) -> None:
        self._strings: dict[str, int] = {"": 0}
        self._mappings: dict[bytes, int] = {}
        self._functions: dict[bytes, int] = {}
        self._locations: dict[bytes, int] = {}
        self._samples: dict[tuple[tuple[int, ...], tuple[Label, ...]], list[int]] = {}
        self._types = list(groups)
        self._batches = [batch for some in groups.values() for batch in some]
        for position, some in enumerate(groups.values()):
            for batch in some:
                self._take(batch, position)

    def message(self) -> bytes:
        """The whole ``Profile``, not compressed."""
        parts = [field(_SAMPLE_TYPE, self._value_type(type_)) for type_ in self._types]
        for (locations, labels), values in self._samples.items():
            sample = [field(1, packed(locations)), field(2, packed(values))]
            sample += [field(3, _label(label)) for label in labels]
            parts.append(field(_SAMPLE, b"".join(sample)))
        for number, table in (
            (_MAPPING, self._mappings),
            (_LOCATION, self._locations),
            (_FUNCTION, self._functions),
        ):
            parts += [field(number, integer(1, code) + body) for body, code in table.items()]
        if self._batches:
            begin = min(batch.start_unix_ns for batch in self._batches)
            end = max(batch.start_unix_ns + batch.duration_ns for batch in self._batches)
            parts += [integer(_TIME, begin), integer(_DURATION, end - begin)]
            parts.append(field(_PERIOD_TYPE, self._value_type(self._batches[0].period_type)))
            parts.append(integer(_PERIOD, self._batches[0].period))
            parts.append(integer(_DEFAULT_TYPE, self._string(self._types[0].type)))
        parts += [field(_STRING, text.encode("utf-8", "replace")) for text in self._strings]
        return b"".join(parts)

    def _take(self, batch: ProfileColumns, position: int) -> None:
        columns = list(self._label_columns(batch))
        rows = len(batch)
        parts = [distinct(batch.stack), *(distinct(codes) for codes, _ in columns)]
        code, size = combine([(codes, len(values)) for values, codes in parts], rows)
        sums = [0] * size
        values = np.zeros(size, dtype=np.int64)
        np.add.at(values, code, batch.value.astype(np.int64))
        sums = values.tolist()
        example = examples(code, size)
        stacks = batch.stack[example].tolist()
        rows_of = [[table[of] for of in codes[example].tolist()] for codes, table in columns]
        labels = [tuple(each for each in row if each is not None) for row in zip(*rows_of, strict=True)]
        locations: dict[int, int] = {}
        known: dict[int, tuple[int, ...]] = {}
        for row, (stack, value) in enumerate(zip(stacks, sums, strict=True)):
            ids = known.get(stack)
            if ids is None:
                for place in batch.stacks[stack]:
                    if place not in locations:
                        locations[place] = self._location(batch, place)
                ids = known[stack] = tuple(locations[place] for place in batch.stacks[stack])
            key = (ids, labels[row] if labels else ())
            found = self._samples.setdefault(key, [0] * len(self._types))
            found[position] += value

    def _label_columns(self, batch: ProfileColumns) -> Iterator[tuple[Codes, list[Label | None]]]:
        """Columns of positions in tables of labels."""
        for attribute in batch.attributes:
            yield self._labels(attribute)
        if batch.resource.get("process.pid") is not None and len({b.resource for b in self._batches}) > 1:
            key, pid = self._string("process.pid"), batch.resource.get("process.pid")
            yield np.zeros(len(batch), dtype=np.intp), [(key, 0, int(pid) if isinstance(pid, int) else 0)]
        if batch.links is not None:
            for name, ids in (("trace_id", batch.links.trace_id), ("span_id", batch.links.span_id)):
                key = self._string(name)
                texts = [row.tobytes().hex() if row.any() else "" for row in ids]
                table = [(key, self._string(text), 0) if text else None for text in texts]
                yield batch.links.codes, table

    def _labels(self, attribute: Attribute) -> tuple[Codes, list[Label | None]]:
        key = self._string(attribute.key)
        table: list[Label | None]
        codes: Codes
        if isinstance(attribute.values, Text):
            texts = [each if isinstance(each, str) else " ".join(each) for each in attribute.values.table]
            table = [(key, self._string(text), 0) for text in texts]
            codes = attribute.values.codes
        else:
            values, codes = distinct(attribute.values)
            table = [(key, 0, value) for value in values.tolist()]
        if attribute.present is not None:
            codes = np.where(attribute.present, codes, len(table))
        return codes, [*table, None]

    def _location(self, batch: ProfileColumns, code: int) -> int:
        location: Location | None = batch.locations[code] if 0 <= code < len(batch.locations) else None
        mapping = 0 if location is None else self._mapping(batch, location.mapping)
        parts = [integer(2, mapping), integer(3, location.address if location is not None else 0)]
        for frame in location_frames(batch, code):
            name = (
                f"{GPU_PREFIX}{frame.name}"
                if frame.kind is Kind.GPU and frame.label != frame.name
                else frame.name
            )
            function = integer(2, self._string(name)) + integer(3, self._string(frame.name))
            function += integer(4, self._string(frame.file))
            number = self._functions.setdefault(function, len(self._functions) + 1)
            parts.append(field(4, integer(1, number) + integer(2, frame.line)))
        return self._locations.setdefault(b"".join(parts), len(self._locations) + 1)

    def _mapping(self, batch: ProfileColumns, code: int | None) -> int:
        if code is None or not 0 <= code < len(batch.mappings):
            return 0
        mapping = batch.mappings[code]
        build_id = mapping.build_id_gnu or mapping.build_id_htlhash
        numbers = (mapping.memory_start, mapping.memory_limit, mapping.file_offset)
        texts = (self._string(mapping.file_name), self._string(build_id))
        body = b"".join(integer(2 + at, value) for at, value in enumerate((*numbers, *texts)))
        # It has functions, files, lines and inlined frames: nobody shall look for symbols again.
        body += b"".join(integer(number, 1) for number in (7, 8, 9, 10))
        return self._mappings.setdefault(body, len(self._mappings) + 1)

    def _value_type(self, type_: ValueType) -> bytes:
        return integer(1, self._string(type_.type)) + integer(2, self._string(type_.unit))

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))


def _label(label: Label) -> bytes:
    key, text, number = label
    return integer(1, key) + integer(2, text) + integer(3, number)


def varint(value: int) -> bytes:
    """The varint of the low 64 bits."""
    value &= _U64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer(number: int, value: int) -> bytes:
    """A field with an integer; nothing for zero."""
    return varint(number << 3) + varint(value) if value else b""


def field(number: int, data: bytes) -> bytes:
    """A field with a message or bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def packed(values: Iterable[Any]) -> bytes:
    """Integers of a repeated field."""
    return b"".join(map(varint, values))
