"""One number for a collective where NCCL counts each function of a communicator by itself. Pure."""

from __future__ import annotations

from typing import Final

from otelgpu.store.tables import SEQUENCE_UNKNOWN

_FUNCTIONS: Final = {
    name: code
    for code, name in enumerate(
        ("AllGather", "AllReduce", "AlltoAll", "Broadcast", "Gather", "Reduce", "ReduceScatter", "Scatter")
    )
}
_PLACES: Final = 16  # more functions than there are
_MOST: Final = (1 << 63) // _PLACES - 1


def sequence_of(function: str, number: int) -> int:
    """A number that no other collective of the communicator has, the same on all its ranks; −1: not known.

    >>> sequence_of("AllGather", 3), sequence_of("AllReduce", 3), sequence_of("AllReduce", 4)
    (48, 49, 65)
    """
    code = _FUNCTIONS.get(function)
    if code is None or not 0 <= number <= _MOST:
        return SEQUENCE_UNKNOWN
    return number * _PLACES + code
