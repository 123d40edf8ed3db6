"""Finished things that an API call did, in columns: one numpy structured array whatever the vendor.

A family's decoder turns its records into this dtype, so that correlation, folding and encoding are
written once and CUDA, HIP or Level Zero share them. A row is two cache lines and begins as ``struct
record_head`` does: a family whose records keep the same order decodes by looking at them differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct


class OperationKind(IntEnum):
    """What an operation did. A new kind is a design event (DESIGN.md section 3)."""

    LAUNCH = 1
    GRAPH_LAUNCH = 2
    COPY = 3
    ALLOCATION = 4
    FREE = 5
    SYNCHRONIZATION = 6
    SET = 7  # memory filled with a value
    MAPPING = 8  # physical memory mapped at an address, or taken from it
    STREAM = 9  # a stream made or ended
    EVENT = 10  # an event recorded, or a stream made to wait for one
    GRAPH = 11  # captured, made executable, updated, ended
    MODULE = 12  # code or a context loaded or unloaded
    DEVICE = 13  # a device or context made current, peer access switched
    COLLECTIVE = 14  # all ranks of a communicator move data together
    POINT_TO_POINT = 15  # one rank sends or receives, puts or waits for a signal
    COMMUNICATOR = 16  # made, split, asked about, ended
    GROUP = 17  # calls that take effect together, at its end
    FILE = 18  # a file was read, written or synced: where a thread was, never a span
    PROBE = 19  # a probe of the user's was hit
    STRETCH = 20  # what a thread did for a while, by its framework: never a span (otelgpu/model/stretches.py)


DEVICE_KINDS: Final = tuple(kind for kind in OperationKind if kind <= OperationKind.DEVICE)
"""What calls of a device's API do; the others are of libraries that communicate."""


class CopyDirection(IntEnum):
    """Where a copy went; DEFAULT lets the runtime infer it from the pointers."""

    HOST_TO_HOST = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    DEFAULT = 4
    UNKNOWN = 255


class Memory(IntEnum):
    """What an allocation gave, a free took back, a mapping mapped."""

    NONE = 0
    DEVICE = 1
    MANAGED = 2
    HOST = 3  # pinned by the vendor's library
    POOL = 4  # stream-ordered, from a pool
    PHYSICAL = 5  # a handle; no address until it is mapped
    REGISTERED = 6  # the program's own, pinned
    IMPORTED = 7  # another process's: not counted as its own
    ADDRESS = 8  # an address range with no memory behind it


DEVICE_MEMORY: Final = frozenset((Memory.DEVICE, Memory.MANAGED, Memory.POOL, Memory.PHYSICAL))
"""Kinds of memory that a process takes from a device."""

HOST_MEMORY: Final = frozenset((Memory.HOST, Memory.REGISTERED))
"""Kinds of the host's memory that are pinned for a device."""

_MEMORY: Final = frozenset(Memory)

LARGEST_SIZE: Final = 1 << 48
"""Bytes; a size beyond it is no size but a mistake of the caller's."""


class SequenceSource(IntEnum):
    """Where ``sequence`` of a collective comes from."""

    UNKNOWN = 0  # the communicator could not be read
    FUNCTION = 1  # the communicator's own count of collectives of this function
    OPERATIONS = 2  # its count of all operations: versions that keep none by function
    CAPTURED = 3  # noted into a graph: the count does not move, the call is no collective of its own
    CALL = 4  # the call was given it: the collective's number among all of the communicator


DEVICE_UNKNOWN: Final = -1

_FIELDS: Final[tuple[tuple[str, Any, int], ...]] = (
    # The record's head.
    ("start_ns", "<u8", 0),  # CLOCK_MONOTONIC
    ("duration_ns", "<u8", 8),  # host time inside the call; 0 when only the entry was probed
    ("tgid", "<u4", 16),
    ("tid", "<u4", 20),
    ("cgroup_id", "<u8", 24),
    ("trace_id", ("u1", 16), 32),  # the context active on the thread at the call; zeros when none
    ("span_id", ("u1", 8), 48),
    ("kind", "<u2", 56),  # OperationKind
    ("cpu", "<u2", 58),
    ("trace_flags", "u1", 60),
    ("context_source", "u1", 61),  # ContextSource
    ("returned", "u1", 62),  # 1 when the return was probed, so that status and duration are known
    ("family", "u1", 63),  # position of the family in the session, from 0
    # What the call was given and gave. Slots that no kind uses together share their bytes.
    ("function", "<u8", 64),  # launches: the address or handle that names the kernel
    ("handle", "<u8", 64),  # others: pointer, event, graph, stream, file … the call is about
    ("name", "<u4", 72),  # launches: index into the session's kernel names; 0 is "unknown"
    ("other", "<u8", 72),  # copies: source; mappings: handle of the memory, 0 to unmap; devices: peer
    ("size_bytes", "<u8", 80),  # copies, sets, allocations, mappings, files
    ("shared_bytes", "<u8", 80),  # launches: dynamic shared memory
    ("stream", "<u8", 88),
    ("grid", ("<u4", 3), 96),  # launches
    ("block", ("<u4", 3), 108),  # launches
    ("extra", "<u8", 96),  # graph launches: nodes; mappings: offset; allocations: pool
    ("caller", "<u8", 104),  # allocations: return address of the call, which is its site
    ("communicator_hash", "<u8", 72),  # collectives: the same on all ranks; 0: not known
    ("sequence", "<u8", 96),  # collectives: what the communicator counted before this call
    ("group", "<u4", 104),  # collectives: ordinal on this thread of the group they are in; 0: in none
    ("rank", "<i4", 108),  # collectives: of the caller; -1: not known
    ("peer", "<i4", 112),  # collectives: the root; sends and receives: the other rank; -1: none
    ("direction", "<u4", 112),  # copies: CopyDirection
    ("detail", "<u4", 112),  # others: the call's flags
    ("memory", "u1", 116),  # Memory
    ("datatype", "u1", 116),  # collectives: the vendor's number of the elements' type
    ("reduction", "u1", 117),  # collectives that reduce: the vendor's number of the operation
    ("sequence_source", "u1", 118),  # collectives: SequenceSource
    ("status", "<i4", 120),  # the vendor's result code
    ("api", "<u2", 124),  # index into the family's API names
    ("device", "<i2", 126),  # current device of the thread, DEVICE_UNKNOWN when nobody reported
)

