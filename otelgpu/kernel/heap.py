"""The C library's heap: what was freed goes back to the system only when it is asked for."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Final

_OPTIONS: Final = {  # malloc.h
    -8: 1,  # M_ARENA_MAX
    -3: 4 << 20,  # M_MMAP_THRESHOLD
    -1: 16 << 20,  # M_TRIM_THRESHOLD
}


def share_one() -> None:
    """Have all threads use one heap (glibc's ``mallopt``), before there are any; nothing with another C library.

    Of the heaps that threads have to themselves :func:`give_back` gives no end back: what the kernel's types took while
    a family was loaded, 6 MiB and more, would stay there. That much is apart, and goes back when it is freed.
    """
    try:
        for option, value in _OPTIONS.items():
            ctypes.CDLL(None).mallopt(option, value)
    except (OSError, AttributeError):  # another C library
        return


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
