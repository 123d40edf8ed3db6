"""What is asked of profiling: kinds of profiles, and how often threads are looked at."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Final

from msgspec import Struct

from otelgpu.model.operations import DEVICE_KINDS, OperationKind


class ProfileKind(StrEnum):
    """A kind of profile, by the word of ``otelgpu profile -t``."""

    CPU = "cpu"  # threads on a CPU, by the clock
    PYTHON = "python"  # the same and threads that wait, by Python frames
    OFFCPU = "offcpu"  # time off the CPU, with the state and who woke the thread
    SYSCALL = "syscall"  # system calls: how many, how long
    FILE = "file"  # slow reads, writes and syncs of files
    BLOCK = "block"  # block I/O
    CUDA = "cuda"  # library calls of the device's API
    KERNEL = "kernel"  # time of kernels on the device; launches where that is not measured
    MEM = "mem"  # device memory: allocated, and in use; and what PyTorch gives of it to tensors
    NCCL = "nccl"  # collectives
    VERBS = "verbs"  # work requests and calls of libibverbs


CALL_KINDS: Final = frozenset(
    (ProfileKind.CUDA, ProfileKind.KERNEL, ProfileKind.MEM, ProfileKind.NCCL, ProfileKind.VERBS)
)
"""Those that need a stack at the entry of library calls."""

DEVICE_PROFILES: Final = (ProfileKind.CUDA, ProfileKind.KERNEL, ProfileKind.MEM)
"""Those of work on a device, in the order in which they are suggested."""


class ProfileSettings(Struct, frozen=True, kw_only=True):
    """One session's. ``kinds`` empty: nothing is profiled."""

    kinds: frozenset[ProfileKind] = frozenset()
    frequency_hz: int = 99  # of the clock that CPU samples come by
    off_cpu_least_us: int = 1000  # shorter waits are passed over (they are in no count)
    file_slow_ms: int = 1
    interval_s: float = 10.0  # one OTLP profile of each kind covers so long
    launches: bool = (
        True  # of calls of device libraries those that launch too: a program may make 100,000 a second
    )
    keep_times: bool = True  # when each observation was; False: equal ones of an interval are summed


POSTS: Final = 31
"""Bit of :func:`stack_kinds` for work requests posted, which are no operations: see bpf/lib/call_stacks.h."""
TENSORS: Final = 30
"""The same for memory that PyTorch's allocators give to tensors."""

LAUNCHES: Final = (OperationKind.LAUNCH, OperationKind.GRAPH_LAUNCH)

_NEEDED: Final[dict[ProfileKind, tuple[int, ...]]] = {
    ProfileKind.CUDA: DEVICE_KINDS,
    ProfileKind.KERNEL: LAUNCHES,
    ProfileKind.MEM: (OperationKind.ALLOCATION, TENSORS),  # a free is booked under the stack of what it frees
    ProfileKind.NCCL: (
        *(OperationKind.COLLECTIVE, OperationKind.POINT_TO_POINT),
        *(OperationKind.COMMUNICATOR, OperationKind.GROUP),
    ),
    ProfileKind.VERBS: (POSTS,),
}


def stack_kinds(kinds: Collection[ProfileKind], *, launches: bool = True) -> int:
    """Option ``stack_kinds`` of the BPF programs: bit k is set where operations of kind k need their stacks.

    ``launches``: those of kernels and graphs too.
    """
    bits = {bit for kind in kinds for bit in _NEEDED.get(kind, ())}
    return sum(1 << bit for bit in (bits if launches else bits.difference(LAUNCHES)))
