"""pprof files → columns, so that what other tools wrote can be compared and drawn. Pure.

In: the bytes of a ``Profile`` (https://github.com/google/pprof/blob/main/proto/profile.proto), gzipped or not.
Out: a batch for each sample type. Frames are taken for native, kernel, Python or GPU by what their files and
names say, for pprof does not. Raises :class:`ValueError` where the bytes are no such message.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from otelgpu.model.profiles import FrameType, Function, Line, Location, ProfileColumns, ValueType
from otelgpu.model.resource import resource
from otelgpu.render.frames import GPU_PREFIX
from otelgpu.render.pprof_messages import Profile

MOST_BYTES: Final = 1 << 30
"""Of the message, when a small file unpacks to much."""


_NOT_KERNEL: Final = frozenset({"[vdso]", "[jit]", "[anonymous]", "[vsyscall]", "[heap]", "[stack]"})
"""Names in brackets that are no module of the kernel."""


def read_pprof(data: bytes) -> list[ProfileColumns]:
    """A batch for each sample type. Raises ValueError."""
    read = _parsed(_unpacked(data))
    strings = [text.decode("utf-8", "replace") for text in read.string_table]
    by_id = {each.id: each for each in read.function}  # of equal ids the last one counts
    numbers = {identity: code for code, identity in enumerate(by_id)}
    functions = tuple(
        Function(
            name=_text(strings, each.name),
            system_name=_text(strings, each.system_name),
            file_name=_text(strings, each.filename),
        )
        for each in by_id.values()
    )
    located = {each.id: each for each in read.location}
    places = {identity: code for code, identity in enumerate(located)}
    locations = tuple(_location(each, numbers, functions) for each in located.values())
    stacks: dict[tuple[int, ...], int] = {}
    codes: list[int] = []
    values: list[list[int]] = [[] for _ in read.sample_type]
    for sample in read.sample:
        stack = tuple(places[each] for each in sample.location_id if each in places)
        codes.append(stacks.setdefault(stack, len(stacks)))
        given = sample.value
        for position, column in enumerate(values):
            column.append(given[position] if position < len(given) else 0)
    stack_of = np.array(codes, dtype=np.intp)
    found = []
    for type_, column in zip(read.sample_type, values, strict=True):
        value = np.array(column, dtype=np.int64)
        some = np.flatnonzero(value)
        found.append(
            ProfileColumns(
                resource=resource({}),
                scope="",
                sample_type=_value_type(strings, type_),
                period_type=_value_type(strings, read.period_type),
                period=read.period,
                start_unix_ns=max(read.time_nanos, 0),
                duration_ns=max(read.duration_nanos, 0),
                value=value[some],
                time_unix_ns=None,
                stack=stack_of[some],
                stacks=tuple(stacks) or ((),),
                locations=locations,
                functions=functions,
                mappings=(),
                links=None,
                attributes=(),
            )
        )
    return [batch for batch in found if len(batch)]


def _location(given: Any, numbers: dict[int, int], functions: tuple[Function, ...]) -> Location:
    known = tuple(
        Line(function=numbers[each.function_id], line=each.line)
        for each in given.line
        if each.function_id in numbers
    )
    names = [functions[line.function] for line in known]
    kind = FrameType.NATIVE
    if any(name.name.startswith(GPU_PREFIX) for name in names):
        kind = FrameType.GPU
    elif any(name.file_name.endswith((".py", ".pyx")) for name in names):
        kind = FrameType.PYTHON
    elif any(name.file_name[:1] == "[" and name.file_name not in _NOT_KERNEL for name in names):
        kind = FrameType.KERNEL
    return Location(frame_type=kind, mapping=None, address=given.address, lines=known)


def _value_type(strings: Sequence[str], given: Any) -> ValueType:
    return ValueType(type=_text(strings, given.type), unit=_text(strings, given.unit))


def _text(strings: Sequence[str], code: int) -> str:
    return strings[code] if 0 <= code < len(strings) else ""


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


def _parsed(message: bytes) -> Any:
    try:
        read = Profile.FromString(message)
    except DecodeError as error:
        raise ValueError(f"no protobuf message: {error}") from error
    if not read.sample_type or not read.string_table:
        raise ValueError("no pprof profile: it has no sample types")
    return read
