"""The bucket of spans: who is admitted when it runs low, and that what is sent keeps to the rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine.folding import Parents
from otelgpu.engine.span_budget import BURST_S, Claim, SpanBudget, by_randomness
from tests.rig.examples import examples

SECOND_NS = 1_000_000_000
RATE = 100
BUCKET = RATE * BURST_S


def admitted(budget: SpanBudget, claim: Claim, *costs: int) -> list[bool]:
    return budget.admit(claim, np.array(costs), np.arange(len(costs))).tolist()


def sent(budget: SpanBudget, *spans: int) -> None:
    batches: list[Any] = [range(count) for count in spans]
    assert list(budget.paid(batches)) == batches


@pytest.mark.parametrize("claim", Claim)
def test_each_claim_leaves_a_share_to_those_before_it_and_takes_the_last_one_whole(claim: Claim) -> None:
    budget = SpanBudget(RATE)
    budget.fill(1)
    units = admitted(budget, claim, *[50] * 40)
    expected = round((1 - claim.value) * BUCKET / 50 + 0.49)
    assert units == [True] * expected + [False] * (40 - expected)


def test_the_order_of_who_asks_decides_and_nobody_else_is_admitted() -> None:
    budget = SpanBudget(RATE)
    found = budget.admit(Claim.WORK, np.array([1, 600, 1, 1]), np.array([3, 1, 0]))
    assert found.tolist() == [False, True, False, True]


def test_what_was_admitted_is_paid_once() -> None:
    budget = SpanBudget(RATE)
    budget.fill(SECOND_NS)
    assert admitted(budget, Claim.WORK, 400, 200) == [True, True]
    sent(budget, 400, 200)
    budget.fill(SECOND_NS)
    assert admitted(budget, Claim.WANTED_WORK, 149, 1, 1) == [True, True, False]


def test_what_nobody_claimed_is_paid_for_and_debts_are_of_one_bucket() -> None:
    budget = SpanBudget(RATE)
    budget.fill(SECOND_NS)
    sent(budget, 10 * BUCKET)
    budget.fill((1 + BURST_S) * SECOND_NS)
    assert admitted(budget, Claim.WANTED_REQUEST, 1) == [False]
    budget.fill((2 + BURST_S) * SECOND_NS)
    assert admitted(budget, Claim.WANTED_REQUEST, 1) == [True]


@examples(50)
@given(st.lists(st.lists(st.integers(0, 90), max_size=20), min_size=1, max_size=60))
def test_what_is_sent_keeps_to_the_rate(ticks: list[list[int]]) -> None:
    """Over any time: the rate, a bucket, and the one claim that was admitted last."""
    budget, total = SpanBudget(RATE), 0
    for number, costs in enumerate(ticks):
        budget.fill(SECOND_NS + number * SECOND_NS // 5)
        kept = admitted(budget, Claim.WORK, *costs)
        made = sum(cost for cost, is_kept in zip(costs, kept, strict=True) if is_kept)
        sent(budget, made)
        total += made
        assert total <= BUCKET * (1 - Claim.WORK.value) + RATE * number / 5 + 90


def test_another_limit_holds_at_once() -> None:
    budget = SpanBudget()
    budget.keep(RATE)
    assert admitted(budget, Claim.WANTED_REQUEST, BUCKET, 1) == [True, False]
    budget.keep(RATE // 10)
    budget.fill(SECOND_NS)
    assert admitted(budget, Claim.WANTED_REQUEST, BUCKET // 10, 1) == [True, False]


def test_traces_are_kept_by_their_last_56_bits() -> None:
    ids = [b"\xff" * 9 + bytes(6) + b"\1", bytes(9) + b"\xc0" + bytes(6), b"\1" * 16]
    parents = Parents(
        trace_id=np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 16),
        span_id=np.zeros((3, 8), np.uint8),
        flags=np.ones(3, np.uint32),
    )
    assert by_randomness(parents).tolist() == [1, 2, 0]
