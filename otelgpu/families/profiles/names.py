"""Names that profiles carry: sample types, attributes, frames that stand for what is not known.

A sample type is ``(type, unit)`` as OTLP and pprof have it. ``cpu`` and ``off_cpu`` are the names that other profilers
use (opentelemetry-ebpf-profiler, Pyroscope); the rest are ours.
"""

from __future__ import annotations

from typing import Final

from otelgpu.model.profiles import FrameType, ValueType
from otelgpu.model.samples import Frame

SCOPE: Final = "otelgpu.profile"

CPU: Final = ValueType(type="cpu", unit="nanoseconds")
PYTHON_CPU: Final = ValueType(type="python_cpu", unit="nanoseconds")
PYTHON_WALL: Final = ValueType(type="python_wall", unit="nanoseconds")
OFF_CPU: Final = ValueType(type="off_cpu", unit="nanoseconds")
SYSCALLS: Final = ValueType(type="syscalls", unit="count")
SYSCALL_TIME: Final = ValueType(type="syscall_time", unit="nanoseconds")
FILE_TIME: Final = ValueType(type="file_time", unit="nanoseconds")
FILE_BYTES: Final = ValueType(type="file_bytes", unit="bytes")
BLOCK_TIME: Final = ValueType(type="block_time", unit="nanoseconds")
BLOCK_BYTES: Final = ValueType(type="block_bytes", unit="bytes")
USER: Final = ValueType(type="user", unit="count")

THREAD_NAME: Final = "thread.name"
THREAD_ID: Final = "thread.id"
THREAD_STATE: Final = "otelgpu.thread.state"
"""How the thread left the CPU: ``runnable``, ``interruptible``, ``uninterruptible`` or ``stopped``."""
SYSCALL: Final = "otelgpu.syscall.name"
FILE_CALL: Final = "otelgpu.file.call"
FILE_NAME: Final = "file.name"
FILE_PATH: Final = "file.path"
"""From the root directory of the process."""
BLOCK_DEVICE: Final = "otelgpu.block.device"
BLOCK_OPERATION: Final = "otelgpu.block.operation"
BLOCK_GROUP: Final = "otelgpu.block.written_back_for"
PROBE: Final = "otelgpu.probe"

NOT_TAKEN: Final = Frame(type=FrameType.NATIVE, name="[no stack]")
"""No stack could be taken: counted by the reason where that was."""
NOT_KEPT: Final = Frame(type=FrameType.NATIVE, name="[stack not kept]")
"""The stack was taken, and its names were lost on the way, or were too many."""
TOO_MANY: Final = Frame(type=FrameType.NATIVE, name="[too many stacks]")
"""More different stacks at a time than are held: these are summed."""
WOKEN_BY: Final = Frame(type=FrameType.KERNEL, name="[woken by]")
"""Between a stack that waited, and, the outermost frame last, that of the thread that woke it."""

GIL: Final = Frame(type=FrameType.NATIVE, name="[waiting for the GIL]")
"""On top of a stack that waits for the lock of the Python interpreter. Who held it is who woke the thread."""


def truncated(reason: str) -> Frame:
    """The outermost frame of a stack that is not complete."""
    return Frame(type=FrameType.NATIVE, name=f"[truncated: {reason}]")
