"""What a profile is made of before stacks have names: rows of one sample type, of any number of processes. Pure.

In: samples, operations, whatever else has a stack and a value. Out, by :class:`~otelgpu.families.profiles.intervals.
ProfileSession`: one :class:`~otelgpu.model.profiles.ProfileColumns` per process and sample type.

Example: three kernels of a process ran for 5, 6 and 9 us, launched under stack 77: three rows of
:data:`GPU_KERNEL_TIME` with values 5000, 6000, 9000, stack 77, and ``leaf`` 1, where ``leaves`` is
``((Frame(type=FrameType.GPU, name="GPU: flash_fwd"),),)``.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.model.profiles import ValueType
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.samples import Frame

PROFILE_ROW: Final = np.dtype(
    [
        ("time_ns", "<u8"),  # CLOCK_MONOTONIC: when it was observed, or began
        ("tgid", "<u4"),
        ("tid", "<u4"),
        ("stack", "<u8"),  # number of the stack in its process; 0: none could be taken
        ("value", "<i8"),
        ("waker_stack", "<u8"),  # of who ended the wait; 0: not known
        ("waker_tgid", "<u4"),  # whose stack that is
        ("leaf", "<u4"),  # 0: none; else ``leaves[leaf - 1]`` goes on top of the stack
        ("label", "<u4"),  # 0: none; else ``labels[label - 1]`` are attributes of the row
        ("state", "u1"),  # ThreadState; 0: not reported
        ("context_source", "u1"),  # as of records: whether trace_id and span_id were published by the process
        ("trace_flags", "u1"),
        ("reserved", "u1"),
        ("trace_id", "u1", (16,)),
        ("span_id", "u1", (8,)),
        ("name", "S16"),  # the thread's name (comm); empty: not reported
    ]
)
"""Shape (n,). One row per observation, in no particular order. Columns that nothing is known of stay 0."""

Rows = npt.NDArray[np.void]

Label = tuple[tuple[str, str | int], ...]
"""Attributes that go together: key and value. Of few distinct values: each makes samples of its own."""


class ProfileRows(Struct, frozen=True, kw_only=True):
    """n rows of one kind and one sample type; ``leaves``: each leaf first."""

    kind: ProfileKind
    sample_type: ValueType
    rows: Rows  # (n,) of PROFILE_ROW
    leaves: tuple[tuple[Frame, ...], ...] = ()
    labels: tuple[Label, ...] = ()
    has_operators: bool = False  # stacks are searched for the framework's operator that asked
    period_type: ValueType | None = None  # of the events between two observations; None: every one is a row
    period: int = 1  # how many of those

    def __len__(self) -> int:
        return len(self.rows)


def profile_rows(rows: int) -> Rows:
    """``rows`` zeroed rows."""
    return np.zeros(rows, dtype=PROFILE_ROW)
