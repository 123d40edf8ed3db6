"""Stacks of several batches as rows of frame numbers, with what was observed under each. Pure.

In: batches of one sample type. Out: :class:`StackRows`, one row for each stack that a batch uses. Observations
are summed by stack before anything else is done, so what follows costs by stacks, not by samples.

Example: 1,000,000 samples under 20,000 stacks are 20,000 rows. Two batches that have a stack in common have a
row of it each; the tree makes them one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.model.profiles import FrameType, ProfileColumns, ValueType
from otelgpu.render.frames import NO_STACK, Frame, FrameTable, process_frame

Codes = npt.NDArray[np.intp]
Values = npt.NDArray[np.float64]

COMBINED: Final = ValueType(type="cpu + gpu", unit="nanoseconds")
"""Time on a CPU and on the device in one picture: under each launch its kernels, as wide as they ran."""

NANOSECONDS: Final = "nanoseconds"
CPU: Final = ValueType(type="cpu", unit=NANOSECONDS)
_CPU_TYPES: Final = ("cpu", "python_cpu")
"""Of these, the first that there is."""


class StackRows(Struct, frozen=True, kw_only=True):
    """n stacks, the root first.

    ``values``: (n, k), k things that are compared: one, or before and after. ``row_of[b][s]`` is the row of stack s of
    batch b, -1 of one that is not used. ``negative``: how many rows had a sum below zero, which pictures cannot show.
    """

    frames: Codes  # end to end; numbers of a FrameTable
    counts: Codes  # (n,) frames of each
    values: Values
    observations: int
    negative: int
    row_of: tuple[Codes, ...]

    def __len__(self) -> int:
        return len(self.counts)


def by_type(batches: Sequence[ProfileColumns]) -> dict[ValueType, list[ProfileColumns]]:
    """Batches by sample type, those with rows only, in order of appearance.

    Of what is a state rather than a sum (memory in use), the latest of each process is all that counts.
    """
    found: dict[ValueType, list[ProfileColumns]] = {}
    for batch in batches:
        if len(batch):
            found.setdefault(batch.sample_type, []).append(batch)
    return {type_: latest(some) if is_state(type_) else some for type_, some in found.items()}


def is_state(type_: ValueType) -> bool:
    """Whether values hold at a time, so that those of two times cannot be added."""
    name = type_.type.replace("_", "").replace("-", "").lower()
    return "inuse" in name


def latest(batches: Sequence[ProfileColumns]) -> list[ProfileColumns]:
    """The last batch of each resource and scope."""
    last: dict[Any, ProfileColumns] = {}
    for batch in batches:
        key = (batch.resource, batch.scope)
        if key not in last or batch.start_unix_ns >= last[key].start_unix_ns:
            last[key] = batch
    return list(last.values())


def combined(groups: dict[ValueType, list[ProfileColumns]]) -> list[ProfileColumns] | None:
    """Batches of CPU time with those of time on the device; None where there is no pair of them."""
    types = (ValueType(type=name, unit=NANOSECONDS) for name in _CPU_TYPES)
    cpu = next((groups[type_] for type_ in types if type_ in groups), [])
    device = [
        batch
        for type_, some in groups.items()
        if type_.unit == NANOSECONDS and type_.type not in _CPU_TYPES
        for batch in some
        if _ran_on_device(batch)
    ]
    return [*cpu, *device] if cpu and device else None


def _ran_on_device(batch: ProfileColumns) -> bool:
    """Whether a stack that is used has a frame of the device: tables may be those of other profiles too."""
    device = {code for code, each in enumerate(batch.locations) if each.frame_type is FrameType.GPU}
    used = np.unique(batch.stack).tolist() if device else ()
    return any(not device.isdisjoint(batch.stacks[code]) for code in used)


def stack_rows(sides: Sequence[Sequence[ProfileColumns]], table: FrameTable) -> StackRows:
    """The stacks of k sides, each some batches: one column of values for each side.

    Where a side has several processes, each has a frame. Those of two sides are the same by name, for numbers differ.
    """
    batches = [batch for side in sides for batch in side]
    several = any(len({batch.resource for batch in side}) > 1 for side in sides)
    frames: list[Codes] = []
    counts: list[Codes] = []
    values: list[Values] = []
    row_of: list[Codes] = []
    rows = 0
    for column, side in enumerate(sides):
        for batch in side:
            root = table.code(process_frame(batch.resource, number=len(sides) == 1)) if several else None
            sums = np.bincount(batch.stack, weights=batch.value, minlength=len(batch.stacks))
            used = np.flatnonzero(np.bincount(batch.stack, minlength=len(batch.stacks)))
            flat, of_each = _root_first(batch, used, root, table)
            frames.append(flat)
            counts.append(of_each)
            of_side = np.zeros((len(used), len(sides)))
            of_side[:, column] = sums[used]
            values.append(of_side)
            place = np.full(len(batch.stacks), -1, dtype=np.intp)
            place[used] = rows + np.arange(len(used))
            row_of.append(place)
            rows += len(used)
    all_values = np.concatenate([np.zeros((0, len(sides))), *values])
    return StackRows(
        frames=np.concatenate([np.zeros(0, dtype=np.intp), *frames]),
        counts=np.concatenate([np.zeros(0, dtype=np.intp), *counts]),
        values=np.maximum(all_values, 0),
        observations=sum(map(len, batches)),
        negative=int(np.count_nonzero((all_values < 0).any(axis=1))),
        row_of=tuple(row_of),
    )


def _root_first(
    batch: ProfileColumns, used: Codes, root: int | None, table: FrameTable
) -> tuple[Codes, Codes]:
    """Frames of the stacks ``used``, end to end, and how many of each."""
    stacks = [batch.stacks[code] for code in used.tolist()]
    depth = np.fromiter(map(len, stacks), dtype=np.intp, count=len(stacks))
    leaf_first = np.fromiter(chain.from_iterable(stacks), dtype=np.intp, count=int(depth.sum()))
    locations, place = np.unique(leaf_first, return_inverse=True)
    named = list(table.codes(batch, locations.tolist()).values())
    lines = np.fromiter(map(len, named), dtype=np.intp, count=len(named))
    first = np.cumsum(lines) - lines
    names = np.fromiter(chain.from_iterable(named), dtype=np.intp, count=int(lines.sum()))

    # A frame for each line of each location, leaf first; then each stack backwards, behind its root.
    of_location = lines[place]
    ends = np.cumsum(of_location)
    within = np.arange(int(of_location.sum())) - np.repeat(ends - of_location, of_location)
    flat = names[np.repeat(first[place], of_location) + within]
    before = np.concatenate([[0], ends])
    upto = np.cumsum(depth)
    counts = before[upto] - before[upto - depth]
    last = np.cumsum(counts)
    backwards = np.repeat(2 * last - counts - 1, counts) - np.arange(len(flat))
    flat = flat[backwards]

    if (counts == 0).any():
        flat = np.insert(flat, (last - counts)[counts == 0], table.code(NO_STACK))
        counts = np.maximum(counts, 1)
    if root is not None:
        flat = np.insert(flat, np.cumsum(counts) - counts, root)
        counts = counts + 1
    return flat.astype(np.intp), counts


def sort_key(frame: Frame) -> tuple[str, str, str, int]:
    """Children stand side by side in this order, in every picture."""
    return (frame.label, frame.kind.value, frame.file, frame.line)
