"""Profile samples in columns: what ``export`` encodes.

A batch holds n observations of one resource, one scope and one sample type. What was observed when is a column
of length n; stacks and links are codes into tables of the batch, which hold each distinct one once. Tables
refer to one another by position: stack to locations, location to mapping and functions.

Example: 50,000 kernel times under 300 stacks are 50,000 values, times and codes, and 300 tuples of a few
hundred distinct locations. Invariant: a code is a position in its table; unused entries cost nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.model.resource import Resource
from otelgpu.model.spans import Attribute, Bytes, Codes

U64 = npt.NDArray[np.uint64]


class FrameType(StrEnum):
    """Values of the semantic convention ``profile.frame.type`` (schema 1.44.0)."""

    NATIVE = "native"
    PYTHON = "cpython"
    KERNEL = "kernel"
    GPU = "gpu"  # not of the convention yet: what a device ran, under the call that launched it


class ValueType(Struct, frozen=True, kw_only=True):
    """What is counted, and in what: ``gpu_kernel_time``, ``nanoseconds``."""

    type: str
    unit: str


class Mapping(Struct, frozen=True, kw_only=True):
    """A file as it lies in memory. Addresses are 64 bits without a sign."""

    file_name: str
    memory_start: int
    memory_limit: int
    file_offset: int
    build_id_gnu: str  # lower-case hexadecimal of the ELF note; "": none
    build_id_htlhash: str  # of the file's head, tail and length, as ebpf-profiler has it; "": none


class Function(Struct, frozen=True, kw_only=True):
    """Names as they are read, and as the linker or interpreter has them; "": not known."""

    name: str
    system_name: str
    file_name: str


class Line(Struct, frozen=True, kw_only=True):
    """Where in a function."""

    function: int  # position in ``functions``
    line: int  # from 1; 0: not known


class Location(Struct, frozen=True, kw_only=True):
    """One frame, with what was inlined into it."""

    frame_type: FrameType
    mapping: int | None  # position in ``mappings``
    address: int  # 64 bits without a sign; 0: none, as of Python frames
    lines: tuple[Line, ...]  # the innermost inlined first, the caller last; empty: not symbolised


class Links(Struct, frozen=True, kw_only=True):
    """The span that each observation belongs to: row i has entry ``codes[i]``.

    A trace or span id of all zeros says that there is none. A row has at most one: work that several requests
    share links to the span of the step, and that links to theirs.
    """

    codes: Codes  # (n,) each in ``range(m)``
    trace_id: Bytes  # (m, 16)
    span_id: Bytes  # (m, 8)


class ProfileColumns(Struct, frozen=True, kw_only=True):
    """n observations that share resource, scope, sample type and the profile's time.

    Observations of one identity (stack, attributes, link) become one OTLP ``Sample`` with a value each, in row
    order. Pyroscope takes but one value a sample: what should reach it is summed first, has no
    ``time_unix_ns``, and names a period that is not zero.
    """

    resource: Resource
    scope: str
    sample_type: ValueType
    period_type: ValueType  # of the events between two observations
    period: int  # how many of those
    start_unix_ns: int
    duration_ns: int
    value: npt.NDArray[np.integer[Any]]  # (n,) OTLP int64
    time_unix_ns: U64 | None  # (n,) in [start, start + duration); None: not distinguished by time
    stack: Codes  # (n,) each in ``range(len(stacks))``
    stacks: tuple[tuple[int, ...], ...]  # positions in ``locations``, the leaf first; (): not known
    locations: tuple[Location, ...]
    functions: tuple[Function, ...]
    mappings: tuple[Mapping, ...]
    links: Links | None  # None: no row has one
    attributes: tuple[Attribute, ...]  # text or integers of few distinct values; no floats, no bools

    def __len__(self) -> int:
        return len(self.value)
