"""Differences of cumulative counts: exact through wraps, new beginnings and nonsense."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.rdma import counts as queue_pair_counts
from otelgpu.families.rdma.counts import CountDeltas, Grown
from otelgpu.families.rdma.facts import Counted
from tests.rig.examples import examples
from tests.unit.families.rdma.queue_pair_facts import PLACE, counts, together

POSTS = PLACE[Counted("posts", "")]


def posts(grown: Grown) -> list[int]:
    values: list[int] = grown.values[:, POSTS].tolist()
    return values


def test_the_first_reading_counts_in_full_and_the_next_what_was_added() -> None:
    book = CountDeltas()
    first = book.take(counts(10, 1, 2, 3, posts=100))
    then = book.take(counts(30, 1, 2, 3, posts=250))
    assert (posts(first), posts(then)) == ([100], [150])
    assert (first.elapsed_ns.tolist(), then.elapsed_ns.tolist()) == ([10], [20])
    assert (first.since_ns.tolist(), then.since_ns.tolist()) == ([0], [10])
    assert (first.anew.tolist(), then.anew.tolist()) == ([True], [False])


def test_an_entry_that_was_made_anew_counts_from_zero() -> None:
    book = CountDeltas()
    book.take(counts(10, 1, 2, 3, posts=100, signalled=9))
    again = book.take(counts(30, 1, 2, 3, posts=40, signalled=10))
    assert posts(again) == [40]
    assert again.values[0, PLACE[Counted("signalled", "")]] == 10
    assert again.elapsed_ns.tolist() == [30]
    assert book.counters == {"counts_begun_anew": 1}


def test_a_counter_that_wraps_goes_on() -> None:
    book = CountDeltas()
    book.take(counts(10, 1, 2, 3, posts=(1 << 64) - 5))
    assert posts(book.take(counts(20, 1, 2, 3, posts=7))) == [12]
    assert "counts_begun_anew" not in book.counters


def test_what_no_machine_can_do_is_passed_over() -> None:
    book = CountDeltas()
    book.take(counts(10, 1, 2, 3, posts=1))
    assert not len(book.take(counts(20, 1, 2, 3, posts=1 << 60)))
    assert book.counters == {"counts_implausible": 1}
    assert posts(book.take(counts(30, 1, 2, 3, posts=(1 << 60) + 4))) == [4]


def test_queue_pairs_of_one_reading_do_not_mix() -> None:
    book = CountDeltas()
    book.take(together(counts(10, 1, 2, 3, posts=5), counts(10, 1, 2, 4, posts=50)))
    grown = book.take(together(counts(20, 1, 2, 4, posts=51), counts(20, 9, 2, 3, posts=7)))
    assert grown.keys == [(1, 2, 4), (9, 2, 3)]
    assert posts(grown) == [1, 7]


def test_a_queue_pair_that_is_forgotten_begins_anew() -> None:
    book = CountDeltas()
    book.take(together(counts(10, 1, 2, 3, posts=5), counts(10, 1, 2, 4, posts=6)))
    book.forget((1, 2, 3))
    assert posts(book.take(counts(20, 1, 2, 3, posts=5))) == [5]
    book.forget_process(1)
    assert posts(book.take(counts(30, 1, 2, 4, posts=6))) == [6]


def test_there_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_pair_counts, "ENTRIES", 1)
    book = CountDeltas()
    assert posts(book.take(together(counts(10, 1, 2, 3, posts=5), counts(10, 1, 2, 4, posts=6)))) == [5]
    assert book.counters == {"counts_beyond_memory": 1}


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1 << 40), st.booleans()), max_size=20))
def test_differences_add_up_to_what_was_counted(readings: list[tuple[int, int, bool]]) -> None:
    """A row that begins anew below its last value; what it had before is counted already."""
    book, standing, truth, reported = CountDeltas(), [0] * 3, [0] * 3, [0] * 3
    for time_ns, (which, added, anew) in enumerate(readings, 1):
        if anew and added < standing[which]:
            standing[which] = 0
        standing[which] += added
        truth[which] += added
        grown = book.take(counts(time_ns, 1, 2, which, posts=standing[which]))
        reported[which] += int(np.sum(grown.values[:, POSTS]))
    assert reported == truth
