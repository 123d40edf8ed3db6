"""Profiles spelt as stacks of names, root first, and the page that they are rendered to as a test reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from otelgpu.cli.page_files import page_files
from otelgpu.model.profiles import (
    FrameType,
    Function,
    Line,
    Links,
    Location,
    ProfileColumns,
    ValueType,
)
from otelgpu.model.profiles import Mapping as MappedFile
from otelgpu.model.resource import Resource, resource
from otelgpu.model.spans import Attribute

START = 1_790_000_000_000_000_000
SECOND = 1_000_000_000
CPU = ValueType(type="cpu", unit="nanoseconds")
GPU = ValueType(type="gpu_kernel_time", unit="nanoseconds")
PARTS = page_files()
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]><img src=x onerror=alert(1)>",
    "\u2028alert(1)\u2029",
    "{{program}} {{data}}",
    "\x00\x08\ufeff\uffff",
    "a\"b'c&d;e f",
    "\ud800",
)


def profile(
    stacks: Mapping[tuple[str, ...], int] | Sequence[tuple[tuple[str, ...], int]],
    *,
    type_: ValueType = CPU,
    times: Sequence[int] | None = None,
    owner: Resource | None = None,
    start: int = START,
    attributes: tuple[Attribute, ...] = (),
    links: Links | None = None,
) -> ProfileColumns:
    """One observation for each stack and value.

    A name says what its frame is: ``py:NAME:LINE`` Python in model.py, ``k:NAME`` kernel, ``gpu:NAME`` device, else
    native in libc.so. The same stack may come several times.
    """
    rows = list(stacks.items()) if isinstance(stacks, Mapping) else list(stacks)
    names = list(dict.fromkeys(name for stack, _ in rows for name in stack))
    known = list(dict.fromkeys(tuple(reversed(stack)) for stack, _ in rows))
    functions: list[Function] = []
    locations: list[Location] = []
    for name in names:
        kind, colon, rest = name.partition(":")
        kind += colon
        frame_type = {"py:": FrameType.PYTHON, "k:": FrameType.KERNEL, "gpu:": FrameType.GPU}.get(
            kind, FrameType.NATIVE
        )
        text, _, line = rest.rpartition(":") if frame_type is FrameType.PYTHON else (rest, "", "0")
        is_native = frame_type is FrameType.NATIVE
        functions.append(
            Function(
                name=name if is_native else text,
                system_name="",
                file_name={FrameType.PYTHON: "/app/model.py", FrameType.KERNEL: "[kernel]"}.get(
                    frame_type, ""
                ),
            )
        )
        locations.append(
            Location(
                frame_type=frame_type,
                mapping=0 if is_native else None,
                address=0x1000 + len(locations) if is_native else 0,
                lines=(Line(function=len(functions) - 1, line=int(line)),),
            )
        )
    return ProfileColumns(
        resource=owner or resource({"process.pid": 42, "process.executable.name": "python3"}),
        scope="otelgpu.profile",
        sample_type=type_,
        period_type=CPU,
        period=10_000_000,
        start_unix_ns=start,
        duration_ns=10 * SECOND,
        value=np.array([value for _, value in rows], dtype=np.int64),
        time_unix_ns=None if times is None else np.array(times, dtype=np.uint64),
        stack=np.array([known.index(tuple(reversed(stack))) for stack, _ in rows], dtype=np.intp),
        stacks=tuple(tuple(map(names.index, stack)) for stack in known),
        locations=tuple(locations),
        functions=tuple(functions),
        mappings=(
            MappedFile(
                file_name="/usr/lib/libc.so.6",
                memory_start=0x1000,
                memory_limit=0x9000,
                file_offset=0,
                build_id_gnu="ab12",
                build_id_htlhash="",
            ),
        ),
        links=links,
        attributes=attributes,
    )


def page_data(page: bytes) -> list[dict[str, Any]]:
    """The trees that a page holds, as its program gets them."""
    found = re.findall(
        r'<script type="application/json" class="batch">(.*?)</script>', page.decode(), re.DOTALL
    )
    return [json.loads(each) for each in found]