OPERATION = np.dtype(
    {
        "names": [name for name, _, _ in _FIELDS],
        "formats": [form for _, form, _ in _FIELDS],
        "offsets": [offset for _, _, offset in _FIELDS],
        "itemsize": 128,
    }
)
"""Shape (n,). One row per call, in no particular order."""

Operations = npt.NDArray[np.void]


NS_PER_S: Final = 1_000_000_000
_LOW: Final = np.uint64(0xFFFF_FFFF)
_HALF: Final = np.uint64(32)


class Field(Struct, frozen=True):
    """A column of operations, or one part of it, as what is reported of calls: asked with rows, it gives their values.

    What is no more than that is written without numpy (:mod:`otelgpu.spanwriter`).
    """

    name: str
    part: int | None = None  # of "grid" and "block": which dimension

    def __call__(self, rows: Operations) -> npt.NDArray[Any]:
        """Its values: shape (n,)."""
        column: npt.NDArray[Any] = rows[self.name]
        return column if self.part is None else column[:, self.part]

    @property
    def place(self) -> tuple[np.dtype[Any], int]:
        """How a value of a row is kept, and at which byte of the row."""
        assert OPERATION.fields is not None
        form, offset = OPERATION.fields[self.name][:2]
        value = form.base
        return value, offset + (self.part or 0) * value.itemsize


class Seconds(Struct, frozen=True):
    """A column of nanoseconds, in seconds. Sums are of the nanoseconds, exactly."""

    field: Field

    def __call__(self, rows: Operations) -> npt.NDArray[Any]:
        """Its values: shape (n,), float64."""
        seconds: npt.NDArray[Any] = self.field(rows) * 1e-9
        return seconds

    def total(self, rows: Operations) -> float:
        """Their sum."""
        words = self.field(rows)
        return (int((words & _LOW).sum()) + (int((words >> _HALF).sum()) << 32)) / NS_PER_S


class Volume(Struct, frozen=True):
    """The product of a column's three parts."""

    field: Field

    def __call__(self, rows: Operations) -> npt.NDArray[Any]:
        """Its values: shape (n,), float64."""
        x, y, z = self.field(rows).T
        return np.asarray(x.astype(np.float64) * y * z)

    def total(self, rows: Operations) -> float:
        """Their sum."""
        return float(self(rows).sum())


Measure = Seconds | Volume
"""What a histogram is fed with that may be taken without numpy (:mod:`otelgpu.spanwriter.measuring`)."""


_ROW = np.dtype((np.void, OPERATION.itemsize))
_ROWS_COPIED: Final = 4096  # 512 KiB


def concatenate(parts: Sequence[Operations]) -> Operations:
    """One after the other.

    numpy joins and indexes structured rows field by field, ten times slower than plain bytes: hence this, and
    ``rows.take(…)`` or ``rows.compress(…)`` in place of ``rows[…]`` wherever many rows are copied.
    """
    joined: Operations = np.concatenate([np.zeros(0, dtype=_ROW), *(part.view(_ROW) for part in parts)])
    return joined.view(OPERATION)


def joined(parts: Sequence[Operations]) -> Operations:
    """The same; not copied where there is one."""
    return parts[0] if len(parts) == 1 else concatenate(parts)


def operations(rows: int) -> Operations:
    """``rows`` zeroed operations, ready to be filled column by column."""
    return np.zeros(rows, dtype=OPERATION)


def take_into(out: Operations, rows: Operations, chosen: npt.NDArray[np.intp]) -> None:
    """``out[:] = rows[chosen]``, each row copied once; every position must be one of ``rows``."""
    # "raise", the default, would put them together elsewhere first.
    rows.view(_ROW).take(chosen, out=out.view(_ROW), mode="clip")


def columns_of(rows: Operations, wanted: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Columns side by side, copied a piece at a time: a row's two cache lines are fetched once for all of them.

    Of many rows, each strided column that is looked at by itself costs as much as all of them here.
    """
    found = {name: np.empty(len(rows), dtype=rows.dtype[name]) for name in wanted}
    for begin in range(0, len(rows), _ROWS_COPIED):
        some = slice(begin, begin + _ROWS_COPIED)
        for name, column in found.items():
            column[some] = rows[name][some]
    return found


def results(rows: Operations) -> npt.NDArray[np.int64]:
    """What each call returned as one number, for what a status means depends on the function: shape (n,)."""
    return (rows["api"].astype(np.int64) << 32) | rows["status"].astype(np.uint32)


def api_and_status(result: int) -> tuple[int, int]:
    """The two halves of a number of :func:`results`."""
    return result >> 32, ((result & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def memory_name(code: int) -> str:
    """``cuda.memory.kind`` and its like: the kind of memory in words, whatever number a record has."""
    return Memory(code).name.lower() if code in _MEMORY else "unknown"
