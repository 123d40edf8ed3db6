"""Communicators that own queue pairs, and memory that processes have pinned."""

from __future__ import annotations

from typing import Any

from otelgpu.families.rdma.facts import RegionChanged
from otelgpu.families.rdma.memory_regions import LARGEST_BYTES, Holder, Pinned
from otelgpu.families.rdma.owners import Owner, Owners, OwnerSource
from otelgpu.families.rdma.queue_pairs import QueuePair
from otelgpu.model.communicators import CommunicatorSeen


def seen(address: int, hash_: int, time_ns: int = 5, **fields: Any) -> CommunicatorSeen:
    return CommunicatorSeen(tgid=100, time_ns=time_ns, address=address, hash=hash_, rank=0, ranks=2, **fields)


def pair(made_ns: int = 10) -> QueuePair:
    return QueuePair(100, 1, 17, seen_ns=10, made_ns=made_ns)


def test_the_only_communicator_of_a_process_owns_its_queue_pairs() -> None:
    owners = Owners()
    assert owners.owner(pair()) is None
    owners.learn([seen(1, 0xAB)])
    assert owners.owner(pair(made_ns=0)) == Owner(0xAB, OwnerSource.ONLY)
    assert owners.owner(QueuePair(7, 1, 17, seen_ns=10)) is None


def test_one_hash_on_several_devices_is_one_communicator() -> None:
    owners = Owners()
    owners.learn([seen(1, 0xAB), seen(2, 0xAB)])
    assert owners.owner(pair()) == Owner(0xAB, OwnerSource.ONLY)


def test_of_several_none_is_guessed() -> None:
    owners = Owners()
    owners.learn([seen(1, 0xAB, 2, created=True), seen(2, 0xCD, 30, created=True)])
    assert owners.owner(pair(made_ns=15)) is None


def test_of_several_the_one_that_was_being_made_when_the_queue_pair_was() -> None:
    owners = Owners()
    owners.learn(
        [
            seen(1, 0xAB, 7, created=True, duration_ns=5),
            seen(1, 0xAB, 29, created=True),  # reported again: it is not made again
            seen(2, 0xCD, 50, created=True, duration_ns=20),
        ]
    )
    assert owners.owner(pair(made_ns=6)) == Owner(0xAB, OwnerSource.CREATION)
    assert owners.owner(pair(made_ns=31)) == Owner(0xCD, OwnerSource.CREATION)
    assert owners.owner(pair(made_ns=29)) is None
    assert owners.owner(pair(made_ns=0)) is None


def test_of_two_that_were_being_made_at_once_none_is_guessed() -> None:
    owners = Owners()
    owners.learn([seen(each, each, 52, created=True, duration_ns=50) for each in (1, 2)])
    assert owners.owner(pair(made_ns=6)) is None


def test_a_communicator_that_ended_still_owned_what_it_made() -> None:
    owners = Owners()
    owners.learn([seen(1, 0xAB, created=True), seen(1, 0xAB, 50, ended=True)])
    assert owners.owner(pair()) == Owner(0xAB, OwnerSource.ONLY)
    owners.learn([seen(1, 0xCD, 60, created=True)])
    assert owners.owner(pair()) is None


def test_a_hash_that_is_not_known_yet_owns_nothing() -> None:
    owners = Owners()
    owners.learn([seen(1, 0)])
    assert owners.owner(pair()) is None
    owners.learn([seen(1, 0xAB)])
    assert owners.owner(pair()) == Owner(0xAB, OwnerSource.ONLY)


def test_a_process_that_ended_has_none() -> None:
    owners = Owners()
    owners.learn([seen(1, 0xAB)])
    owners.forget_process(100)
    assert owners.owner(pair()) is None


HOST, DEVICE = Holder(100, "rxe0", dmabuf=False), Holder(100, "rxe0", dmabuf=True)


def region(address: int, size: int = 0, **fields: bool | int) -> RegionChanged:
    known = {"removed": False} | fields
    return RegionChanged(time_ns=1, tgid=100, region=address, device="rxe0", bytes=size, **known)  # type: ignore[arg-type]


def pinned(*facts: RegionChanged) -> Pinned:
    found = Pinned()
    for fact in facts:
        found.take(fact)
    return found


def test_pinned_bytes_are_those_registered_and_not_deregistered() -> None:
    found = pinned(region(1, 4096), region(2, 100), region(3, 50, dmabuf=True), region(1, removed=True))
    assert found.bytes == {HOST: 100, DEVICE: 50}
    assert found.regions == {HOST: 1, DEVICE: 1}
    assert not found.counters


def test_a_region_of_before_the_agent_looked_changes_nothing() -> None:
    found = pinned(region(1, 4096), region(9, removed=True), region(1, removed=True), region(1, removed=True))
    assert found.bytes[HOST] == 0
    assert found.counters == {"regions_of_before": 2}


def test_a_deregistration_that_was_lost_is_made_up_for() -> None:
    found = pinned(region(1, 4096), region(1, 100))
    assert found.bytes == {HOST: 100}
    assert found.counters == {"deregister_unseen": 1}


def test_calls_that_failed_and_regions_of_everything_pin_nothing() -> None:
    found = pinned(region(1, 4096, error=12), region(2, LARGEST_BYTES))
    assert (found.bytes[HOST], found.regions[HOST]) == (0, 1)
    found.take(region(2, removed=True))
    assert (found.bytes[HOST], found.regions[HOST]) == (0, 0)
    assert found.counters == {"region_calls_failed": 1, "regions_of_everything": 1}


def test_a_process_that_ends_frees_all() -> None:
    found = pinned(region(1, 4096), region(2, 10, dmabuf=True))
    assert found.forget_process(100) == [HOST, DEVICE]
    assert not found.bytes
    found.take(region(1, 7))
    assert found.bytes == {HOST: 7}
