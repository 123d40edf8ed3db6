"""Rings that an observed process fills, with sense and with nonsense."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from otelgpu.elf.btf import Btf
from otelgpu.kernel.injection import shared_memory
from otelgpu.kernel.injection.server import InjectError, read_library
from otelgpu.kernel.injection.shared_memory import SharedMemory
from tests.hostile.stage import resident_bytes
from tests.rig.examples import examples

RING = 8192
DISCARD, BUSY = 1 << 30, 1 << 31
CALL, NAME = 128, 256


@pytest.fixture(scope="module")
def layout() -> Btf:
    try:
        return read_library().layout
    except InjectError as error:
        pytest.skip(str(error))


class Writer:
    """The process's side, which may write anything anywhere."""

    def __init__(self, layout: Btf, threads: int = 2) -> None:
        self.memory = SharedMemory(layout, threads=threads, ring_bytes=RING, record_bytes=(CALL, NAME))
        self.descriptor = self.memory.take_descriptor()
        self.whole = mmap.mmap(self.descriptor, 0)
        bytes_ = np.frombuffer(self.whole, dtype=np.uint8)
        self.bytes = bytes_
        self.header = bytes_[: layout.dtype("inject_header").itemsize].view(layout.dtype("inject_header"))[0]
        thread = layout.dtype("inject_thread")
        self.threads = bytes_[4096 : 4096 + threads * thread.itemsize].view(thread)
        self.ring = bytes_[int(self.header["rings"]) :].reshape(threads, RING)

    def put(self, thread: int, *records: tuple[int, int]) -> None:
        """Records (header word, fill) behind each other, as the library frames them."""
        at = int(self.threads["producer"][thread])
        for word, fill in records:
            size = word & ~(DISCARD | BUSY)
            place = at % RING
            self.ring[thread, place : place + 4].view("<u4")[0] = word
            self.ring[thread, place + 8 : place + 8 + size] = fill
            at += 8 + size
        self.threads["producer"][thread] = at

    def drained(self) -> list[tuple[int, int]]:
        """(length, first byte) of each record that came."""
        return [(run.shape[1], int(row[0])) for run in self.memory.drain() for row in run]


@pytest.fixture
def writer(layout: Btf) -> Iterator[Writer]:
    made = Writer(layout)
    yield made
    made.memory.close()
    os.close(made.descriptor)


def test_records_come_in_the_order_of_each_ring(writer: Writer) -> None:
    writer.put(1, (CALL, 1), (CALL, 2), (NAME, 3), (CALL, 4))
    writer.put(0, (CALL, 5))
    assert writer.drained() == [(CALL, 5), (CALL, 1), (CALL, 2), (NAME, 3), (CALL, 4)]
    assert writer.drained() == []
    assert writer.threads["consumer"].tolist() == [136, 3 * 136 + 264]


def test_what_is_beyond_a_part_waits_for_the_next_time(writer: Writer) -> None:
    writer.put(0, *((CALL, number) for number in range(5)), *((NAME, number) for number in range(5, 9)))
    writer.put(1, *((CALL, number) for number in range(9, 13)))
    parts = []
    while part := [int(row[0]) for run in writer.memory.drain(most_bytes=CALL + 3) for row in run]:
        parts.append(part)
    # At most one more, of either ring.
    assert parts == [[0, 1], [9, 10], [2, 3], [11, 12], [4], [5], [6], [7], [8]]
    assert writer.memory.counters == {"drain_postponed": 9}


def test_a_part_ends_before_the_end_of_a_ring_and_goes_on_there(writer: Writer) -> None:
    whole = RING // 136
    rest = RING - whole * 136
    writer.put(0, *[(CALL, 1)] * whole)
    assert len(writer.drained()) == whole
    writer.put(0, (DISCARD | (rest - 8), 0), *[(NAME, 2)] * 3)
    parts = [len([row for run in writer.memory.drain(most_bytes=8) for row in run]) for _ in range(5)]
    assert parts == [0, 1, 1, 1, 0]
    assert writer.memory.totals() == {"drain_postponed": 4}


def test_the_pages_that_were_read_are_let_go_of(layout: Btf) -> None:
    memory = SharedMemory(layout, threads=4, ring_bytes=4 << 20, record_bytes=(CALL, NAME))
    descriptor = memory.take_descriptor()
    os.pwrite(descriptor, b"\1" * (16 << 20), int(memory._header["rings"][0]))
    before = resident_bytes(os.getpid(), "RssShmem")
    memory._threads["producer"] = 4 << 20
    assert memory.fullest() == 4 << 20
    assert memory._rings.any() and resident_bytes(os.getpid(), "RssShmem") >= before + (16 << 20)
    list(memory.drain())
    assert resident_bytes(os.getpid(), "RssShmem") < before + (1 << 20)
    memory.close()
    os.close(descriptor)


