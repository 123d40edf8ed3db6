"""The ring's consumer against a ring in memory with the kernel's layout (kernel/bpf/ringbuf.c)."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.kernel import ring as ring_module
from otelgpu.kernel.ring import Ring, run_length

PAGE = mmap.PAGESIZE
BUSY, DISCARD = 1 << 31, 1 << 30
LONGEST = 2048


class Producer:
    """The kernel's side. The data is mapped twice there; here each byte is written to both places."""

    def __init__(self, size: int = PAGE, start: int = 0) -> None:
        self.size = size
        self.fd = os.memfd_create("ring")
        os.ftruncate(self.fd, 2 * PAGE + 2 * size)
        self._memory = mmap.mmap(self.fd, 2 * PAGE + 2 * size)
        self.position = start
        struct.pack_into("<Q", self._memory, 0, start)
        struct.pack_into("<Q", self._memory, PAGE, start)

    def submit(self, data: bytes, flags: int = 0) -> int | None:
        """Reserve and commit; the position of the record's header, or None when the ring is full."""
        taken = (len(data) + 8 + 7) & ~7
        if self.position + taken - self.consumed() > self.size:
            return None
        at = self.position
        # What was there before is stale, not zero, up to the rounded length.
        self._store(at, struct.pack("<II", len(data) | flags, 0) + data.ljust(taken - 8, b"\xee"))
        self.position += taken
        struct.pack_into("<Q", self._memory, PAGE, self.position)
        return at

    def commit(self, at: int, size: int, flags: int = 0) -> None:
        """Clear BUSY of a record."""
        self._store(at, struct.pack("<I", size | flags))

    def consumed(self) -> int:
        return struct.unpack_from("<Q", self._memory, 0)[0]

    def _store(self, at: int, data: bytes) -> None:
        for i, byte in enumerate(data, start=at % self.size):
            place = 2 * PAGE + i % self.size
            self._memory[place] = self._memory[place + self.size] = byte

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)


@pytest.fixture
def producer() -> Iterator[Producer]:
    made = Producer()
    yield made
    made.close()


def drained(ring: Ring) -> list[bytes]:
    return [row.tobytes() for run in ring.drain() for row in run]


