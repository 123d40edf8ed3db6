"""Rings in memory that an observed process writes, and may fill with anything.

Layout: ``otelgpu/inject/memory.h``, read from its BTF. The agent makes the memory, so its size is the agent's to
know and, once sealed, nobody's to change: what lies in it is never trusted. Positions are checked against the
size, what is to be parsed is copied out first, and a ring that makes no sense is given up, which is counted.
The agent keeps its own position and only says it to the writer.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.elf.btf import Btf
from otelgpu.kernel.clock import monotonic_ns
from otelgpu.kernel.ring import run_length

_HEADER_BYTES: Final = 8
_DISCARD: Final = 1 << 30
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_PREFIX: Final = "INJECT_"
_DEVICE_TIME_PREFIX: Final = "CUPTI_COUNT_"
_COUNT_MAX: Final = 1 << 40  # a counter of a ring that says more does not report the truth

RUNS_PER_DRAIN: Final = 16_384
"""Runs of records of one length that a process may have read at a time: each costs some microseconds."""

Run = npt.NDArray[np.uint8]


class SharedMemory:
    """The memory of one process: ``threads`` rings of ``ring_bytes`` (a power of two, at least a page).

    :meth:`take_descriptor` gives what the process is to be sent. ``record_bytes`` are the lengths that records have.
    """

    def __init__(self, layout: Btf, *, threads: int, ring_bytes: int, record_bytes: Collection[int]) -> None:
        numbers = layout.enumerators("inject_number")
        header_type, thread_type = layout.dtype("inject_header"), layout.dtype("inject_thread")
        table = numbers[f"{_PREFIX}HEADER_BYTES"]
        rings = -(-(table + threads * thread_type.itemsize) // mmap.PAGESIZE) * mmap.PAGESIZE
        size = rings + threads * ring_bytes
        self.ring_bytes = ring_bytes
        self.counters: Counter[str] = Counter()
        self._record_bytes = frozenset(record_bytes)
        self._longest = _HEADER_BYTES + max(self._record_bytes)
        self._descriptor = os.memfd_create("otelgpu", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._descriptor, size)
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self._memory = mmap.mmap(self._descriptor, size)
        except BaseException:
            os.close(self._descriptor)
            raise
        whole = np.frombuffer(self._memory, dtype=np.uint8)
        self._header = whole[: header_type.itemsize].view(header_type)
        self._threads = whole[table : table + threads * thread_type.itemsize].view(thread_type)
        self._rings = whole[rings:].reshape(threads, ring_bytes)
        self._consumed = np.zeros(threads, dtype=np.uint64)
        self._given_up = np.zeros(threads, dtype=bool)
        self._next = 0  # the ring that is read first
        self._names = _reasons(layout, "inject_counter", _PREFIX)
        self._device_time_names = _reasons(layout, "cupti_counter", _DEVICE_TIME_PREFIX)
        self._header["magic"] = numbers[f"{_PREFIX}MAGIC"]
        self._header["version"] = numbers[f"{_PREFIX}VERSION"]
        self._header["threads"], self._header["ring_bytes"] = threads, ring_bytes
        self._header["rings"] = rings
        self._heard_last = layout.enumerators("inject_heard")["HEARD_LAST"]
        self._header["heard_ns"] = monotonic_ns()

    def take_descriptor(self) -> int:
        """The caller's from now on, to close it; once."""
        descriptor, self._descriptor = self._descriptor, -1
        return descriptor

    def fullest(self) -> int:
        """Bytes that wait in the fullest ring; more than a ring has, if a writer lies. Says that we live."""
        self._header["heard_ns"] = monotonic_ns()
        waiting = self._threads["producer"] - self._consumed
        return int(waiting[~self._given_up].max(initial=0))

    def owners(self) -> list[int]:
        """The threads that have rings, by the numbers that they go by themselves; some twice, if a writer lies."""
        owners: list[int] = self._threads["owner"][self._threads["owner"] > 0].tolist()
        return owners

    def drain(self, *, most_bytes: int | None = None, most_runs: int | None = None) -> Iterator[Run]:
        """Copies of what was there at the call: uint8 arrays of shape (records, record length).

        In order for each ring. What there is beyond ``most_bytes`` (all; and a record) or ``most_runs``
        (RUNS_PER_DRAIN) waits for the next time, which begins with another ring. Pages that were read are let go of.
        """
        left = RUNS_PER_DRAIN if most_runs is None else most_runs
        left_bytes = self._rings.size if most_bytes is None else most_bytes
        produced = self._threads["producer"].copy()
        waiting = np.flatnonzero((produced != self._consumed) & ~self._given_up)
        for thread in np.roll(waiting, -np.searchsorted(waiting, self._next)).tolist():
            for run, stepped in self._drain_ring(thread, int(produced[thread]), left_bytes):
                left -= 1
                left_bytes -= stepped
                if len(run):
                    yield run
                if left <= 0 or left_bytes <= 0:
                    self.counters["drain_postponed"] += 1
                    self._next = thread + 1
                    self._memory.madvise(mmap.MADV_DONTNEED)
                    return
        self._memory.madvise(mmap.MADV_DONTNEED)

    def _drain_ring(self, thread: int, produced: int, most_bytes: int) -> Iterator[tuple[Run, int]]:
        """Runs of one ring and their lengths with headers, about ``most_bytes``; space is given back after each.

        An empty one for a run that says nothing.
        """
        begin = int(self._consumed[thread])
        if not 0 < produced - begin <= self.ring_bytes or produced % 8:
            self._give_up(thread)
            return
        while begin < produced:
            start = begin & (self.ring_bytes - 1)
            waiting = min(produced - begin, self.ring_bytes - start)  # a record never wraps
            part = min(waiting, most_bytes // 8 * 8 + self._longest)
            piece = self._rings[thread, start : start + part].copy()
            offset = 0
            while offset < len(piece):
                found = self._run_at(piece, offset, waiting, at_end=start + waiting == self.ring_bytes)
                if found is None:
                    self._give_up(thread)
                    return
                run, stepped = found
                if not stepped:
                    break  # the rest of it was not copied
                offset += stepped
                self._consumed[thread] = self._threads["consumer"][thread] = begin + offset
                yield run, stepped
            begin += offset

    def _run_at(self, piece: Run, offset: int, waiting: int, *, at_end: bool) -> tuple[Run, int] | None:
        """The run that begins there and its length with headers; None where no record can be.

        ``piece`` begins what is waiting; of a record that is not whole in it the length is 0.
        """
        window = piece[offset:]
        word = int(window[:4].view("<u4")[0])
        size = word & ~_DISCARD
        stride = size + _HEADER_BYTES
        if word & _DISCARD:  # fills what is left of the ring
            whole = at_end and stride == waiting - offset
            return (np.empty((0, 0), dtype=np.uint8), stride) if whole else None
        if size not in self._record_bytes or stride > waiting - offset:
            return None
        if stride > len(window):
            return window[:0], 0
        count = min(run_length(window, word, stride), len(window) // stride)
        rows = window[: count * stride].reshape(count, stride)[:, _HEADER_BYTES:]
        return np.ascontiguousarray(rows), count * stride

    def _give_up(self, thread: int) -> None:
        self._given_up[thread] = True
        self.counters["ring_corrupt"] += 1

    def totals(self) -> Counter[str]:
        """What the process has counted, and what was noticed here: reason → count since the beginning."""
        by_thread = np.minimum(self._threads["counters"], _COUNT_MAX).sum(axis=0)
        overall = by_thread + np.minimum(self._header["counters"][0], _COUNT_MAX)
        device_time = np.minimum(self._header["device_time"][0], _COUNT_MAX)
        return (
            self.counters
            + Counter({name: int(overall[number]) for number, name in self._names.items()})
            + Counter({name: int(device_time[number]) for number, name in self._device_time_names.items()})
        )

    def close(self) -> None:
        """Unmap; a library that came into a running process ends what it does."""
        self._header["heard_ns"] = self._heard_last
        if (descriptor := self.take_descriptor()) >= 0:
            os.close(descriptor)
        del self._header, self._threads, self._rings
        self._memory.close()


def _reasons(layout: Btf, enum: str, prefix: str) -> dict[int, str]:
    """Number → reason of an enum of counters, the last of which counts them."""
    named = list(layout.enumerators(enum).items())[:-1]
    return {number: name.removeprefix(prefix).lower() for name, number in named}