def test_the_end_of_the_ring_is_filled_and_passed_over(writer: Writer) -> None:
    whole = RING // 136
    writer.put(0, *[(CALL, 1)] * whole)
    assert len(writer.drained()) == whole
    rest = RING - whole * 136
    writer.put(0, (DISCARD | (rest - 8), 0), (CALL, 2), (CALL, 3))
    assert writer.drained() == [(CALL, 2), (CALL, 3)]
    assert writer.memory.totals() == {}


def test_what_comes_later_does_not_change_what_was_drained(writer: Writer) -> None:
    writer.put(0, (CALL, 7))
    (run,) = list(writer.memory.drain())
    writer.ring[:] = 255
    assert (run == 7).all()


@pytest.mark.parametrize(
    "words",
    [
        [BUSY | CALL],
        [CALL, BUSY | CALL],
        [0],
        [CALL + 1],
        [DISCARD | CALL],  # not at the end of the ring
        [CALL, 0xFFFF_FFF8],
        [NAME, NAME, DISCARD],
    ],
)
def test_a_ring_that_makes_no_sense_is_given_up(words: list[int], writer: Writer) -> None:
    writer.threads["producer"][0] = 0
    at = 0
    for word in words:
        writer.ring[0, at : at + 4].view("<u4")[0] = word
        at += 8 + (word & 0xFFF)
    writer.threads["producer"][0] = at + 8 & ~7
    writer.drained()
    assert writer.memory.totals() == {"ring_corrupt": 1}
    writer.put(1, (CALL, 1))
    assert writer.drained() == [(CALL, 1)]  # the others go on
    assert writer.memory.totals() == {"ring_corrupt": 1}


@pytest.mark.parametrize("producer", [RING + 8, 4, (1 << 64) - 8, 1 << 63])
def test_a_position_that_cannot_be_gives_the_ring_up(producer: int, writer: Writer) -> None:
    writer.threads["producer"][0] = producer
    assert writer.drained() == []
    assert writer.memory.totals() == {"ring_corrupt": 1}
    assert writer.memory.fullest() == 0


def test_the_readers_own_position_is_not_taken_from_the_memory(writer: Writer) -> None:
    writer.put(0, (CALL, 1))
    writer.threads["consumer"][0] = 1 << 40
    assert writer.drained() == [(CALL, 1)]


def test_the_owners_of_rings_are_reported(writer: Writer) -> None:
    assert writer.memory.owners() == []
    writer.threads["owner"] = [0, 4711]
    assert writer.memory.owners() == [4711]


def test_nobody_can_make_the_memory_smaller(writer: Writer) -> None:
    size = os.fstat(writer.descriptor).st_size
    for other in (0, size - 4096, size + 4096):
        with pytest.raises(PermissionError):
            os.ftruncate(writer.descriptor, other)
    with pytest.raises(PermissionError):
        fcntl.fcntl(writer.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_counters_that_lie_stay_numbers(writer: Writer) -> None:
    writer.threads["counters"][:] = (1 << 64) - 1
    writer.header["counters"][:] = (1 << 64) - 1
    assert 0 < writer.memory.totals()["ring_full"] < 1 << 50


def test_a_process_cannot_take_all_the_time(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "RUNS_PER_DRAIN", 10)
    writer.put(0, *[(CALL, 1), (NAME, 2)] * 10)
    first = writer.drained()
    assert len(first) == 10
    assert first + writer.drained() == [(CALL, 1), (NAME, 2)] * 10


positions = st.one_of(st.integers(0, 4 * RING), st.integers(0, (1 << 64) - 1))
words = st.one_of(
    st.sampled_from([CALL, NAME, 0, DISCARD | (RING - 8), DISCARD | 8, BUSY | CALL]),
    st.integers(0, (1 << 32) - 1),
)


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rounds=st.lists(
        st.tuples(
            st.lists(positions, min_size=2, max_size=2),
            st.lists(st.tuples(st.integers(0, RING // 8 - 1), words), max_size=60),
            st.one_of(st.none(), st.binary(min_size=64, max_size=64)),
        ),
        max_size=4,
    )
)
def test_whatever_is_in_the_memory_is_read_without_harm(
    rounds: list[tuple[list[int], list[tuple[int, int]], bytes | None]], layout: Btf
) -> None:
    writer = Writer(layout)
    try:
        for producers, scattered, noise in rounds:
            if noise is not None:
                writer.bytes[:] = np.resize(np.frombuffer(noise, dtype=np.uint8), len(writer.bytes))
            for place, word in scattered:
                for ring in writer.ring:
                    ring[place * 8 : place * 8 + 4].view("<u4")[0] = word
            writer.threads["producer"] = producers
            total = 0
            for run in writer.memory.drain():
                assert run.shape[1] in (CALL, NAME)
                total += run.size
            assert total <= 2 * RING
            assert all(0 <= count < 1 << 60 for count in writer.memory.totals().values())
            writer.memory.fullest()
    finally:
        writer.memory.close()
