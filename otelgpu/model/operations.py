"""Finished things that an API call did, in columns: one numpy structured array whatever the vendor.

A family's decoder turns its records into this dtype, so that correlation, folding and encoding are
written once and CUDA, HIP or Level Zero share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class OperationKind(IntEnum):
    """What an operation did. A new kind is a design event (DESIGN.md section 3)."""

    LAUNCH = 1
    GRAPH_LAUNCH = 2
    COPY = 3
    ALLOCATION = 4
    FREE = 5
    SYNCHRONIZATION = 6


class CopyDirection(IntEnum):
    """Where a copy went; DEFAULT lets the runtime infer it from the pointers."""

    HOST_TO_HOST = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    DEFAULT = 4
    UNKNOWN = 255


class ContextSource(IntEnum):
    """How an operation was tied to a request: ``otelgpu.context.source``, DESIGN.md section 5."""

    NONE = 0
    THREAD_CONTEXT = 1
    OBI = 2
    THREAD = 3
    WAKEUP = 4
    MESSAGE = 5
    STEP = 6


OPERATION = np.dtype(
    [
        ("start_ns", "<u8"),  # CLOCK_MONOTONIC
        ("duration_ns", "<u8"),  # host time inside the call; 0 when only the entry was probed
        ("tgid", "<u4"),
        ("tid", "<u4"),
        ("cgroup_id", "<u8"),
        ("trace_id", "u1", 16),  # the context active on the thread at the call; zeros when none
        ("span_id", "u1", 8),
        ("trace_flags", "u1"),
        ("context_source", "u1"),  # ContextSource
        ("kind", "u1"),  # OperationKind
        ("direction", "u1"),  # CopyDirection
        ("api", "<u2"),  # index into the family's API names
        ("returned", "u1"),  # 1 when the return was probed, so that status and duration are known
        ("family", "u1"),  # position of the family in the session, from 0
        ("status", "<i4"),  # the vendor's result code
        ("shared_bytes", "<u8"),  # launches: dynamic shared memory
        ("function", "<u8"),  # launches: the address or handle that names the kernel
        ("stream", "<u8"),
        ("handle", "<u8"),  # pointer of an allocation or free, event or graph of a call
        ("size_bytes", "<u8"),  # copies and allocations
        ("grid", "<u4", 3),
        ("block", "<u4", 3),
        ("name", "<u4"),  # launches: index into the session's kernel names; 0 is "unknown"
        ("reserved2", "<u4"),
    ]
)
"""Shape (n,). One row per call, in no particular order."""

Operations = npt.NDArray[np.void]


_ROW = np.dtype((np.void, OPERATION.itemsize))


def concatenate(parts: Sequence[Operations]) -> Operations:
    """One after the other.

    numpy joins and indexes structured rows field by field, ten times slower than plain bytes: hence this, and
    ``rows.take(…)`` or ``rows.compress(…)`` in place of ``rows[…]`` wherever many rows are copied.
    """
    joined: Operations = np.concatenate([np.zeros(0, dtype=_ROW), *(part.view(_ROW) for part in parts)])
    return joined.view(OPERATION)


def operations(rows: int) -> Operations:
    """``rows`` zeroed operations, ready to be filled column by column."""
    return np.zeros(rows, dtype=OPERATION)
