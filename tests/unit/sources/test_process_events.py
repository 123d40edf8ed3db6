"""Turns: who takes long waits for the next one, in order, and nobody waits for who did not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

from otelgpu.kernel.loader import Single
from otelgpu.processes.reader import accounts
from otelgpu.processes.reader.accounts import Accounts, Owner
from otelgpu.sources import process_events
from otelgpu.sources.process_events import MAPPING, ProcessEvents, Shares
from tests.unit.sources.singles import single

HEAD = [("time_ns", "<u8"), ("duration_ns", "<u8"), ("tgid", "<u4"), ("number", "<u4")]
RECORD = np.dtype([("head", HEAD), ("name", "S16"), ("quiet", "u1")])
TENANT, VICTIM = 1, 2


@dataclass
class Batch:
    """Stands for one of the ring."""

    kind: str
    records: np.ndarray


@dataclass
class Process:
    """Stands for the loaded family."""

    batches: list[Batch] = field(default_factory=list)

    def put(self, kind: str, *records: tuple[int, int, bytes]) -> None:
        rows = [((number, 0, tgid, number), name, name == b"quiet") for tgid, number, name in records]
        self.batches.append(Batch(kind, np.array(rows, RECORD)))

    def drain_each(self) -> list[Single]:
        drained, self.batches = self.batches, []
        return [single(batch.kind, record) for batch in drained for record in batch.records]


class Owners:
    """Each process is its own."""

    def of(self, tgid: int) -> Owner:
        return (f"/{tgid}", 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [0.0]
    monkeypatch.setattr(accounts.time, "monotonic", lambda: now[0])
    yield now


class Looking:
    """Handles events: of a tenant's, three are more than a turn."""

    def __init__(self, clock: list[float]) -> None:
        self.process, self._clock = Process(), clock
        self._shares = Shares(Accounts(share=0.1, advance_s=9.0))
        self._shares.owners = cast(Any, Owners())
        self.waits: set[int] = set()
        self.quiet: set[int] = set()
        self.events = ProcessEvents(
            cast(Any, self.process),
            self._shares,
            lambda name: name == "wanted",
            lambda kind, tgid, time_ns: tgid in self.waits,
            lambda tgid: tgid in self.quiet,
        )

    def _look(self, tgid: int) -> None:
        self._clock[0] += 0.4 * process_events.TURN_S if tgid == TENANT else 0.0

    def handle(self) -> list[tuple[int, int]]:
        handled = []
        for event in self.events.take():
            tgid, number = event.tgid, int(event.record["head"]["number"])
            self._shares.look(tgid, partial(self._look, tgid))
            handled.append((tgid, number))
        return handled


def test_who_takes_long_waits_for_the_next_turn_and_keeps_its_order(clock: list[float]) -> None:
    looking = Looking(clock)
    looking.process.put("process_exec", *((TENANT, number, b"") for number in range(5)), (VICTIM, 5, b""))
    looking.process.put("process_exit", (TENANT, 6, b""), (VICTIM, 7, b""))
    assert looking.handle() == [(TENANT, 0), (TENANT, 1), (TENANT, 2), (VICTIM, 5), (VICTIM, 7)]
    assert looking.events.are_waiting
    looking.process.put("process_exec", (TENANT, 8, b""), (VICTIM, 9, b""))
    assert looking.handle() == [(TENANT, 3), (TENANT, 4), (TENANT, 6), (VICTIM, 9)]
    assert looking.handle() == [(TENANT, 8)]
    assert not looking.events.are_waiting and looking.handle() == []


def test_before_the_first_turn_nobody_waits(clock: list[float]) -> None:
    """What runs when observation begins is looked at as a whole: there are no events of others yet."""
    shares, looked = Looking(clock)._shares, []

    def look(number: int) -> None:
        looked.append(number)
        clock[0] += 1.1 * process_events.TURN_S

    assert [shares.look(TENANT, partial(look, number)) for number in range(5)] == [True] * 5
    shares.turn.begin()
    assert [shares.look(TENANT, partial(look, number)) for number in range(5)] == [True] + [False] * 4
    assert looked == [0, 1, 2, 3, 4, 0]


def test_what_waits_is_bounded_and_nothing_is_dropped(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_events, "MOST_WAITING", 2)
    looking = Looking(clock)
    looking.process.put("process_exec", *((TENANT, number, b"") for number in range(8)))
    assert looking.handle() == [(TENANT, number) for number in (0, 1, 2, 5, 6, 7)]
    assert looking.handle() == [(TENANT, 3), (TENANT, 4)]


def test_who_has_mapped_a_wanted_library_comes_first_in_its_own_order(clock: list[float]) -> None:
    looking = Looking(clock)
    looking.process.put(MAPPING, (VICTIM, 3, b"wanted"), (VICTIM, 4, b"other"), (TENANT, 2, b"other"))
    looking.process.put("process_exec", (VICTIM, 1, b""), (TENANT, 0, b""))
    assert looking.handle() == [(VICTIM, 1), (VICTIM, 3), (VICTIM, 4), (TENANT, 0), (TENANT, 2)]


