"""Turns: who takes long waits for the next one, in order, and nobody waits for who did not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

from otelgpu.processes.reader import accounts
from otelgpu.processes.reader.accounts import Accounts, Owner
from otelgpu.sources import process_events
from otelgpu.sources.process_events import MAPPING, ProcessEvents, Shares

RECORD = np.dtype([("head", [("tgid", "<u4"), ("number", "<u4")]), ("name", "S16")])
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
        rows = [((tgid, number), name) for tgid, number, name in records]
        self.batches.append(Batch(kind, np.array(rows, RECORD)))

    def drain(self) -> list[Batch]:
        drained, self.batches = self.batches, []
        return drained


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
    """Handles events: a tenant's take 0.1 s each."""

    def __init__(self, clock: list[float]) -> None:
        self.process, self._clock = Process(), clock
        self._shares = Shares(Accounts(share=0.1, advance_s=9.0))
        self._shares.owners = cast(Any, Owners())
        self.events = ProcessEvents(cast(Any, self.process), self._shares, lambda name: name == "wanted")

    def _look(self, tgid: int) -> None:
        self._clock[0] += 0.1 if tgid == TENANT else 0.0

    def handle(self) -> list[tuple[int, int]]:
        handled = []
        for _, record in self.events.take():
            tgid, number = int(record["head"]["tgid"]), int(record["head"]["number"])
            self._shares.look(tgid, partial(self._look, tgid))
            handled.append((tgid, number))
        return handled


def test_who_takes_long_waits_for_the_next_turn_and_keeps_its_order(clock: list[float]) -> None:
    looking = Looking(clock)
    looking.process.put("process_exec", *((TENANT, number, b"") for number in range(5)), (VICTIM, 0, b""))
    looking.process.put("process_exit", (TENANT, 5, b""), (VICTIM, 1, b""))
    assert looking.handle() == [(TENANT, 0), (TENANT, 1), (TENANT, 2), (VICTIM, 0), (VICTIM, 1)]
    assert looking.events.are_waiting
    looking.process.put("process_exec", (TENANT, 6, b""), (VICTIM, 2, b""))
    assert looking.handle() == [(TENANT, 3), (TENANT, 4), (TENANT, 5), (VICTIM, 2)]
    assert looking.handle() == [(TENANT, 6)]
    assert not looking.events.are_waiting and looking.handle() == []


def test_what_waits_is_bounded_and_nothing_is_dropped(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_events, "MOST_WAITING", 2)
    looking = Looking(clock)
    looking.process.put("process_exec", *((TENANT, number, b"") for number in range(8)))
    assert looking.handle() == [(TENANT, number) for number in (0, 1, 2, 5, 6, 7)]
    assert looking.handle() == [(TENANT, 3), (TENANT, 4)]


def test_of_mappings_the_wanted_come_first(clock: list[float]) -> None:
    looking = Looking(clock)
    looking.process.put(MAPPING, (VICTIM, 0, b"other"), (VICTIM, 1, b"wanted"), (VICTIM, 2, b"other"))
    assert looking.handle() == [(VICTIM, 1), (VICTIM, 0), (VICTIM, 2)]
