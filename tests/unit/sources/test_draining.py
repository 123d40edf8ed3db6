"""A writer that does not run: until when all is known to have been collected."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from otelgpu.model.inputs import Batch
from otelgpu.sources import draining
from otelgpu.sources.draining import HELD_UP_NS, Draining

MS = 1_000_000


class Family:
    """Has a record at each drain, but while it is held up. ``drains``: how often it is, from now on."""

    def __init__(self, name: str) -> None:
        self.name, self.drains, self.ring = name, 0, SimpleNamespace(held_up=False)

    def drain(self) -> Iterator[Any]:
        self.ring.held_up = self.drains > 0
        self.drains -= 1
        if not self.ring.held_up:
            yield self.name


def make(*families: Family) -> Draining:
    made = Draining(itertools.count(0, MS).__next__)
    for family in families:
        made.add(family, first=family.name == "calls")  # type: ignore[arg-type]
    return made


def test_calls_come_first() -> None:
    made = make(Family("http"), Family("calls"), Family("sched"))
    assert list(made.drained()) == ["calls", "http", "sched"]
    assert [family.name for family in made] == ["calls", "http", "sched"]  # type: ignore[attr-defined]


def test_batches_of_a_kind_are_one_where_their_order_says_nothing() -> None:
    dtype = np.dtype([("number", "<u4")])

    def batch(kind: str, *numbers: int) -> Batch:
        return Batch(family="profile", kind=kind, records=np.array([(each,) for each in numbers], dtype))

    runs = [batch("sample", 1, 2), batch("stack", 3), batch("sample", 4), batch("stack", 5, 6)]
    loaded = SimpleNamespace(drain=lambda: iter(runs), ring=SimpleNamespace(held_up=False))
    made, apart = make(), make()
    made.add(loaded, first=False, joined=True)  # type: ignore[arg-type]
    apart.add(loaded, first=False)  # type: ignore[arg-type]
    found = [(each.kind, each.records["number"].tolist()) for each in made.drained()]
    assert found == [("sample", [1, 2, 4]), ("stack", [3, 5, 6])]
    assert list(apart.drained()) == runs


def test_the_time_stays_while_one_is_held_up_but_not_for_long() -> None:
    calls, http = Family("calls"), Family("http")
    made = make(calls, http)
    list(made.drained())
    assert made.complete_ns(1000 * MS) == 1000 * MS
    calls.drains = 3
    times = []
    for now_ns in (1100 * MS, 1200 * MS, 1300 * MS, 1400 * MS):
        assert list(made.drained())[-1] == "http"
        times.append(made.complete_ns(now_ns))
    assert times == [1000 * MS, 1000 * MS, 1300 * MS - HELD_UP_NS, 1400 * MS]


def test_the_last_collection_waits_for_what_is_written_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining.time, "sleep", lambda _: None)
    calls, http = Family("calls"), Family("http")
    made = make(calls, http)
    calls.drains, made.is_last = 5, True
    assert list(made.drained()) == ["http", "calls"]
    calls.drains = 10**9  # its writer never runs again
    assert list(made.drained()) == ["http"]
