"""pprof files → columns, so that what other tools wrote can be compared and drawn. Pure.

In: the bytes of a ``Profile`` (https://github.com/google/pprof/blob/main/proto/profile.proto), gzipped or not.
Out: a batch for each sample type. Frames are taken for native, kernel, Python or GPU by what their files and
names say, for pprof does not. Raises :class:`ValueError` where the bytes are no such message.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from otelgpu.model.profiles import FrameType, Function, Line, Location, ProfileColumns, ValueType
from otelgpu.model.resource import resource
from otelgpu.render.frames import GPU_PREFIX

MOST_BYTES: Final = 1 << 30
"""Of the message, when a small file unpacks to much."""


_NOT_KERNEL: Final = frozenset({"[vdso]", "[jit]", "[anonymous]", "[vsyscall]", "[heap]", "[stack]"})
"""Names in brackets that are no module of the kernel."""


@dataclass(slots=True)
class _Profile:
    """The fields that are looked at."""

    types: list[tuple[int, int]] = field(default_factory=list)
    samples: list[tuple[list[int], list[int]]] = field(default_factory=list)
    locations: dict[int, tuple[int, list[tuple[int, int]]]] = field(default_factory=dict)
    functions: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    strings: list[str] = field(default_factory=list)
    time: int = 0
    duration: int = 0
    period_type: tuple[int, int] = (0, 0)
    period: int = 0


def read_pprof(data: bytes) -> list[ProfileColumns]:
    """A batch for each sample type. Raises ValueError."""
    read = _parsed(_unpacked(data))
    numbers = {identity: code for code, identity in enumerate(read.functions)}
    functions = tuple(
        Function(name=_text(read, name), system_name=_text(read, system), file_name=_text(read, file))
        for name, system, file in read.functions.values()
    )
    places = {identity: code for code, identity in enumerate(read.locations)}
    locations = tuple(
        _location(address, lines, numbers, functions) for address, lines in read.locations.values()
    )
    stacks: dict[tuple[int, ...], int] = {}
    codes = [
        stacks.setdefault(tuple(places[each] for each in sample if each in places), len(stacks))
        for sample, _ in read.samples
    ]
    found = []
    for position, (type_, unit) in enumerate(read.types):
        values = [of[position] if position < len(of) else 0 for _, of in read.samples]
        some = np.flatnonzero(np.array(values, dtype=np.int64))
        found.append(
            ProfileColumns(
                resource=resource({}),
                scope="",
                sample_type=ValueType(type=_text(read, type_), unit=_text(read, unit)),
                period_type=ValueType(
                    type=_text(read, read.period_type[0]), unit=_text(read, read.period_type[1])
                ),
                period=read.period,
                start_unix_ns=max(read.time, 0),
                duration_ns=max(read.duration, 0),
                value=np.array(values, dtype=np.int64)[some],
                time_unix_ns=None,
                stack=np.array(codes, dtype=np.intp)[some],
                stacks=tuple(stacks) or ((),),
                locations=locations,
                functions=functions,
                mappings=(),
                links=None,
                attributes=(),
            )
        )
    return [batch for batch in found if len(batch)]


def _location(
    address: int, lines: list[tuple[int, int]], numbers: dict[int, int], functions: tuple[Function, ...]
) -> Location:
    known = tuple(
        Line(function=numbers[function], line=line) for function, line in lines if function in numbers
    )
    names = [functions[line.function] for line in known]
    kind = FrameType.NATIVE
    if any(name.name.startswith(GPU_PREFIX) for name in names):
        kind = FrameType.GPU
    elif any(name.file_name.endswith((".py", ".pyx")) for name in names):
        kind = FrameType.PYTHON
    elif any(name.file_name[:1] == "[" and name.file_name not in _NOT_KERNEL for name in names):
        kind = FrameType.KERNEL
    return Location(frame_type=kind, mapping=None, address=address, lines=known)


def _text(read: _Profile, code: int) -> str:
    return read.strings[code] if 0 <= code < len(read.strings) else ""


def _unpacked(data: bytes) -> bytes:
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            message = packed.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"no gzip data: {error}") from error
    if len(message) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES >> 20} MiB unpacked")
    return message


def _parsed(message: bytes) -> _Profile:
    read = _Profile()
    for number, value in _fields(message):
        if isinstance(value, bytes):
            if number == 1:
                read.types.append(_pair(value, 1, 2))
            elif number == 2:
                read.samples.append((_repeated(value, 1), [_signed(each) for each in _repeated(value, 2)]))
            elif number == 4:
                told = _numbers(value)
                lines = [
                    _pair(each, 1, 2) for of, each in _fields(value) if of == 4 and isinstance(each, bytes)
                ]
                read.locations[told.get(1, 0)] = (told.get(3, 0), [(f, _signed(line)) for f, line in lines])
            elif number == 5:
                told = _numbers(value)
                read.functions[told.get(1, 0)] = (told.get(2, 0), told.get(3, 0), told.get(4, 0))
            elif number == 6:
                read.strings.append(value.decode("utf-8", "replace"))
            elif number == 11:
                read.period_type = _pair(value, 1, 2)
        elif number == 9:
            read.time = _signed(value)
        elif number == 10:
            read.duration = _signed(value)
        elif number == 12:
            read.period = _signed(value)
    if not read.types or not read.strings:
        raise ValueError("no pprof profile: it has no sample types")
    return read


def _numbers(message: bytes) -> dict[int, int]:
    return {number: value for number, value in _fields(message) if isinstance(value, int)}


def _pair(message: bytes, one: int, other: int) -> tuple[int, int]:
    told = _numbers(message)
    return told.get(one, 0), told.get(other, 0)


def _repeated(message: bytes, wanted: int) -> list[int]:
    """Integers of a field, packed or not."""
    found: list[int] = []
    for number, value in _fields(message):
        if number != wanted:
            continue
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            each, at = _varint(value, at)
            found.append(each)
    return found


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields. Raises ValueError where it is none."""
    at, size = 0, len(message)
    while at < size:
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == 2:
            length, at = _varint(message, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"no protobuf message: wire type {wire}")
        if at + length > size:
            raise ValueError("a protobuf message that ends too soon")
        if wire == 2:
            yield number, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
    raise ValueError("a protobuf message that ends too soon")
