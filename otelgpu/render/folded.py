"""Folded stacks: one line a stack, ``main;generate (handler.py:42);cudaLaunchKernel 17``; written and read. Pure.

Source: https://www.brendangregg.com/FlameGraphs/cpuflamegraphs.html, section "2. Fold stacks": frames root
first, between semicolons, then a space and an integer. Kernel frames end in ``_[k]``, as its colours expect.

One file holds one sample type, for the format knows none: of several, each line begins with a frame that names
it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from otelgpu.model.profiles import FrameType, Function, Line, Location, ProfileColumns, ValueType
from otelgpu.model.resource import resource
from otelgpu.render.frames import GPU_PREFIX, Frame, Kind
from otelgpu.render.stack_tree import StackTree, tree
from otelgpu.render.stacks import by_type

_NOT_IN_A_FRAME: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def folded(batches: Sequence[ProfileColumns]) -> bytes:
    """The lines of all batches, by sample type, then in the order of the tree."""
    groups = by_type(batches)
    lines: list[str] = []
    for type_, some in groups.items():
        head = [frame_text(Frame(Kind.PROCESS, f"{type_.type} ({type_.unit})"))] if len(groups) > 1 else []
        lines += folded_lines(tree([some], type_), head)
    return "".join(lines).encode("utf-8", "replace")


def folded_lines(of: StackTree, head: Sequence[str] = ()) -> list[str]:
    """A line for each node with a value of its own. ``head``: frames that each begins with."""
    texts = [frame_text(frame) for frame in of.frames]
    path = list(head)
    lines = []
    values = np.rint(of.own[:, 0]).astype(np.int64).tolist()
    for frame, depth, value in zip(of.frame.tolist(), of.depth.tolist(), values, strict=True):
        if depth:
            del path[len(head) + depth - 1 :]
            path.append(texts[frame])
        if value > 0:
            lines.append(f"{';'.join(path)} {value}\n")
    return lines


def frame_text(frame: Frame) -> str:
    """A frame without what would end it."""
    text = _NOT_IN_A_FRAME.sub(" ", frame.label).replace(";", ":").strip() or "?"
    return f"{text}_[k]" if frame.kind is Kind.KERNEL else text


def read_folded(data: bytes) -> tuple[list[ProfileColumns], int]:
    """Folded stacks of any tool as columns, and how many lines were none.

    Of a file in which :func:`folded` wrote several sample types, each is a batch; else all are ``samples (count)``.
    """
    rows: list[tuple[list[str], int]] = []
    unreadable = 0
    for line in data.decode("utf-8", "replace").splitlines():
        text, _, number = line.strip().rpartition(" ")
        if not line.strip() or line.startswith("#"):
            continue
        if not (text and number.isascii() and number.isdigit() and len(number) < _DIGITS):
            unreadable += 1
            continue
        rows.append(([each for each in text.split(";") if each], int(number)))
    types: dict[ValueType, list[tuple[list[str], int]]] = {}
    heads = [_TYPE.fullmatch(frames[0]) if frames else None for frames, _ in rows]
    if all(heads):
        for head, (frames, value) in zip(heads, rows, strict=True):
            assert head is not None
            types.setdefault(ValueType(type=head[1], unit=head[2]), []).append((frames[1:], value))
    elif rows:
        types[ValueType(type="samples", unit="count")] = rows
    return [_read(type_, some) for type_, some in types.items()], unreadable


def _read(type_: ValueType, rows: Sequence[tuple[list[str], int]]) -> ProfileColumns:
    locations: dict[Frame, int] = {}
    stacks: dict[tuple[int, ...], int] = {}
    codes: list[int] = []
    for texts, _ in rows:
        frames = map(_frame_of, reversed(texts))
        stack = tuple(locations.setdefault(frame, len(locations)) for frame in frames)
        codes.append(stacks.setdefault(stack, len(stacks)))
    types = {Kind.PYTHON: FrameType.PYTHON, Kind.KERNEL: FrameType.KERNEL, Kind.GPU: FrameType.GPU}
    return ProfileColumns(
        resource=resource({}),
        scope="",
        sample_type=type_,
        period_type=ValueType(type="", unit=""),
        period=0,
        start_unix_ns=0,
        duration_ns=0,
        value=np.array([value for _, value in rows], dtype=np.int64),
        time_unix_ns=None,
        stack=np.array(codes, dtype=np.intp),
        stacks=tuple(stacks),
        locations=tuple(
            Location(
                frame_type=types.get(frame.kind, FrameType.NATIVE),
                mapping=None,
                address=0,
                lines=(Line(function=code, line=frame.line),),
            )
            for frame, code in locations.items()
        ),
        functions=tuple(
            Function(name=frame.name, system_name="", file_name=frame.file) for frame in locations
        ),
        mappings=(),
        links=None,
        attributes=(),
    )


_TYPE: Final = re.compile(r"([a-z][a-z0-9_]*) \((nanoseconds|bytes|count)\)")
"""The first frame of lines that say their sample type."""

_DIGITS: Final = 19
_PYTHON: Final = re.compile(r"(?P<name>.+) \((?P<file>[^()]+\.py):(?P<line>\d{1,9})\)")


def _frame_of(text: str) -> Frame:
    """What :func:`frame_text` wrote, or another tool."""
    if text.endswith("_[k]"):
        return Frame(Kind.KERNEL, text.removesuffix("_[k]") or "?")
    if text.startswith(GPU_PREFIX) and text != GPU_PREFIX:
        return Frame(Kind.GPU, text.removeprefix(GPU_PREFIX))
    if found := _PYTHON.fullmatch(text):
        return Frame(Kind.PYTHON, found["name"], found["file"], int(found["line"]))
    return Frame(Kind.NATIVE, text)