def test_events_of_all_kinds_come_in_the_order_of_their_times(clock: list[float]) -> None:
    looking = Looking(clock)
    looking.process.put("process_fork", (VICTIM, 2, b""))
    looking.process.put("process_exit", (VICTIM, 1, b""), (VICTIM, 3, b""))
    looking.process.put(MAPPING, (VICTIM, 0, b"other"))
    assert looking.handle() == [(VICTIM, number) for number in range(4)]


def test_what_must_wait_does_with_all_that_comes_after_it_of_its_process(clock: list[float]) -> None:
    looking = Looking(clock)
    looking.waits.add(VICTIM)
    looking.process.put("process_fork", (VICTIM, 0, b""), (TENANT, 1, b""))
    assert looking.handle() == [(TENANT, 1)]
    looking.waits.clear()
    looking.process.put("process_exec", (VICTIM, 2, b""))
    assert looking.handle() == [(VICTIM, 0), (VICTIM, 2)]


def test_of_a_process_that_began_and_ended_quietly_there_is_nothing(clock: list[float]) -> None:
    looking = Looking(clock)
    looking.process.put("process_fork", (5, 1, b""), (6, 2, b""), (7, 3, b""))
    looking.process.put("process_exec", (4, 4, b""), (5, 5, b""))
    looking.process.put("process_exit", (4, 6, b"quiet"), (5, 7, b"quiet"), (6, 8, b""))
    assert looking.handle() == [(6, 2), (7, 3), (4, 4), (4, 6), (6, 8)], (
        "4 began before, 6 has records, 7 lives"
    )


def test_a_number_that_two_processes_had_is_not_passed_over(clock: list[float]) -> None:
    looking = Looking(clock)
    looking.process.put("process_fork", (5, 1, b""), (5, 3, b""))
    looking.process.put("process_exit", (5, 2, b"quiet"), (5, 4, b"quiet"))
    assert looking.handle() == [(5, 1), (5, 2), (5, 3), (5, 4)]


def test_a_number_that_is_given_again_at_once_is_not_passed_over(clock: list[float]) -> None:
    looking = Looking(clock)
    looking.process.put("process_fork", (5, 1, b""))
    looking.process.put("process_exit", (5, 2, b"quiet"))
    looking.process.put("process_fork", (5, 3, b""))
    assert looking.handle() == [(5, 1), (5, 2), (5, 3)]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """CLOCK_MONOTONIC, ns."""
    time_ns = [10]
    monkeypatch.setattr(process_events.clock, "monotonic_ns", lambda: time_ns[0])
    return time_ns


def test_of_a_quiet_process_that_began_just_now_there_is_nothing_and_less_when_it_ends(
    clock: list[float], now: list[int]
) -> None:
    looking = Looking(clock)
    looking.quiet.add(5)
    looking.process.put("process_fork", (5, 1, b""), (6, 2, b""))
    looking.process.put("process_exec", (5, 3, b""))
    assert looking.handle() == [(6, 2)]
    assert not looking.events.are_waiting
    looking.quiet.clear()
    looking.process.put("process_exit", (5, 4, b"quiet"))
    assert looking.handle() == []
    assert looking.handle() == []


@pytest.mark.parametrize("why", ["it does something", "it lives on", "it ends, and was not quiet"])
def test_of_a_quiet_process_all_is_handled_in_order_as_soon_as(
    clock: list[float], now: list[int], why: str
) -> None:
    looking = Looking(clock)
    looking.quiet.add(5)
    looking.process.put("process_fork", (5, 1, b""))
    looking.process.put("process_exec", (5, 3, b""))
    assert looking.handle() == []
    if why == "it lives on":
        now[0] += process_events.YOUNG_NS
    else:
        looking.quiet.clear()
    last = "process_exit" if why.endswith("quiet") else MAPPING
    looking.process.put(last, (5, 4, b""))
    assert looking.handle() == [(5, 1), (5, 3), (5, 4)]


def test_only_so_many_are_left_alone(
    clock: list[float], now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_events, "MOST_YOUNG", 2)
    looking = Looking(clock)
    looking.quiet |= {5, 6, 7, 8}
    looking.process.put("process_fork", *((tgid, tgid, b"") for tgid in (5, 6, 7, 8)))
    assert looking.handle() == [(7, 7), (8, 8)]


def test_of_a_quiet_process_that_ends_while_it_is_looked_at_there_is_nothing(
    clock: list[float], now: list[int]
) -> None:
    looking = Looking(clock)

    def ends(tgid: int) -> bool:
        looking.process.put("process_exit", (tgid, 2, b"quiet"))
        return False

    looking.events._is_quiet = ends
    looking.process.put("process_fork", (5, 1, b""))
    assert looking.handle() == []
    assert looking.handle() == []
