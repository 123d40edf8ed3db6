"""What probes of posts and polls may cost: a simulated program that traps never pays more than its budget."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.kernel.probe_budget import ALWAYS, NEVER, CallBudget, ProbeBudget

SECOND = 1_000_000_000
TRAP_NS = 3_000.0


def reported(percent: float, posts: int = 0, polls: int = 0, trap_ns: float = TRAP_NS) -> ProbeBudget:
    """A budget that has seen so many calls a second."""
    budget = ProbeBudget(percent, trap_ns)
    budget.measured(posts=posts, posts_ns=SECOND, polls=polls, polls_ns=SECOND)
    return budget


def test_what_is_not_known_yet_starts_with_all_posts_and_windows_of_the_budgets_length() -> None:
    budget = ProbeBudget(1.0, TRAP_NS)
    assert budget.posts == ALWAYS
    assert (budget.polls.open_ns, budget.polls.period_ns) == (20_000_000, 2 * SECOND)


def test_without_a_limit_everything_is_always_probed_and_with_none_nothing() -> None:
    assert reported(math.inf, 10**6, 10**7).posts == reported(math.inf, 10**6, 10**7).polls == ALWAYS
    assert reported(0, 1, 1).posts == reported(0, 1, 1).polls == ProbeBudget(0, TRAP_NS).polls == NEVER


def test_posts_that_are_affordable_are_always_probed() -> None:
    assert reported(1.0, posts=2_000).posts == ALWAYS  # 6 ms of 7.5 a second
    assert not reported(1.0, posts=3_000).posts.is_always


def test_polls_get_what_posts_leave() -> None:
    spinning = 300_000
    assert reported(1.0, posts=0, polls=spinning).polls.share == pytest.approx(0.01 / 0.9, rel=1e-6)
    assert reported(1.0, posts=2_000, polls=spinning).polls.share == pytest.approx(0.004 / 0.9, rel=1e-6)


def test_few_polls_are_always_probed() -> None:
    assert reported(1.0, polls=100).polls == ALWAYS


def test_a_small_share_becomes_rare_windows_and_then_none() -> None:
    rare = reported(0.05, polls=300_000).polls
    assert (rare.open_ns, rare.period_ns // SECOND) == (2_000_000, 3)
    assert reported(0.001, polls=300_000).polls == NEVER


def test_a_program_that_calls_more_is_believed_at_once_and_one_that_calls_less_by_and_by() -> None:
    budget = reported(1.0, polls=100)
    budget.measured(polls=400_000, polls_ns=SECOND)
    assert not budget.polls.is_always
    shares = []
    for _ in range(12):
        budget.measured(polls=100, polls_ns=SECOND)
        shares.append(budget.polls.share)
    assert shares == sorted(shares) and shares[0] < 0.02 and shares[-1] > 0.9


def test_no_time_teaches_nothing() -> None:
    budget = ProbeBudget(1.0, TRAP_NS)
    budget.measured(posts=10**9, posts_ns=0, polls=10**9, polls_ns=0)
    assert budget.posts == ALWAYS


@pytest.mark.parametrize("percent", [-1.0, math.nan])
def test_a_budget_below_nothing_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="budget"):
        ProbeBudget(percent, TRAP_NS)


@given(
    percent=st.floats(0.001, 400),
    posts=st.integers(0, 10**7),
    polls=st.integers(0, 10**8),
    trap_ns=st.floats(100, 100_000),
)
def test_the_cost_of_what_is_chosen_is_within_the_budget(
    percent: float, posts: int, polls: int, trap_ns: float
) -> None:
    budget = reported(percent, posts, polls, trap_ns)
    cost = (posts * budget.posts.share + polls * budget.polls.share) * trap_ns / SECOND
    assert cost <= percent / 100 * (1 + 1e-6) + 1e-9
    for window in (budget.posts, budget.polls):
        assert 0 <= window.open_ns <= window.period_ns
        assert window.open_ns == 0 or window.open_ns >= 2_000_000


def calls_of(*rates: int, percent: float = 1.0) -> CallBudget:
    """A budget that has seen so many calls a second, one after the other."""
    budget = CallBudget(percent, TRAP_NS)
    for rate in rates:
        budget.measured(rate, SECOND)
    return budget


def test_calls_of_a_process_are_always_probed_until_they_cost_more() -> None:
    assert calls_of().window == ALWAYS
    assert calls_of(3_000).window == ALWAYS  # 9 ms of 10 a second
    assert not calls_of(3_400).window.is_always


def test_windows_of_calls_have_the_share_that_is_affordable() -> None:
    assert calls_of(50_000).window.share == pytest.approx(0.008 / (50_000 * TRAP_NS / SECOND), rel=1e-6)
    assert calls_of(50_000).cost == pytest.approx(0.15)


def test_more_calls_count_at_once_and_fewer_by_and_by() -> None:
    assert calls_of(1_000, 50_000).rate == 50_000
    assert not calls_of(50_000, 0).window.is_always
    assert calls_of(50_000, 0, 0, 0, 0, 0).window == ALWAYS  # half of it five times: less than 3,333
