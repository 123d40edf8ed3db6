"""What stands out in profiles: per kind, where most of it is, as a table's rows.

In: :class:`~otelgpu.model.profiles.ProfileColumns` of any number of processes and intervals. Out: :class:`KindTotals`.
Stacks are summed by their *place*: the innermost frame, and the innermost Python line above it. That is what a reader
looks for first; whole stacks are the flame graph's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from otelgpu.model.profiles import FrameType, Location, ProfileColumns, ValueType

UNKNOWN: Final = "(no stack)"
"""The leaf of what has no stack, which was counted where it was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentAt:
    """Where something was spent. ``line``: the innermost Python frame, ``file.py:12 function``; "" without one."""

    leaf: str
    line: str
    value: int
    samples: int


@dataclass(slots=True, kw_only=True)
class KindTotals:
    """One sample type, summed over processes and intervals; ``places`` the largest first."""

    type: str
    unit: str
    value: int = 0
    samples: int = 0
    places: list[SpentAt] = field(default_factory=list)


def frame_name(batch: ProfileColumns, location: Location) -> str:
    """The frame as it is shown: the innermost of what was inlined; of a Python frame with its file and line."""
    if not location.lines:
        return f"0x{location.address:x}" if location.address else UNKNOWN
    line = location.lines[0]
    function = batch.functions[line.function]
    if location.frame_type is FrameType.PYTHON:
        short = function.file_name.rpartition("/")[2] or function.file_name
        return f"{short}:{line.line} {function.name}" if line.line else f"{short} {function.name}"
    return function.name or f"0x{location.address:x}"


def stack_names(batch: ProfileColumns, stack: Sequence[int]) -> tuple[str, ...]:
    """The frames of a stack by name, the leaf first."""
    return tuple(frame_name(batch, batch.locations[position]) for position in stack)


def place_of(batch: ProfileColumns, stack: Sequence[int]) -> tuple[str, str]:
    """(innermost frame, innermost Python line) of a stack; a leaf that is Python is both."""
    if not stack:
        return UNKNOWN, ""
    leaf = frame_name(batch, batch.locations[stack[0]])
    for position in stack:
        location = batch.locations[position]
        if location.frame_type is FrameType.PYTHON:
            return leaf, frame_name(batch, location)
    return leaf, ""


def totals(batches: Iterable[ProfileColumns]) -> list[KindTotals]:
    """Per sample type, in the order of their first batch."""
    found: dict[ValueType, KindTotals] = {}
    sums: dict[ValueType, dict[tuple[str, str], list[int]]] = {}
    for batch in batches:
        kind = found.setdefault(
            batch.sample_type, KindTotals(type=batch.sample_type.type, unit=batch.sample_type.unit)
        )
        places = sums.setdefault(batch.sample_type, {})
        values, counts = stack_sums(batch)
        for code in np.flatnonzero(counts):
            place = places.setdefault(place_of(batch, batch.stacks[code]), [0, 0])
            place[0] += int(values[code])
            place[1] += int(counts[code])
        kind.value += int(values.sum())
        kind.samples += len(batch)
    for value_type, kind in found.items():
        kind.places = sorted(
            (
                SpentAt(leaf=leaf, line=line, value=value, samples=samples)
                for (leaf, line), (value, samples) in sums[value_type].items()
            ),
            key=lambda place: (-place.value, place.leaf, place.line),
        )
    return list(found.values())


def stack_sums(batch: ProfileColumns) -> tuple[np.ndarray, np.ndarray]:
    """(int64, int64), shape (len(batch.stacks),): the value and the number of rows of each stack."""
    values = np.zeros(len(batch.stacks), dtype=np.int64)
    np.add.at(values, batch.stack, np.asarray(batch.value, dtype=np.int64))  # exact, as float weights are not
    counts = np.bincount(np.asarray(batch.stack, dtype=np.int64), minlength=len(batch.stacks))
    return values, counts
