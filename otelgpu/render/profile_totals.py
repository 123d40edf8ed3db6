"""What stands out in profiles: per kind, where most of it is, as a table's rows.

In: :class:`~otelgpu.model.profiles.ProfileColumns` of any number of processes and intervals. Out: :class:`KindTotals`.
Stacks are summed by their *place*: the innermost frame, the innermost Python line above it, and of waits the state of
the thread. That is what a reader looks for first; whole stacks are the flame graph's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field

from otelgpu.model.codes import Codes
from otelgpu.model.profiles import FrameType, Location, ProfileColumns, ValueType
from otelgpu.render.thread_states import states_of

UNKNOWN: Final = "(no stack)"
"""The leaf of what has no stack, which was counted where it was lost."""


class SpentAt(Struct, frozen=True, kw_only=True):
    """Where something was spent. ``line``: the innermost Python frame, ``file.py:12 function``; "" without one.

    ``state``: of waits, see :mod:`~otelgpu.render.thread_states`.
    """

    leaf: str
    line: str
    value: int
    samples: int
    state: str = ""


class KindTotals(Struct, kw_only=True):
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
    sums: dict[ValueType, dict[tuple[str, str, str], list[int]]] = {}
    for batch in batches:
        kind = found.setdefault(
            batch.sample_type, KindTotals(type=batch.sample_type.type, unit=batch.sample_type.unit)
        )
        places = sums.setdefault(batch.sample_type, {})
        state, states = states_of(batch)
        values, counts = _sums(batch, np.asarray(batch.stack) * len(states) + state, len(states))
        for code in np.flatnonzero(counts).tolist():
            stack, its_state = divmod(code, len(states))
            place = places.setdefault((*place_of(batch, batch.stacks[stack]), states[its_state]), [0, 0])
            place[0] += int(values[code])
            place[1] += int(counts[code])
        kind.value += int(values.sum())
        kind.samples += len(batch)
    for value_type, kind in found.items():
        kind.places = sorted(
            (
                SpentAt(leaf=leaf, line=line, value=value, samples=samples, state=state)
                for (leaf, line, state), (value, samples) in sums[value_type].items()
            ),
            key=lambda place: (-place.value, place.leaf, place.line, place.state),
        )
    return list(found.values())


def _sums(batch: ProfileColumns, codes: Codes, states: int) -> tuple[np.ndarray, np.ndarray]:
    """(int64, int64), shape (stacks × states,): the value and the number of the rows that have each code."""
    values = np.zeros(len(batch.stacks) * states, dtype=np.int64)
    np.add.at(values, codes, np.asarray(batch.value, dtype=np.int64))  # exact, as float weights are not
    return values, np.bincount(codes, minlength=len(values))
