"""What a framework's caching allocators report of the memory that tensors hold.

Such an allocator takes memory from the driver in large pieces and gives it to tensors in small ones. What it has taken
is *reserved*, what tensors hold is *allocated*, and the rest is kept for later.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

LEVEL: Final = np.dtype(
    [
        ("time_ns", "<u8"),  # CLOCK_MONOTONIC, when it was read
        ("tgid", "<u4"),
        ("device", "<i2"),  # see :func:`device_name`
        ("padding", "<u2"),
        # As the allocator says of the whole process, at its last allocation or free. Bytes.
        ("allocated", "<u8"),
        ("reserved", "<u8"),
        # The rest since it is observed.
        ("allocated_peak", "<u8"),
        ("reserved_peak", "<u8"),
        ("allocations", "<u8"),
        ("allocated_bytes", "<u8"),
        ("frees", "<u8"),
        ("freed_bytes", "<u8"),
        ("refusals", "<u8"),  # out of memory
    ]
)
"""Shape (n,). One row per device and process, in no particular order: how things stand."""

Levels = npt.NDArray[np.void]

_TYPES: Final = (
    *("cpu", "cuda", "mkldnn", "opengl", "opencl", "ideep", "hip", "fpga", "maia", "xla", "vulkan"),
    *("metal", "xpu", "mps", "meta", "hpu", "ve", "lazy", "ipu", "mtia", "privateuseone"),
)
"""By number: c10/core/DeviceType.h of PyTorch. A build for ROCm calls its devices ``cuda``, as it does in Python."""


def device_name(device: int) -> str:
    """A device as PyTorch writes it: ``cuda:0``; ``type57:0`` where its type has no name here.

    ``device``: 16 bits with a sign: the type in the lower 8, the index, which may be negative, above them.

    >>> device_name(0x0301)
    'cuda:3'
    """
    kind, index = device & 0xFF, device >> 8
    return f"{_TYPES[kind] if kind < len(_TYPES) else f'type{kind}'}:{index}"


def cuda_ordinal(device: int) -> int | None:
    """The ordinal of a device of type ``cuda``, which a build for ROCm has, too; None of others.

    >>> cuda_ordinal(0x0301), cuda_ordinal(0)
    (3, None)
    """
    kind, index = device & 0xFF, device >> 8
    return index if kind == _TYPES.index("cuda") and index >= 0 else None
