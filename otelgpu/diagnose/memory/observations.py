"""Profiles of device memory as snapshots of processes: what was held when, by place. Pure.

In: :class:`~otelgpu.model.profiles.ProfileColumns` of kind ``mem``, with times. Out: :class:`ProcessSeen`. What comes
from a file may hold anything: rows without a time, and values that are none, are counted and left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from otelgpu.diagnose.profile_rows import frames_of, process_of, value_of
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.spans import Attribute
from otelgpu.render.frames import Frame
from otelgpu.render.page_columns import clean

DEVICE: Final = "device"
TENSOR: Final = "tensor"
LEVELS: Final = (DEVICE, TENSOR)

MOST_ROWS: Final = 2_000_000
MOST_PLACES: Final = 200_000
_MOST_BYTES: Final = 1 << 56
_LATEST_NS: Final = 1 << 63
_HOST_KINDS: Final = frozenset(("host", "registered"))
_TORCH_DEVICE: Final = "torch.device"
_IN_USE: Final = {f"{level}_memory_in_use": level for level in LEVELS}
_COUNTS: Final = {f"{level}_memory_in_use_allocations": level for level in LEVELS}
_AT_EXIT: Final = {f"{level}_memory_at_exit": level for level in LEVELS}
_ALLOCATED: Final = {f"{level}_memory_allocated": level for level in LEVELS}
USED: Final = frozenset((*_IN_USE, *_COUNTS, *_AT_EXIT, *_ALLOCATED))
"""Sample types that are looked at."""

Frames = tuple[Frame, ...]


class Place(Struct, frozen=True):
    """Where in the code of which memory. ``level``: what the driver gave, or a tensor's. ``device``: -1: not known."""

    level: str
    device: int
    kind: str
    frames: Frames


class Snapshot(Struct):
    """What was held at a time (Unix ns). ``sizes``: bytes; ``counts``: allocations, where they are known."""

    time_ns: int
    sizes: Counter[Place] = field(default_factory=Counter)
    counts: Counter[Place] = field(default_factory=Counter)
    at_exit: bool = False  # what the process held when it ended


class ProcessSeen(Struct):
    """One process. ``flow``: bytes that were allocated, by place: time and bytes of each batch of rows."""

    pid: int
    program: str
    snapshots: list[Snapshot] = field(default_factory=list)
    flow: dict[Place, list[tuple[int, int]]] = field(default_factory=dict)


class Observations(Struct, frozen=True, kw_only=True):
    """What the input has; ``types``: its sample types; ``rejected``: what was left out, by reason."""

    processes: Sequence[ProcessSeen]
    types: frozenset[str]
    rejected: Mapping[str, int]


class _Seen(Struct):
    process: ProcessSeen
    by_time: dict[tuple[int, bool], Snapshot] = field(default_factory=dict)

    def at(self, time_ns: int, *, at_exit: bool) -> Snapshot:
        found = self.by_time.get((time_ns, at_exit))
        if found is None:
            found = self.by_time[time_ns, at_exit] = Snapshot(time_ns=time_ns, at_exit=at_exit)
        return found


def observe(batches: Sequence[ProfileColumns]) -> Observations:
    """Sort rows by process and time."""
    seen: dict[int, _Seen] = {}
    rejected: Counter[str] = Counter()
    types, taken, places = set(), 0, set[Place]()
    for batch in batches:
        kind = batch.sample_type.type
        types.add(kind)
        if kind not in USED:
            continue
        if taken + len(batch) > MOST_ROWS:
            rejected["rows_beyond_limit"] += len(batch)
            continue
        taken += len(batch)
        pid, program = process_of(batch)
        mine = seen.setdefault(pid, _Seen(ProcessSeen(pid=pid, program=program)))
        for time_ns, place, value in _rows(batch, rejected, places):
            if kind in _ALLOCATED:
                mine.process.flow.setdefault(place, []).append((time_ns, value))
                continue
            snapshot = mine.at(time_ns, at_exit=kind in _AT_EXIT)
            (snapshot.counts if kind in _COUNTS else snapshot.sizes)[place] += value
    for each in seen.values():
        each.process.snapshots = [each.by_time[key] for key in sorted(each.by_time)]
    return Observations(
        processes=[seen[pid].process for pid in sorted(seen)],
        types=frozenset(types),
        rejected=dict(rejected),
    )


def _rows(batch: ProfileColumns, rejected: Counter[str], places: set[Place]) -> list[tuple[int, Place, int]]:
    if batch.time_unix_ns is None:
        rejected["rows_without_time"] += len(batch)
        return []
    kind = batch.sample_type.type
    level = (_IN_USE | _COUNTS | _AT_EXIT | _ALLOCATED)[kind]
    stacks = [frames_of(batch, stack) for stack in batch.stacks]
    found = []
    known: dict[tuple[int, int, str], Place] = {}
    for row, (time_ns, value) in enumerate(
        zip(batch.time_unix_ns.tolist(), batch.value.tolist(), strict=True)
    ):
        device, memory = _where(batch.attributes, row)
        if memory in _HOST_KINDS:
            continue
        if not (0 <= value < _MOST_BYTES and 0 <= time_ns < _LATEST_NS):
            rejected["values_out_of_range"] += 1
            continue
        key = int(batch.stack[row]), device, memory
        place = known.get(key)
        if place is None:
            frames = stacks[key[0]] if 0 <= key[0] < len(stacks) else ()
            place = known[key] = Place(level, device, memory, frames)
        if place not in places and len(places) >= MOST_PLACES:
            rejected["places_beyond_limit"] += 1
            place = Place(level, device, memory, ())
        places.add(place)
        found.append((time_ns, place, value))
    return found


def _where(attributes: Sequence[Attribute], row: int) -> tuple[int, str]:
    """The ordinal of the device and the kind of memory, whatever vendor's names they have."""
    device, memory = -1, ""
    for attribute in attributes:
        value = value_of(attribute, row)
        if value is None:
            continue
        if attribute.key.endswith(".device.index"):
            device = value if isinstance(value, int) else -1
        elif attribute.key == _TORCH_DEVICE:
            name, _, ordinal = str(value).partition(":")
            device = int(ordinal) if name == "cuda" and ordinal.isdecimal() and len(ordinal) < 6 else -1
        elif attribute.key.endswith(".memory.kind"):
            memory = clean(str(value))
    return device, memory
