"""Samples of where threads were, in columns, and the stacks that they name.

A *sample* says that a thread was under a stack at a time, and how much of something that stands for (nanoseconds,
calls, bytes). A *stack* is reported once, fully named, before or with the first sample under it, and samples refer to
it by (process, number). Numbers are the BPF program's (a hash of the frames), never 0 for a stack that was taken.

Example: 3,000 samples a second of 40 stacks are 3,000 rows, and 40 :class:`StackNamed` at their first sight.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.model.row_bytes import joined

if TYPE_CHECKING:
    from otelgpu.model.profiles import FrameType


class SampleKind(IntEnum):
    """What took the sample, and so what ``value`` counts. Numbers are those of ``enum profile_kind`` in profile.h."""

    CPU = 1  # on a CPU when the clock struck; value: nanoseconds of CPU time that it stands for
    OFF_CPU = 2  # left the CPU at ``time_ns``; value: nanoseconds until it was back; ``other``: tid of the waker or 0
    WAKER = 3  # the same, under the stack of the thread that woke it; ``other``: the tid that was woken
    SYSCALL = 4  # system calls; value: nanoseconds in them; ``size_bytes``: how many; ``other``: their number
    FILE = (
        5  # a slow read, write or sync; value: nanoseconds; ``size_bytes``; ``other``: FileCall, file above
    )
    BLOCK = 6  # a block I/O request; value: nanoseconds until done; ``other``: device number, operation above
    CALL = 7  # entry of a vendor library's call; value: 1. Joined with the operation by (tid, time_ns)
    USER = 8  # a probe of the user's; value: what it reads, or 1; ``other``: the probe's number


FILE_SHIFT: Final = 8
"""Bits of the call below the number of the file in ``other`` of FILE (``FILE_NUMBER_SHIFT``, bpf/profile/files.h)."""
OPERATION_SHIFT: Final = 32
"""Bits of the device below the operation in ``other`` of BLOCK (``OPERATION_SHIFT``, bpf/profile/block.h)."""
GROUP_SHIFT: Final = 40
"""Below the number of the control group that it was written back for; 0: of none (``GROUP_SHIFT``, the same)."""


class ThreadState(IntEnum):
    """How a thread left the CPU (the kernel's task states, folded)."""

    UNKNOWN = 0
    RUNNABLE = 1  # preempted, or it yielded: it waits for a CPU
    INTERRUPTIBLE = 2  # sleeps
    UNINTERRUPTIBLE = 3  # waits for a device, a page, a lock in the kernel
    STOPPED = 4


SAMPLE: Final = np.dtype(
    [
        ("time_ns", "<u8"),  # CLOCK_MONOTONIC; of calls the operation's start_ns
        ("duration_ns", "<u8"),  # 0 for an instant
        ("tgid", "<u4"),
        ("tid", "<u4"),
        ("stack", "<u8"),  # number of the stack; 0: none could be taken, which is counted
        ("value", "<i8"),
        ("size_bytes", "<u8"),
        ("other", "<u8"),
        ("trace_id", "u1", (16,)),  # the context that was active on the thread; zeros when none
        ("span_id", "u1", (8,)),
        ("kind", "u1"),  # SampleKind
        ("state", "u1"),  # ThreadState, of OFF_CPU
        ("context_source", "u1"),
        ("trace_flags", "u1"),
        ("cpu", "<u2"),
        ("name", "S16"),  # the thread's name (comm), zero-padded; empty where it is not reported
        ("reserved", "<u2"),
    ]
)
"""Shape (n,). One row per sample, in no particular order."""

Samples = npt.NDArray[np.void]


def samples(rows: int) -> Samples:
    """``rows`` zeroed samples."""
    return np.zeros(rows, dtype=SAMPLE)


class Frame(Struct, frozen=True, kw_only=True):
    """One frame by name, as it is shown. Equal frames are equal values, of all processes.

    ``name`` is demangled and never empty: an address without a symbol is ``module+0xoffset``. Python frames have the
    qualified name where the version has one, the file and the line that runs; native ones the mapped file's
    path and build id, and ``address`` is the offset in that file.
    """

    type: FrameType
    name: str
    file: str = ""  # Python: co_filename; native: path of the mapped file; kernel: "[kernel]"
    line: int = 0
    system_name: str = ""  # native: mangled
    build_id: str = ""
    address: int = 0


class StackNamed(Struct, frozen=True, kw_only=True):
    """What stack ``stack`` of process ``tgid`` is: an input, and an answer that a capture keeps.

    ``frames``: the leaf first; kernel frames, then Python and native together, merged at the evaluation frames.
    ``truncated``: why it is not complete, "" of a complete one: a reason of the family's table.
    """

    tgid: int
    stack: int
    frames: tuple[Frame, ...]
    truncated: str = ""


def concatenated(parts: list[Samples]) -> Samples:
    """One after the other."""
    return joined([samples(0), *parts]) if len(parts) != 1 else parts[0]
