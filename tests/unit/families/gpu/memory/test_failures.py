"""Allocations that fail for want of memory: what is said of each, and of which nothing is."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

from otelgpu.engine.memory_names import memory_names
from otelgpu.engine.services import AllocatorLevel
from otelgpu.families.gpu.memory import failures as memory_failures
from otelgpu.families.gpu.memory.device_facts import DeviceFacts, DeviceMemory
from otelgpu.families.gpu.memory.failures import TOP, WATCH_NS, WATCHED, Failure, Failures
from otelgpu.families.gpu.memory.ledger import MemoryLedger
from otelgpu.families.gpu.memory.post_mortem import (
    ALLOCATOR_CACHE,
    OTHER_PROCESSES,
    OWN_MEMORY,
    REQUEST_TOO_LARGE,
    UNKNOWN,
    Scene,
    cause_of,
    post_mortem,
)
from otelgpu.model.devices import DeviceReadings, ProcessDevices, ProcessReading, Quantity
from otelgpu.model.memory_failures import CAUSE, ENDED, HELD, HOLDERS, OTHERS, RECOVERED, UNMET
from otelgpu.model.operations import Memory, Operations, concatenate
from otelgpu.model.resource import resource
from tests.unit.families.gpu.memory.memory_calls import Decoder, allocation, free

LATER = WATCH_NS * 2
GIB = 1 << 30


def refused(start: int, size: int = 100, **columns: Any) -> Operations:
    return allocation(start, at=0, size=size, **({"status": 2} | columns))


def failures_of(*rows: Operations, ends: int | None = None, now: int = LATER) -> list[Failure]:
    found = Failures()
    ledger = MemoryLedger([Decoder()], failures=found)
    ledger.add(concatenate(rows))
    if ends is not None:
        ledger.end_process(1, ends)
    ledger.settle(now)
    return found.take(now)


def test_the_worked_example_is_true() -> None:
    result = doctest.testmod(memory_failures)
    assert (result.attempted > 3, result.failed) == (True, 0)


def test_what_was_held_is_that_of_the_moment_and_the_device() -> None:
    (failure,) = failures_of(
        allocation(1, at=1, size=500, caller=7),
        allocation(2, at=2, size=30, caller=8),
        allocation(3, at=3, size=9000, device=1),
        allocation(4, at=4, size=70_000, memory=Memory.HOST),
        refused(5, size=2000),
        allocation(6, at=5, size=11),
    )
    assert (failure.held, [each.size for each in failure.top]) == (530, [500, 30])
    assert (failure.outcome, failure.attempts, failure.request.size) == (UNMET, 1, 2000)


def test_a_retry_that_is_granted_after_frees_recovers() -> None:
    (failure,) = failures_of(
        allocation(1, at=1, size=500),
        refused(5, size=400),
        free(6, at=1),
        refused(8, size=400),
        allocation(9, at=2, size=400),
    )
    assert (failure.outcome, failure.attempts, failure.after_ns, failure.freed) == (RECOVERED, 2, 4, 500)


@pytest.mark.parametrize("other", [{"tid": 2}, {"device": 1}, {"size": 399}])
def test_another_thread_device_or_a_smaller_size_is_no_recovery(other: dict[str, int]) -> None:
    (failure,) = failures_of(refused(5, size=400), allocation(9, **({"at": 2, "size": 400} | other)))
    assert failure.outcome == UNMET


def test_a_process_that_ends_after_it_has_ended() -> None:
    (failure,) = failures_of(allocation(1, size=70), refused(5), ends=50)
    assert (failure.outcome, failure.held) == (ENDED, 70)


@pytest.mark.parametrize("columns", [{"status": 1}, {"returned": 0}, {"memory": Memory.HOST}])
def test_other_failures_are_none(columns: dict[str, int]) -> None:
    assert failures_of(refused(5, **columns)) == []


def test_nothing_is_said_before_it_is_known_how_it_went_on() -> None:
    found = Failures()
    ledger = MemoryLedger([Decoder()], failures=found)
    ledger.add(refused(5))
    ledger.settle(10)
    assert (found.take(10), len(found)) == ([], 1)
    assert [each.outcome for each in found.take(5 + WATCH_NS)] == [UNMET]
    assert not found.watches(1)


def test_what_is_watched_is_bounded() -> None:
    found = Failures()
    ledger = MemoryLedger([Decoder()], failures=found)
    ledger.add(concatenate([refused(5 + each, size=100 + each) for each in range(WATCHED + 3)]))
    ledger.add(concatenate([allocation(1, at=10 + each, caller=each) for each in range(TOP + 2)]))
    ledger.settle(1000)
    assert found.unwatched == 3
    assert [len(each.top) for each in found.take(LATER)] == [TOP] * WATCHED


# -- causes ------------------------------------------------------------------------------------------


def device(total: int | None, own: int | None = None, *others: int) -> DeviceMemory:
    used = None if total is None else (own or 0) + sum(others)
    return DeviceMemory(
        uuid="GPU-1",
        age_ns=5,
        total=total,
        used=used,
        own=own,
        others=tuple((90 + number, size) for number, size in enumerate(others)),
    )


def failure(size: int, held: int = 0) -> Failure:
    rows = [allocation(1, at=1, size=held, caller=3)] if held else []
    (found,) = failures_of(*rows, refused(5, size=size))
    return found


@pytest.mark.parametrize(
    ("size", "held", "there", "level", "cause"),
    [
        (200, 10, device(100, 10), None, REQUEST_TOO_LARGE),
        (50, 60, device(100, 65), None, OWN_MEMORY),
        (50, 60, device(100, None), None, OWN_MEMORY),
        (50, 20, device(100, 25, 40), None, OTHER_PROCESSES),
        (50, 20, device(100, 25), None, UNKNOWN),
        (50, 20, None, None, UNKNOWN),
        (50, 20, device(None, 25), None, UNKNOWN),
        (50, 80, device(100, 85), AllocatorLevel(80, 20), ALLOCATOR_CACHE),
        (50, 80, device(100, 85), AllocatorLevel(80, 40), OWN_MEMORY),
        (50, 80, None, AllocatorLevel(80, 20), ALLOCATOR_CACHE),
        (50, 80, None, AllocatorLevel(80, 40), UNKNOWN),
    ],
)
def test_a_cause_is_named_where_numbers_say_so(
    size: int, held: int, there: DeviceMemory | None, level: AllocatorLevel | None, cause: str
) -> None:
    assert cause_of(failure(size, held), there, level) == cause


def scene(there: DeviceMemory | None = None, unreported: int = 0) -> Scene:
    return Scene(
        names=memory_names("cuda"),
        owner=resource({"process.pid": 1}),
        offset_ns=1000,
        device=there,
        level=None,
        place_of=lambda holder: f"function{holder.caller}",
        unreported=unreported,
    )


def test_the_event_has_the_answer() -> None:
    event = post_mortem(failure(2 * GIB, 15 * GIB), scene(device(16 * GIB, 15 * GIB, GIB // 2), 4))
    assert event.warns and event.time_unix_ns == 1005
    assert event.attributes[CAUSE] == OWN_MEMORY
    assert event.attributes[HELD] == 15 * GIB
    assert event.attributes[HOLDERS] == ("15.0 GiB in 1 by function3",)
    assert event.attributes[OTHERS] == ("PID 90: 512.0 MiB",)
    for said in (
        "asked for 2.0 GiB of device 0 in function0",
        "held 15.0 GiB that was seen to be allocated: 15.0 GiB in 1 by function3",
        "512.0 MiB of 16.0 GiB were free",
        "others had PID 90 512.0 MiB",
        "4 more failed before it",
        "Next: free what holds most",
    ):
        assert said in event.text


def test_one_that_recovered_is_no_warning_and_says_what_was_freed() -> None:
    (found,) = failures_of(
        allocation(1, at=1, size=GIB),
        refused(5, size=GIB),
        free(6, at=1),
        allocation(3_000_005, at=2, size=GIB),
    )
    event = post_mortem(found, scene())
    assert not event.warns
    assert event.text.startswith("An allocation failed and was met later")
    assert "got as much 3.00 ms later, after 1.0 GiB was freed" in event.text and "Next" not in event.text


# -- the device --------------------------------------------------------------------------------------


def readings(uuid: str, used: int, *processes: tuple[int, int | None]) -> DeviceReadings:
    return DeviceReadings(
        time_ns=100,
        uuid=uuid,
        values={Quantity.MEMORY_TOTAL_BYTES: 1000, Quantity.MEMORY_USED_BYTES: used},
        processes=tuple(
            ProcessReading(tgid=tgid, device=uuid, memory_bytes=size) for tgid, size in processes
        ),
    )


def test_a_device_is_that_of_the_process_s_own_number() -> None:
    facts = DeviceFacts()
    facts.take(readings("GPU-a", 700, (1, 200), (2, 400), (3, 50), (4, None)))
    facts.take(readings("GPU-b", 10))
    facts.take(ProcessDevices(tgid=1, time_ns=1, uuids=("GPU-b", "GPU-a")))
    found = facts.memory(1, 1, 350)
    assert found is not None
    assert (found.uuid, found.age_ns, found.free, found.own) == ("GPU-a", 250, 300, 200)
    assert found.others == ((2, 400), (3, 50))
    assert facts.memory(1, 5, 350) is None and facts.memory(2, 0, 350) is None


def test_with_one_device_there_is_no_doubt() -> None:
    facts = DeviceFacts()
    assert facts.memory(1, 0, 1) is None
    facts.take(readings("GPU-a", 700))
    found = facts.memory(1, -1, 350)
    assert found is not None and found.own is None and found.total == 1000
