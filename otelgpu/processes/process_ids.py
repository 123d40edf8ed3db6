"""A set of process ids, of which any number may be in it: a bit for each that Linux can give.

In and out: ids. It takes 512 KiB of addresses, and of memory a page for each 32,768 ids in a row of which one was
added: a host that counts its ids up takes 4 KiB for as many processes, where a ``dict`` takes 2 MiB. None is forgotten.
"""

from __future__ import annotations

import mmap

from otelgpu.model.process_numbers import ID_BITS


class ProcessIds:
    """Ids below 2²² (Linux, PID_MAX_LIMIT); none beyond is ever in it."""

    __slots__ = ("_bits",)

    def __init__(self) -> None:
        self._bits = mmap.mmap(-1, (1 << ID_BITS) // 8, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def __contains__(self, tgid: int) -> bool:
        return 0 <= tgid < 1 << ID_BITS and bool(self._bits[tgid >> 3] & 1 << (tgid & 7))

    def add(self, tgid: int) -> None:
        """Put one in."""
        if 0 <= tgid < 1 << ID_BITS:
            self._bits[tgid >> 3] |= 1 << (tgid & 7)
