"""The C library's heap: what was freed goes back to the system only when it is asked for."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


def give_back() -> None:
    """Return free memory of all arenas to the system (glibc's ``malloc_trim``); nothing with another C library.

    Takes some milliseconds, in which allocations of other threads may wait: for after great work, not for each.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # another C library
        return None
