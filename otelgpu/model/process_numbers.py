"""Process ids that were given to several processes, one after the other, told apart.

A *number* is what the pipeline knows a process by: its id and, above that, which of the id's owners it is, modulo 1024.
The first is 0: then the number is the id. No id has more than 22 bits (Linux,
PID_MAX_LIMIT).
"""

from __future__ import annotations

from typing import Final

ID_BITS: Final = 22
_OWNERS: Final = 1 << (32 - ID_BITS)


def process_id(number: int) -> int:
    """The id, in the initial PID namespace, of the process that has a number."""
    return number & ((1 << ID_BITS) - 1)


def next_owner(number: int) -> int:
    """The number of the process that is given the id of another, which has ended."""
    return process_id(number) | ((number >> ID_BITS) + 1) % _OWNERS << ID_BITS
