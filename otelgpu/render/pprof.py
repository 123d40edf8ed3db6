"""pprof: one gzipped ``Profile`` message with every sample type, as ``go tool pprof`` reads it. Pure.

In: batches of any types. Out: bytes. Observations of one stack and one set of labels are one sample, with a
value for each type, zero where it has none. Labels are the observations' attributes (thread, state) and the ids
of the span.

Source: https://github.com/google/pprof/blob/main/proto/profile.proto
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from otelgpu.model.codes import combine, distinct, examples
from otelgpu.model.profiles import Location, ProfileColumns, ValueType
from otelgpu.model.spans import Attribute, Text
from otelgpu.render.frames import GPU_PREFIX, Kind, location_frames
from otelgpu.render.pprof_messages import Profile
from otelgpu.render.stacks import Codes, by_type

_U64: Final = 0xFFFF_FFFF_FFFF_FFFF

Label = tuple[int, int, int]
"""Key, text, number: positions of strings, and the integer of labels that have one."""


def pprof(batches: Sequence[ProfileColumns]) -> bytes:
    """The profile of all batches."""
    writer = _Writer(by_type(batches))
    return gzip.compress(writer.message(), compresslevel=6, mtime=0)


def _program(batches: Sequence[ProfileColumns]) -> str:
    """The path or name of the program that most observations are of; "" where none is known."""
    counts: Counter[str] = Counter()
    for batch in batches:
        found = batch.resource.get("process.executable.path") or batch.resource.get("process.executable.name")
        counts[found if isinstance(found, str) else ""] += len(batch)
    return max(counts, key=lambda name: (bool(name), counts[name]), default="")


class _Writer:
    """Numbers what samples name, and sums samples that are alike."""

    def __init__(self, groups: dict[ValueType, list[ProfileColumns]]) -> None:
        self._strings: dict[str, int] = {"": 0}
        self._mappings: dict[tuple[int, ...], int] = {}  # memory start, limit, file offset, file, build id
        self._functions: dict[tuple[int, ...], int] = {}  # name, system name, file
        self._locations: dict[tuple[int, ...], int] = {}  # mapping, address, function and line of each frame
        self._samples: dict[tuple[tuple[int, ...], tuple[Label, ...]], list[int]] = {}
        self._types = list(groups)
        self._batches = [batch for some in groups.values() for batch in some]
        for position, some in enumerate(groups.values()):
            for batch in some:
                self._take(batch, position)

    def message(self) -> bytes:
        """The whole ``Profile``, not compressed."""
        made = Profile()
        for type_ in self._types:
            self._set_type(made.sample_type.add(), type_)
        for (locations, labels), values in self._samples.items():
            sample = made.sample.add(location_id=locations, value=map(_int64, values))
            for key, text, number in labels:
                sample.label.add(key=key, str=text, num=number)
        for (start, limit, offset, file, build_id), code in self._mappings_in_order():
            # It has functions, files, lines and inlined frames: nobody shall look for symbols again.
            made.mapping.add(
                id=code,
                memory_start=start,
                memory_limit=limit,
                file_offset=offset,
                filename=file,
                build_id=build_id,
                has_functions=True,
                has_filenames=True,
                has_line_numbers=True,
                has_inline_frames=True,
            )
        for (mapping, address, *frames), code in self._locations.items():
            location = made.location.add(id=code, mapping_id=mapping, address=address)
            for function, line in zip(frames[::2], frames[1::2], strict=True):
                location.line.add(function_id=function, line=line)
        for (name, system_name, file), code in self._functions.items():
            made.function.add(id=code, name=name, system_name=system_name, filename=file)
        if self._batches:
            begin = min(batch.start_unix_ns for batch in self._batches)
            end = max(batch.start_unix_ns + batch.duration_ns for batch in self._batches)
            made.time_nanos, made.duration_nanos = _int64(begin), _int64(end - begin)
            self._set_type(made.period_type, self._batches[0].period_type)
            made.period = _int64(self._batches[0].period)
            made.default_sample_type = self._string(self._types[0].type)
        made.string_table.extend(text.encode("utf-8", "replace") for text in self._strings)
        message: bytes = made.SerializeToString()
        return message

    def _mappings_in_order(self) -> list[tuple[tuple[int, ...], int]]:
        """The first is the program's: what a profile is called by, though none of its stacks may lead there."""
        program = _program(self._batches)
        files = [text for text in self._strings if program and program in (text, text.rpartition("/")[2])]
        of_program = {self._strings[file] for file in files}
        if program and not any(body[3] in of_program for body in self._mappings):
            number = self._string(program)
            self._mappings[0, 0, 0, number, 0] = len(self._mappings) + 1
            of_program.add(number)
        return sorted(self._mappings.items(), key=lambda each: each[0][3] not in of_program)

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
            yield np.zeros(len(batch), dtype=np.intp), [(key, 0, _int64(pid) if isinstance(pid, int) else 0)]
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
            table = [
                (key, self._string(str(value)), 0) if isinstance(value, float) else (key, 0, _int64(value))
                for value in values.tolist()
            ]
        if attribute.present is not None:
            codes = np.where(attribute.present, codes, len(table))
        return codes, [*table, None]

    def _location(self, batch: ProfileColumns, code: int) -> int:
        location: Location | None = batch.locations[code] if 0 <= code < len(batch.locations) else None
        mapping = 0 if location is None else self._mapping(batch, location.mapping)
        parts = [mapping, location.address & _U64 if location is not None else 0]
        for frame in location_frames(batch, code):
            name = (
                f"{GPU_PREFIX}{frame.name}"
                if frame.kind is Kind.GPU and frame.label != frame.name
                else frame.name
            )
            function = (self._string(name), self._string(frame.name), self._string(frame.file))
            parts += self._functions.setdefault(function, len(self._functions) + 1), _int64(frame.line)
        return self._locations.setdefault(tuple(parts), len(self._locations) + 1)

    def _mapping(self, batch: ProfileColumns, code: int | None) -> int:
        if code is None or not 0 <= code < len(batch.mappings):
            return 0
        mapping = batch.mappings[code]
        build_id = mapping.build_id_gnu or mapping.build_id_htlhash
        body = (
            mapping.memory_start & _U64,
            mapping.memory_limit & _U64,
            mapping.file_offset & _U64,
            self._string(mapping.file_name),
            self._string(build_id),
        )
        return self._mappings.setdefault(body, len(self._mappings) + 1)

    def _set_type(self, message: Any, type_: ValueType) -> None:
        message.type, message.unit = self._string(type_.type), self._string(type_.unit)

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))


def _int64(value: int) -> int:
    """What is more than 64 bits wraps around."""
    return (value + 2**63) % 2**64 - 2**63
