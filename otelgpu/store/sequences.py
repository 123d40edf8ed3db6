"""One number for a collective where NCCL counts each function of a communicator by itself. Pure."""

from __future__ import annotations

from typing import Final

from otelgpu.store.tables import SEQUENCE_UNKNOWN

FUNCTIONS: Final = {
    name: code
    for code, name in enumerate(
        ("AllGather", "AllReduce", "AlltoAll", "Broadcast", "Gather", "Reduce", "ReduceScatter", "Scatter")
    )
}
PLACES: Final = 16  # more functions than there are
MOST: Final = (1 << 63) // PLACES - 1


def sequence_of(function: str, number: int) -> int:
    """A number that no other collective of the communicator has, the same on all its ranks; −1: not known.

    >>> sequence_of("AllGather", 3), sequence_of("AllReduce", 3), sequence_of("AllReduce", 4)
    (48, 49, 65)
    """
    code = FUNCTIONS.get(function)
    if code is None or not 0 <= number <= MOST:
        return SEQUENCE_UNKNOWN
    return number * PLACES + code
