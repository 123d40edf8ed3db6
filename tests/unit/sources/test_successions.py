"""Records and ends of processes that had a number one after the other: each one's come before the next one's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.kernel import clock
from otelgpu.kernel.loader import Single
from otelgpu.model.inputs import Batch, ProcessGone
from otelgpu.processes.described import DescribedProcesses
from otelgpu.processes.process_context import ProcessContexts
from otelgpu.processes.resources import ResourceDetector
from otelgpu.sources.process_events import EXEC, EXIT, FORK, ProcessEvents, Shares
from otelgpu.sources.successions import Successions
from tests.unit.sources.singles import single

TIMES = [("time_ns", "<u8"), ("duration_ns", "<u8"), ("tgid", "<u4")]
HEAD = np.dtype([("head", TIMES), ("life", "<u4"), ("quiet", "u1")])
LONG_NS = 10**9


class Known:
    """Stands for what is known of processes. ``now``: when those began that have the numbers now."""

    def __init__(self) -> None:
        self.began: dict[int, int] = {}
        self.now: dict[int, int] = {}

    def began_ns(self, tgid: int) -> int:
        return self.began.get(tgid, 0)

    def began_before(self, tgid: int, time_ns: int) -> bool:
        return tgid in self.began and self.began[tgid] < time_ns - LONG_NS // 10

    def starts_ns(self, tgid: int) -> int:
        return self.now.get(tgid, 0)

    def is_another_now(self, tgid: int) -> bool:
        return self.began_before(tgid, self.starts_ns(tgid))


@pytest.fixture
def known() -> Known:
    return Known()


@pytest.fixture
def successions(known: Known) -> Successions:
    return Successions(cast(Any, known))


def batch(*rows: tuple[int, int], life: int = 0) -> Batch:
    """``rows``: (process, time)."""
    records = np.array([((time_ns, 0, tgid), life, 0) for tgid, time_ns in rows], HEAD)
    return Batch(family="any", kind="any", records=records)


def times(batches: Iterator[Batch]) -> list[int]:
    return [time_ns for each in batches for time_ns in each.heads["time_ns"].tolist()]


def test_an_end_is_said_once_and_not_before_its_time(successions: Successions) -> None:
    for _ in range(2):
        successions.end(7, 20)
    assert successions.take(19) == []
    assert successions.take(20) == [ProcessGone(tgid=7, time_ns=20)]
    assert successions.take(21) == []


def test_records_of_the_next_owner_are_with_the_next_collection(successions: Successions) -> None:
    successions.end(7, 20)
    assert not successions.must_wait("process_mapping", 7, 19)  # the former's
    assert not successions.must_wait(EXIT, 7, 21)  # said again
    assert not successions.are_waiting
    assert successions.must_wait(FORK, 7, 30)
    assert successions.must_wait(EXEC, 7, 31)
    assert successions.are_waiting
    rows = batch((7, 10), (8, 40), (7, 30), (7, 29), (7, 35))
    assert times(successions.collected([rows, batch((7, 36))])) == [10, 40, 29]
    assert successions.take(40) and not successions.are_waiting
    assert times(successions.collected([batch((7, 50))])) == [30, 35, 36, 50]


def test_without_a_fork_what_comes_after_the_end_is_the_next_owners(successions: Successions) -> None:
    successions.end(7, 20)
    assert successions.must_wait(EXEC, 7, 30)
    assert times(successions.collected([batch((7, 20), (7, 21))])) == [20]


def test_an_end_that_was_not_reported_shows_when_the_number_is_anothers(
    successions: Successions, known: Known
) -> None:
    known.began[7] = 5
    assert not successions.must_wait(FORK, 7, 6)  # its own
    assert successions.must_wait(FORK, 7, 5 + LONG_NS)
    assert successions.take(5 + LONG_NS) == [ProcessGone(tgid=7, time_ns=4 + LONG_NS)]
    known.began[8] = known.now[8] = 5
    assert not successions.must_wait(EXEC, 8, 2 * LONG_NS)
    known.now[8] = LONG_NS
    assert successions.must_wait(EXEC, 8, 2 * LONG_NS)


def test_an_end_that_is_older_than_the_process_is_that_of_the_one_before(
    successions: Successions, known: Known
) -> None:
    known.began[7] = 20
    successions.end(7, 19)
    assert successions.take(100) == []


def test_of_lost_events_the_next_owner_is_looked_at_after_the_end(
    successions: Successions, known: Known
) -> None:
    own = os.getpid()
    known.began[own] = known.now[own] = 5
    assert not successions.is_over(own, 9)
    known.now[own] = LONG_NS
    assert successions.is_over(own, 2 * LONG_NS)
    assert times(successions.collected([batch((own, 7), (own, LONG_NS))])) == [7]
    assert [each.tgid for each in successions.take(2 * LONG_NS)] == successions.take_unseen() == [own]
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert successions.is_over(ended.pid, 9)
    assert successions.take_unseen() == []


def test_thousands_of_numbers_that_were_given_again_are_found_in_one_search(successions: Successions) -> None:
    """Of an agent that is starved; else each round takes longer than the last, and more numbers wait for it."""
    numbers = range(2, 20_000, 5)
    for tgid in numbers:
        successions.end(tgid, 10 * tgid)
        assert successions.must_wait(FORK, tgid, 10 * tgid + 5)
    rows = [(tgid, 10 * tgid + at) for tgid in range(1, 20_001, 40) for at in (4, 5)]
    began_s = time.thread_time()
    found = times(successions.collected([batch(*rows)] * 400))
    assert time.thread_time() - began_s < 2, "a look at each number for each batch takes ten"
    assert found == [at for tgid, at in rows if tgid not in numbers or at % 10 == 4] * 400


# -- orders ------------------------------------------------------------------------------------------


@dataclass
class Ring:
    """Stands for family ``process``."""

    events: list[tuple[str, int, int]]

    def drain_each(self) -> list[Single]:
        drained, self.events = self.events, []
        rows = np.array([((time_ns, 0, tgid), 0, 0) for _, tgid, time_ns in drained], HEAD)
        return [single(kind, row) for (kind, _, _), row in zip(drained, rows, strict=True)]


class Nobodys:
    """All processes are of one owner."""

    def of(self, tgid: int) -> tuple[str, int]:
        return "/", 0


LIVES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 3), st.booleans(), st.booleans(), st.booleans()),
    min_size=1,
    max_size=10,
)


@given(LIVES, st.lists(st.integers(0, 80), max_size=6))
def test_each_owner_has_its_records_between_its_beginning_and_its_end(
    lives: list[tuple[int, int, bool, bool, bool]], pauses: list[int]
) -> None:
    """``lives``: (number, records, with fork, with exec, with exit); ``pauses``: when there is a collection."""
    known = Known()
    successions = Successions(cast(Any, known))
    ring = Ring([])
    shares = Shares(cast(Any, None))
    shares.owners = cast(Any, Nobodys())
    events = ProcessEvents(
        cast(Any, ring), shares, lambda name: False, successions.must_wait, lambda tgid: False
    )
    script: list[tuple[int, tuple[str, int, int]]] = []  # (time, (what, number, life))
    now = 0
    for life, (tgid, records, forked, execs, _) in enumerate(lives):
        steps = ["fork"] * forked + ["exec"] * (execs or not forked) + ["record"] * records + ["exit"]
        for step in steps:
            now += LONG_NS
            script.append((now, (step, tgid, life)))
    owner: dict[int, int] = {}
    pending: list[Batch] = []
    reported: list[tuple[str, int, int]] = []

    def collect(time_ns: int) -> None:
        handle()
        for each in successions.collected(pending):
            reported.extend(
                ("record", tgid, life)
                for tgid, life in zip(each.heads["tgid"], each.records["life"], strict=True)
            )
        pending.clear()
        for each in successions.take(time_ns):
            known.began.pop(each.tgid, None)
            reported.append(("gone", each.tgid, owner.pop(each.tgid, -1)))

    def handle() -> None:
        for kind, tgid, time_ns, _ in events.take():
            if kind == EXIT:
                successions.end(tgid, time_ns)
            else:
                known.began.setdefault(tgid, time_ns)
                owner[tgid] = life_at[tgid, time_ns]
                reported.append(("seen", tgid, owner[tgid]))

    life_at = {(tgid, time_ns): life for time_ns, (_, tgid, life) in script}
    for place, (time_ns, (step, tgid, life)) in enumerate(script):
        if step == "record":
            pending.append(batch((tgid, time_ns), life=life))
        else:
            ring.events.append(({"fork": FORK, "exec": EXEC, "exit": EXIT}[step], tgid, time_ns))
        if place in pauses:
            collect(time_ns)
    for _ in range(len(lives) + 2):
        collect(now)
    current: dict[int, int] = {}
    for what, tgid, life in reported:
        if what == "seen":
            current[tgid] = life
        else:
            assert current.get(tgid, life) == life, reported
        if what == "gone":
            current.pop(tgid, None)
    assert sorted(life for what, _, life in reported if what == "gone") == list(range(len(lives)))
    assert sum(what == "record" for what, _, _ in reported) == sum(records for _, records, *_ in lives)


def test_what_is_known_of_this_process_is_of_this_process() -> None:
    """The real clocks and ``/proc``."""
    described = DescribedProcesses(ResourceDetector(), lambda tgid: None, Counter(), ProcessContexts())
    own, now_ns = os.getpid(), clock.monotonic_ns()
    described.see(own, now_ns)
    assert 0 < described.began_ns(own) <= now_ns
    assert not described.is_another_now(own)
    assert described.began_before(own, now_ns + LONG_NS)
    described.forget(own)
    described.see(own, 1)  # whose number it was at the first nanosecond: not this one
    assert described.take()[1:] == []
    described.begin(own, 1)
    assert described.is_another_now(own)
