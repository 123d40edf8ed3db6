"""Observations of profiles as a timeline shows them: instants on a CPU, waits with their length, block requests. Pure.

In: batches with times. Out: :class:`Observed`, a bounded number of them. Types that count what others time
(calls, bytes), or what spans show already (library calls, kernels), are left out, and counted by the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Final

import numpy as np
from msgspec import Struct

from otelgpu.model.profiles import ProfileColumns, ValueType
from otelgpu.model.resource import Resource
from otelgpu.model.spans import Text
from otelgpu.render.frames import Kind, location_frames
from otelgpu.render.page_columns import clean
from otelgpu.render.stacks import NANOSECONDS
from otelgpu.render.thread_states import states_of

MOST_SAMPLES: Final = 100_000
"""Of more, every so many-th is shown and the rest counted."""

MOST_FRAMES: Final = 32
"""Of a stack, the leaf first."""


class Shown(Enum):
    """How an observation is shown."""

    INSTANT = 0
    WAIT = 1  # of its thread, which does nothing else meanwhile
    APART = 2  # goes on beside others, and beside what its thread does


_SHOWN: Final = {
    "cpu": Shown.INSTANT,
    "python_cpu": Shown.INSTANT,
    "user": Shown.INSTANT,
    "off_cpu": Shown.WAIT,
    "python_wall": Shown.WAIT,
    "syscall_time": Shown.WAIT,
    "file_time": Shown.WAIT,
    "block_time": Shown.APART,
}
_INSTEAD: Final = {"python_cpu": "cpu", "python_wall": "off_cpu"}
"""Of types that report of the same, the second is shown where there are both."""

_SYSCALLS: Final = ValueType(type="syscalls", unit="count")


class Observed(Struct, frozen=True, kw_only=True):
    """An observation. ``end`` is ``start`` of instants; times are Unix nanoseconds."""

    owner: Resource
    thread: int  # 0: not reported
    thread_name: str
    kind: str
    shown: Shown
    start: int
    end: int
    name: str  # the leaf of its stack; of a wait its Python line if there is one, and the state before it
    args: dict[str, Any]


def observed(profiles: Sequence[ProfileColumns]) -> Iterator[Observed]:
    """What a timeline shows of profiles."""
    there = {batch.sample_type.type for batch in profiles}
    timed = [
        batch
        for batch in profiles
        if batch.time_unix_ns is not None
        and len(batch)
        and batch.sample_type.type in _SHOWN
        and _INSTEAD.get(batch.sample_type.type) not in there
    ]
    step = max(-(-sum(map(len, timed)) // MOST_SAMPLES), 1)
    calls = {
        (batch.resource, batch.start_unix_ns, len(batch)): batch
        for batch in profiles
        if batch.sample_type == _SYSCALLS
    }
    for batch in timed:
        key = (batch.resource, batch.start_unix_ns, len(batch))
        yield from _of_batch(
            batch, step, calls.get(key) if batch.sample_type.type == "syscall_time" else None
        )


def _of_batch(batch: ProfileColumns, step: int, calls: ProfileColumns | None) -> Iterator[Observed]:
    assert batch.time_unix_ns is not None
    shown = _SHOWN[batch.sample_type.type]
    if batch.sample_type.unit != NANOSECONDS:
        shown = Shown.INSTANT
    counts = np.ones(len(batch), dtype=np.int64)
    if calls is not None and np.array_equal(calls.time_unix_ns, batch.time_unix_ns):  # type: ignore[arg-type]
        counts = calls.value.astype(np.int64)
    columns = {each.key: column_of(each, len(batch))[::step] for each in batch.attributes}
    nothing = [None] * len(batch.value[::step])
    threads, names = columns.get("thread.id", nothing), columns.get("thread.name", nothing)
    others = {clean(key): values for key, values in columns.items() if not key.startswith("thread.")}
    state, states = states_of(batch)
    stacks: dict[int, tuple[list[str], str]] = {}
    rows = zip(
        batch.time_unix_ns[::step].tolist(),
        batch.value[::step].tolist(),
        batch.stack[::step].tolist(),
        counts[::step].tolist(),
        state[::step].tolist(),
        threads,
        names,
        strict=True,
    )
    for row, (time, value, stack, count, its_state, thread, name) in enumerate(rows):
        if stack not in stacks:
            stacks[stack] = _labels(batch, stack, waits=shown is Shown.WAIT)
        frames, where = stacks[stack]
        args: dict[str, Any] = {
            "stack": frames[:MOST_FRAMES],
            clean(batch.sample_type.unit) or "value": value,
        }
        args |= {key: values[row] for key, values in others.items() if values[row] is not None}
        if count > 1:
            args["calls"] = count  # one after the other, at some time since: no length to show
        is_instant = shown is Shown.INSTANT or count > 1
        yield Observed(
            owner=batch.resource,
            thread=thread if isinstance(thread, int) and thread > 0 else 0,
            thread_name=name if isinstance(name, str) else "",
            kind=clean(batch.sample_type.type),
            shown=Shown.WAIT if is_instant and shown is Shown.APART else shown,
            start=time,
            end=time if is_instant else time + max(value, 0),
            name=f"{states[its_state]}, {where}" if its_state else where,
            args=args,
        )


def column_of(attribute: Any, rows: int) -> list[Any]:
    """One value per row, None where there is none. Text is what UTF-8 can carry."""
    values: Any = attribute.values
    column: list[Any]
    if isinstance(values, Text):
        table = [
            clean(each) if isinstance(each, str) else [clean(one) for one in each] for each in values.table
        ]
        column = [table[code] for code in values.codes.tolist()]
    else:
        column = values.tolist()
    if attribute.present is not None:
        there = attribute.present.tolist()
        column = [value if present else None for value, present in zip(column, there, strict=True)]
    return column


def _labels(batch: ProfileColumns, stack: int, *, waits: bool) -> tuple[list[str], str]:
    """The frames of a stack, the leaf first, and what it is called by: in a wait the leaf is the kernel's or libc's."""
    frames = [frame for code in batch.stacks[stack] for frame in location_frames(batch, code)]
    labels = [clean(frame.label) for frame in frames]
    python = (label for label, frame in zip(labels, frames, strict=True) if frame.kind is Kind.PYTHON)
    leaf = labels[0] if labels else "[no stack]"
    return labels, next(python, leaf) if waits else leaf
