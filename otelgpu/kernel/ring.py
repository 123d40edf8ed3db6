"""A BPF ring buffer, drained in bulk from its mmap: no callback and no Python per record.

Layout: page 0 holds the consumer position, page 1 the producer position, then the data twice in a row, so that a
record never wraps (kernel/bpf/ringbuf.c). Of the second time only what the longest record may reach is mapped here:
every page of a mapping counts as resident. Each record has an 8-byte header: length with
BUSY and DISCARD bits, page offset. Neighbouring records of equal length form a run, and a run is one
strided numpy view, copied out once: a piece at a time, so that a piece is still in the cache when it is looked at.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.model.self_telemetry import RingFill

_HEADER_BYTES: Final = 8
_BUSY: Final = 1 << 31
_DISCARD: Final = 1 << 30
_LENGTH: Final = struct.Struct("<I")
_PAGE: Final = mmap.PAGESIZE
_WRITTEN_WITHIN_S: Final = 0.0002  # a hundred times as long as it takes, where nothing interrupts it
_PIECE_BYTES: Final = 1 << 20  # fits the second-level cache

Run = npt.NDArray[np.uint8]


class Ring:
    """One consumer of one ring map.

    ``fd`` is the map's descriptor, ``size`` its capacity in bytes, a power of two, and ``longest`` the bytes of the
    longest record.
    """

    def __init__(self, fd: int, size: int, *, longest: int) -> None:
        self.fd = fd
        self.size = size
        self._consumer_page = mmap.mmap(fd, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        beyond = min(-(-longest // _PAGE) * _PAGE, size)
        self._pages = mmap.mmap(fd, _PAGE + size + beyond, mmap.MAP_SHARED, mmap.PROT_READ, offset=_PAGE)
        for pages in (self._consumer_page, self._pages):
            pages.madvise(mmap.MADV_DONTFORK)  # a child that outlives this process must not keep the ring
        self._consumer = np.frombuffer(self._consumer_page, dtype="<u8", count=1)
        self._producer = np.frombuffer(self._pages, dtype="<u8", count=1)
        self._data = np.frombuffer(self._pages, dtype=np.uint8, offset=_PAGE)
        self._high_water = 0
        self._closed = False
        self.held_up = False
        """Whether the last drain ended before its time: at a record whose writer does not run just now."""

    def pending_bytes(self) -> int:
        """How much is waiting, headers included."""
        return int(self._producer[0]) - int(self._consumer[0])

    def take_fill(self) -> RingFill:
        """The most that was found waiting since the last call."""
        high_water, self._high_water = max(self._high_water, self.pending_bytes()), 0
        return RingFill(high_water=high_water, limit=self.size)

    def drain(self) -> Iterator[Run]:
        """Copy out what was there at the call: uint8 arrays of shape (records, record length), in ring order.

        Space is given back to the kernel piece by piece. A record that is still being written after a moment ends the
        drain, and so does :meth:`close`.
        """
        end = int(self._producer[0])
        position = int(self._consumer[0])
        self._high_water = max(self._high_water, end - position)
        self.held_up = False
        while position < end and not self._closed:
            offset = position & (self.size - 1)
            window = self._data[offset : min(offset + end - position, self.size)]  # where records may begin
            length = int(window[:4].view("<u4")[0])
            if length & _BUSY:
                if self.held_up:
                    return
                time.sleep(_WRITTEN_WITHIN_S)
                self.held_up = True
                continue
            self.held_up = False
            size = length & ~_DISCARD
            stride = (size + _HEADER_BYTES + 7) & ~7
            count = run_length(window, length, stride)
            start = offset + _HEADER_BYTES
            rows = np.ndarray((count, size), np.uint8, self._data, start, (stride, 1))
            if length & _DISCARD:
                position += count * stride
                self._consumer[0] = position
                continue
            at_a_time = max(_PIECE_BYTES // max(size, 1), 1)
            for begin in range(0, count, at_a_time):
                piece = rows[begin : begin + at_a_time].copy()
                position += len(piece) * stride
                self._consumer[0] = position
                yield piece

    def read_each(self) -> Iterator[bytes]:
        """The same record by record, until there is none: where a few come at a time, this is quick.

        What comes meanwhile is of it: the kernel wakes only a reader that had read all.
        """
        self._high_water = max(self._high_water, self.pending_bytes())
        self.held_up = False
        while self.pending_bytes() > 0 and not self._closed:
            position = int(self._consumer[0])
            start = _PAGE + (position & (self.size - 1))
            (length,) = _LENGTH.unpack_from(self._pages, start)
            if length & _BUSY:
                if self.held_up:
                    return
                time.sleep(_WRITTEN_WITHIN_S)
                self.held_up = True
                continue
            self.held_up = False
            size = length & ~_DISCARD
            start += _HEADER_BYTES
            record = self._pages[start : start + size]
            self._consumer[0] = position + ((size + _HEADER_BYTES + 7) & ~7)
            if not length & _DISCARD:
                yield record

    def close(self) -> None:
        """Unmap; idempotent. From here on nothing waits."""
        self._closed = True
        self._consumer = self._producer = np.zeros(1, dtype="<u8")
        self._data = np.empty(0, dtype=np.uint8)
        for pages in (self._consumer_page, self._pages):
            # A drain that an error cut short has a view, and unmaps as it is forgotten.
            with suppress(BufferError):
                pages.close()


def run_length(window: npt.NDArray[np.uint8], length: int, stride: int) -> int:
    """How many records from the start of ``window`` have the header word ``length``.

    Looks ahead in growing steps, so that traffic of alternating sizes stays linear.
    """
    total = (len(window) + stride - 1) // stride
    known = 1
    step = 8
    while known < total:
        upto = min(total, known + step)
        headers = np.ndarray((upto - known,), "<u4", window, known * stride, (stride,))
        different = np.flatnonzero(headers != length)
        if len(different):
            return known + int(different[0])
        known = upto
        step *= 8
    return known
