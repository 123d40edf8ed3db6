"""Processes whose events were lost are looked at once, at once, and ever more seldom while they go on."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from otelgpu.kernel.loader import read_image
from otelgpu.processes.missed import ALL_PAUSE_NS, FIRST_PAUSE_NS, MOST_AT_ONCE, MissedEvents

KINDS = {"exec": 1 << 1, "exit": 1 << 3, "mapping": 1 << 4}


class Kernel:
    """The family's map and counter, as user space sees them."""

    def __init__(self) -> None:
        self.image = read_image("process")
        self.missed: dict[bytes, bytes] = {}
        self.full = 0

    def map(self, name: str) -> Any:
        assert name == "missed_processes"
        return self

    def counter(self, number: int) -> int:
        assert number == self.image.btf.enumerators("process_counter")["COUNTER_MISSED_PROCESSES_FULL"]
        return self.full

    def list_keys(self) -> list[bytes]:
        return list(self.missed)

    def get(self, key: bytes) -> bytes | None:
        return self.missed.get(key)

    def delete(self, key: bytes) -> None:
        del self.missed[key]

    def miss(self, tgid: int, kinds: int = KINDS["mapping"]) -> None:
        self.missed[struct.pack("<I", tgid)] = bytes([kinds])


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def missed(kernel: Kernel) -> MissedEvents:
    return MissedEvents(kernel)  # type: ignore[arg-type]


def test_each_is_taken_once_and_with_what_it_missed(kernel: Kernel, missed: MissedEvents) -> None:
    kernel.miss(7)
    kernel.miss(8, KINDS["exec"] | KINDS["mapping"])
    assert sorted(missed.take(1)) == [(7, False), (8, True)]
    assert missed.take(2) == [] and kernel.missed == {}


def test_who_goes_on_is_looked_at_ever_more_seldom(kernel: Kernel, missed: MissedEvents) -> None:
    seconds = []
    for tenth in range(600):
        kernel.miss(7)
        if missed.take(tenth * FIRST_PAUSE_NS // 10):
            seconds.append(tenth / 10)
    assert seconds == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0]


def test_who_was_quiet_begins_anew(kernel: Kernel, missed: MissedEvents) -> None:
    kernel.miss(7)
    assert missed.take(0)
    kernel.miss(7)
    assert missed.take(FIRST_PAUSE_NS)
    assert not missed.take(20 * FIRST_PAUSE_NS)
    for number in (20, 21):
        kernel.miss(7)
        assert missed.take(number * FIRST_PAUSE_NS)


def test_many_at_once_take_turns(kernel: Kernel, missed: MissedEvents) -> None:
    for tgid in range(2 * MOST_AT_ONCE + 1):
        kernel.miss(tgid)
    found = [len(missed.take(time_ns)) for time_ns in range(4)]
    assert found == [MOST_AT_ONCE, MOST_AT_ONCE, 1, 0]


def test_all_are_looked_at_when_some_are_not_known(kernel: Kernel, missed: MissedEvents) -> None:
    assert not missed.take_all(0)
    kernel.full = 1
    assert missed.take_all(1)
    kernel.full = 2
    assert not missed.take_all(2), "not all the time"
    assert missed.take_all(1 + ALL_PAUSE_NS)
    assert not missed.take_all(1 + 2 * ALL_PAUSE_NS)