def test_the_most_that_waited_is_reported_once(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    for _ in range(3):
        producer.submit(b"x" * 24)
    drained(ring)
    producer.submit(b"x" * 24)
    assert (ring.take_fill().high_water, ring.take_fill().high_water) == (3 * 32, 32)
    drained(ring)
    assert ring.take_fill().limit == producer.size
    assert ring.take_fill().high_water == 0


def test_an_empty_ring_gives_nothing(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    assert (drained(ring), ring.pending_bytes()) == ([], 0)


def test_records_of_one_length_come_as_one_run(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    for i in range(20):
        producer.submit(bytes([i]) * 24)
    runs = list(ring.drain())
    assert [run.shape for run in runs] == [(20, 24)]
    assert runs[0][:, 0].tolist() == list(range(20))


def test_a_run_ends_where_the_length_changes(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    for size in (16, 16, 40, 16, 40, 40, 40):
        producer.submit(bytes(size))
    assert [run.shape for run in ring.drain()] == [(2, 16), (1, 40), (1, 16), (3, 40)]


def test_lengths_that_round_to_the_same_stride_are_reported_apart(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    for size in (17, 24, 24, 18):
        producer.submit(b"x" * size)
    assert [run.shape for run in ring.drain()] == [(1, 17), (2, 24), (1, 18)]


def test_each_record_is_read_by_itself_and_what_comes_meanwhile_too(producer: Producer) -> None:
    """The kernel wakes only a reader that had read all: what it left would wait for the next to come."""
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    for data, flags in ((b"a" * 17, 0), (b"b" * 24, DISCARD), (b"c" * 24, 0)):
        producer.submit(data, flags)
    reading = ring.read_each()
    assert next(reading) == b"a" * 17
    producer.submit(b"d" * 8)
    assert list(reading) == [b"c" * 24, b"d" * 8]
    assert (ring.pending_bytes(), producer.consumed()) == (0, producer.position)
    assert ring.take_fill().high_water == 3 * 32


def test_reading_each_ends_at_one_that_is_still_written(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    producer.submit(b"a" * 24)
    written = producer.submit(b"b" * 24, BUSY)
    producer.submit(b"c" * 24)
    assert list(ring.read_each()) == [b"a" * 24]
    assert ring.held_up
    assert written is not None
    producer.commit(written, 24)
    assert list(ring.read_each()) == [b"b" * 24, b"c" * 24]
    assert not ring.held_up


def test_each_record_of_a_full_ring_is_read_in_its_place_across_the_end(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    for number in range(500):
        data = number.to_bytes(2, "little") * 60
        assert producer.submit(data) is not None
        assert list(ring.read_each()) == [data]


def test_the_space_is_given_back(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    producer.submit(bytes(24))
    assert ring.pending_bytes() == 32
    drained(ring)
    assert (producer.consumed(), ring.pending_bytes()) == (32, 0)


def test_a_drained_run_is_not_changed_by_later_records(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    producer.submit(b"a" * 24)
    (run,) = ring.drain()
    while producer.submit(b"b" * 24) is not None:
        drained(ring)
        if producer.position > 2 * producer.size:
            break
    assert run[0].tobytes() == b"a" * 24


def test_a_record_that_crosses_the_end_is_whole() -> None:
    producer = Producer(start=PAGE - 40)
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    records = [bytes([i]) * 24 for i in range(5)]
    for data in records:
        producer.submit(data)
    assert drained(ring) == records


@pytest.mark.parametrize("back", [8, 16, 40, LONGEST])
def test_the_longest_record_crosses_the_end_with_no_more_mapped_than_it_needs(back: int) -> None:
    size = 16 * PAGE
    producer = Producer(size, start=size - back)
    records = [bytes([i]) * LONGEST for i in range(5)]
    for data in records:
        producer.submit(data)
    os.ftruncate(producer.fd, 2 * PAGE + size + PAGE)  # mapping more than a file has is an error
    ring = Ring(producer.fd, size, longest=LONGEST)
    assert drained(ring) == records


@pytest.mark.parametrize("start", [0, 8, PAGE - 8, 2**32 - 16, 2**40 + PAGE - 24])
def test_a_full_ring_is_drained_from_any_position(start: int) -> None:
    producer = Producer(start=start)
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    count = 0
    while producer.submit(struct.pack("<Q", count)) is not None:
        count += 1
    assert count == producer.size // 16
    assert [struct.unpack("<Q", data)[0] for data in drained(ring)] == list(range(count))


def test_a_record_that_is_still_written_ends_the_drain(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    producer.submit(b"a" * 24)
    at = producer.submit(b"b" * 24, BUSY)
    producer.submit(b"c" * 24)
    assert drained(ring) == [b"a" * 24]
    assert drained(ring) == []
    producer.commit(at, 24)
    assert drained(ring) == [b"b" * 24, b"c" * 24]


def test_a_discarded_record_is_passed_over(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    for i, flags in enumerate((0, DISCARD, DISCARD, 0)):
        producer.submit(bytes([i]) * 24, flags)
    assert drained(ring) == [bytes([0]) * 24, bytes([3]) * 24]
    assert ring.pending_bytes() == 0


def test_it_says_whether_a_record_that_is_not_written_ended_it(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    producer.submit(b"a" * 24)
    assert (len(drained(ring)), ring.held_up) == (1, False)
    at = producer.submit(b"b" * 24, BUSY)
    producer.submit(b"c" * 24)
    assert (drained(ring), ring.held_up) == ([], True)
    producer.commit(at, 24)
    assert (len(drained(ring)), ring.held_up) == (2, False)


def test_a_record_that_is_being_written_just_now_holds_nothing_up(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    written = [producer.submit(bytes([number]) * 24, BUSY) for number in range(3)]

    def write_one(_: float) -> None:
        at = written.pop(0)
        assert at is not None
        producer.commit(at, 24)

    monkeypatch.setattr(ring_module.time, "sleep", write_one)
    assert (len(drained(ring)), ring.held_up) == (3, False)


def test_a_record_that_is_busy_then_discarded(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    at = producer.submit(bytes(24), BUSY)
    assert drained(ring) == []
    producer.commit(at, 24, DISCARD)
    assert (drained(ring), ring.pending_bytes()) == ([], 0)


def test_records_without_a_payload(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    for data in (b"", b"", b"x" * 8):
        producer.submit(data)
    assert [run.shape for run in ring.drain()] == [(2, 0), (1, 8)]


def test_what_comes_during_a_drain_waits_for_the_next(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    producer.submit(b"a" * 8)
    producer.submit(b"b" * 16)
    drain = ring.drain()
    first = next(drain)
    producer.submit(b"c" * 16)
    assert [first.tobytes(), *(run.tobytes() for run in drain)] == [b"a" * 8, b"b" * 16]
    assert drained(ring) == [b"c" * 16]


def test_a_drain_that_is_given_up_loses_nothing(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    producer.submit(b"a" * 8)
    producer.submit(b"b" * 16)
    for run in ring.drain():
        assert run.tobytes() == b"a" * 8
        break
    assert drained(ring) == [b"b" * 16]


def test_a_long_run_comes_in_pieces_each_of_which_frees_its_space(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_module, "_PIECE_BYTES", 50)
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    for i in range(5):
        producer.submit(bytes([i]) * 24)
    reported = [(run[:, 0].tolist(), ring.pending_bytes()) for run in ring.drain()]
    assert reported == [([0, 1], 96), ([2, 3], 32), ([4], 0)]


def test_a_closed_ring_lets_go_of_its_memory(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    producer.submit(b"a" * 8)
    runs = list(ring.drain())
    ring.close()
    assert runs[0].tobytes() == b"a" * 8


def test_a_closed_ring_holds_nothing_and_may_be_closed_again(producer: Producer) -> None:
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    producer.submit(b"a" * 8)
    ring.close()
    ring.close()
    assert (drained(ring), ring.pending_bytes(), ring.take_fill().high_water) == ([], 0, 0)


def test_a_ring_that_is_closed_in_the_middle_of_a_drain_ends_it(producer: Producer) -> None:
    """As it is when an error cuts the drain short: that is reported, and not what the drain still holds."""
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    for size in (8, 16, 8):
        producer.submit(b"a" * size)
    drain = ring.drain()
    assert next(drain).tobytes() == b"a" * 8
    ring.close()
    assert list(drain) == []


sizes = st.sampled_from([0, 8, 16, 16, 16, 24, 128, 360, 17])


@given(
    st.integers(0, 2**33).map(lambda start: start & ~7),
    st.lists(st.lists(st.tuples(sizes, st.sampled_from([0, 0, 0, DISCARD])), max_size=30), max_size=6),
)
def test_whatever_was_submitted_comes_out_once_and_in_order(
    start: int, rounds: list[list[tuple[int, int]]]
) -> None:
    producer = Producer(start=start)
    ring = Ring(producer.fd, producer.size, longest=LONGEST)
    try:
        number = 0
        for batch in rounds:
            expected = []
            for size, flags in batch:
                data = struct.pack("<I", number).ljust(size, b"-")[:size]
                number += 1
                if producer.submit(data, flags) is not None and not flags:
                    expected.append(data)
            assert drained(ring) == expected
            assert producer.consumed() == producer.position
    finally:
        ring.close()
        producer.close()


@given(st.lists(st.sampled_from([16, 16, 16, 16, 16, 24, 16 | DISCARD, 16 | BUSY]), min_size=1, max_size=300))
def test_the_length_of_a_run_is_what_counting_gives(lengths: list[int]) -> None:
    window = b"".join(
        struct.pack("<II", length, 0).ljust(8 + (length & 0xFFFF), b"\x10") for length in lengths
    )
    naive = next((i for i, length in enumerate(lengths) if length != lengths[0]), len(lengths))
    stride = 8 + (lengths[0] & 0xFFFF)
    assert run_length(np.frombuffer(window, np.uint8), lengths[0], stride) == naive
