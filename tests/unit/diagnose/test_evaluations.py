"""Evaluations that nothing marks are no slow ranks, and slow ranks are no evaluations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("duckdb")

from otelgpu.diagnose.ranks.following import Following
from otelgpu.diagnose.ranks.sentences import sentence
from tests.unit.diagnose.test_rank_rules import Row, jitter, report_of

Batches = Callable[[int, int], int]
"""(rank, step) → of which a rank does forward passes only in a step."""

FORWARD_S, BACKWARD_S = 0.002, 0.004
UNITS = 4
EVERY = 10


def training(
    evaluated: Batches,
    *,
    steps: int = 60,
    ranks: int = 4,
    whole: Batches = lambda rank, step: 0,
    slow: Callable[[int, int], float] = lambda rank, step: 1.0,
    single: bool = True,
    fed_s: float = 0.0,
    fed_jitter: float = 0.01,
    lanes: int = 0,
) -> list[Row]:
    """Data parallel; ``whole``: microbatches besides; ``slow``: how much longer each operation takes.

    ``single``: operations are in the input one by one, else their sum. ``fed_s``: a rank waits for each microbatch;
    0: the input does not say. ``fed_jitter``: standard deviation of that, of its length. ``lanes``: replicas, where a
    rank is none of its own.
    """
    rows = _training(evaluated, steps, ranks, whole, slow, (fed_s, fed_jitter), single=single)
    return (
        [row | {"lane": f"replica {row['rank'] * lanes // ranks}"} for row in rows] if lanes else list(rows)
    )


def _training(
    evaluated: Batches,
    steps: int,
    ranks: int,
    whole: Batches,
    slow: Callable[[int, int], float],
    fed: tuple[float, float],
    *,
    single: bool,
) -> Iterator[Row]:
    rng = np.random.default_rng(1)
    for step in range(steps):
        own: dict[int, list[tuple[str, float]]] = {}
        waited: dict[int, float] = {}
        for rank in range(ranks):
            units = UNITS + whole(rank, step)
            waited[rank] = fed[0] * (units + evaluated(rank, step)) * np.exp(fed[1] * rng.standard_normal())
            names = ["forward"] * (units + evaluated(rank, step)) + ["backward"] * units
            factor = jitter(1.0)(rank, step) * slow(rank, step)
            own[rank] = [(name, factor * (FORWARD_S if name == "forward" else BACKWARD_S)) for name in names]
        begin = 10.0 * step
        end = begin + 0.001
        end += max(waited[rank] + sum(seconds for _, seconds in each) for rank, each in own.items())
        for rank, each in own.items():
            common: Row = {"job": "j", "step": step, "rank": rank, "host": f"host-{rank // 2}"}
            now = begin + waited[rank]
            if fed[0]:
                yield common | {"kind": "input", "t0": begin, "t1": now}
            for name, seconds in each if single else [("", sum(seconds for _, seconds in each))]:
                yield common | {"kind": "compute", "name": name, "t0": now, "t1": now + seconds}
                now += seconds
            yield common | {"kind": "coll", "grp": "dp", "seq": step, "n": ranks, "t0": now, "t1": end}
            yield common | {"kind": "step", "t0": begin, "t1": end, "seq": -1}


def by(ranks: Collection[int], batches: int = 20, every: int = EVERY) -> Batches:
    """These ranks evaluate every few steps."""
    return lambda rank, step: batches * (rank in ranks and step % every == every - 1)


def test_an_evaluation_on_one_rank_is_said_as_what_it_is_with_its_cost() -> None:
    report = report_of(training(by([0])))
    (verdict,) = report.verdicts
    assert (verdict.klass, verdict.ranks, verdict.first_step, verdict.last_step) == (
        "lone_evaluation",
        [0],
        9,
        59,
    )
    assert verdict.cost is not None
    assert verdict.cost.seconds_per_step == pytest.approx(6 * 20 * FORWARD_S / 51, rel=0.02)
    assert verdict.factor == pytest.approx(64 / 24, rel=0.02)
    assert sentence(verdict).startswith(
        "Evaluation on rank 0 alone (host-0), one every 10 steps, while the others wait, in steps 9–59. It costs"
    )
    assert verdict.evidence[1].text.startswith("28 operations in these steps, 8 in others")
    (marked,) = report.marked
    assert (marked.kind, marked.ranks, marked.steps, marked.inferred) == ("evaluation", [0], 6, True)
    assert any(
        limit.startswith("evaluation, as what was computed shows, in 6 steps") for limit in report.limits
    )


def test_ranks_that_evaluate_together_while_others_wait_are_one_verdict() -> None:
    (verdict,) = report_of(training(by([0, 1]))).verdicts
    assert (verdict.klass, verdict.ranks) == ("lone_evaluation", [0, 1])


@pytest.mark.parametrize("parts", [(20, 20, 20, 20), (8, 20, 26, 40)])
def test_an_evaluation_of_all_ranks_is_no_fault_however_it_is_divided(parts: tuple[int, ...]) -> None:
    report = report_of(training(lambda rank, step: parts[rank] * (step % EVERY == EVERY - 1)))
    assert report.verdicts == []
    assert report.input.steps == 54
    assert [(each.ranks, each.inferred) for each in report.marked] == [([0, 1, 2, 3], True)]


def test_an_evaluation_of_all_ranks_may_happen_once() -> None:
    report = report_of(training(lambda rank, step: 40 * (rank + 1) * (step == 33)))
    assert (report.verdicts, report.input.steps) == ([], 59)


@pytest.mark.parametrize("single", [True, False], ids=["operations", "sums"])
def test_ranks_that_evaluate_in_turn_are_no_fault_and_what_it_costs_is_told(single: bool) -> None:
    rows = training(
        lambda rank, step: 20 * (step % EVERY == EVERY - 1 and step // EVERY % 4 == rank),
        steps=170,
        single=single,
    )
    report = report_of(rows)
    assert (report.verdicts, report.input.steps) == ([], 153)
    (marked,) = report.marked
    assert (marked.ranks, marked.steps, marked.inferred) == ([0, 1, 2, 3], 17, True)
    assert marked.seconds == pytest.approx(17 * 20 * FORWARD_S, rel=0.02)


@pytest.mark.parametrize("single", [True, False], ids=["operations", "sums"])
def test_one_that_is_seen_twice_is_too_little_to_say_anything_from(single: bool) -> None:
    report = report_of(training(by([0, 1], every=25), lanes=2, single=single))
    assert (report.verdicts, report.marked) == ([], [])
    (limit,) = [each for each in report.limits if "single steps" in each]
    assert limit.startswith("in 2 of 60 steps some replicas compute longer than others, which costs 3.")


def test_batches_that_are_larger_in_the_last_steps_are_uneven() -> None:
    report = report_of(training(by([]), whole=lambda rank, step: 4 * (rank < 2 and step >= 50), lanes=2))
    assert [each.klass for each in report.verdicts] == ["data_imbalance"]


def test_a_device_that_is_slow_as_regularly_is_a_slow_rank() -> None:
    report = report_of(training(**SLOW))
    assert [(each.klass, each.cause, each.ranks) for each in report.verdicts] == [
        ("slow_worker", "compute", [2])
    ]
    assert report.marked == []


def test_more_training_is_no_evaluation() -> None:
    """Rank 2 has more microbatches in some steps."""
    report = report_of(training(by([]), whole=by([2], 8)))
    assert [(each.klass, each.ranks) for each in report.verdicts] == [("slow_worker", [2])]
    assert report.marked == []


def test_what_is_at_no_equal_distance_is_no_evaluation() -> None:
    at = {5, 12, 14, 25, 39, 44, 52}
    report = report_of(training(lambda rank, step: 20 * (rank == 0 and step in at)))
    assert [each.klass for each in report.verdicts] == ["slow_worker"]


def slow_every(ranks: Collection[int], factor: float = 2.5) -> Callable[[int, int], float]:
    """These ranks' GPUs are slow as regularly as others evaluate."""
    return lambda rank, step: factor if by(ranks)(rank, step) else 1.0


EVALUATES: dict[str, Any] = {"evaluated": by([2])}
SLOW: dict[str, Any] = {"evaluated": by([]), "slow": slow_every([2])}


def test_without_single_operations_more_batches_are_an_evaluation_and_less_surely() -> None:
    (verdict,) = report_of(training(by([0]), single=False, fed_s=1e-4)).verdicts
    assert (verdict.klass, verdict.ranks, verdict.confidence) == ("lone_evaluation", [0], 0.6)
    assert verdict.evidence[1].text.startswith(
        "2.39 ms of waiting for input and of copies in these steps, 0.4 ms in others"
    )
    (sure,) = report_of(training(by([0]))).verdicts
    assert sure.confidence == 0.9


def test_without_single_operations_a_gpu_that_is_slow_as_regularly_has_no_more_batches() -> None:
    report = report_of(training(**SLOW, single=False, fed_s=1e-4))
    assert [(each.klass, each.cause, each.ranks) for each in report.verdicts] == [
        ("slow_worker", "compute", [2])
    ]
    assert report.marked == []


@pytest.mark.parametrize("what", [EVALUATES, SLOW], ids=["it evaluates", "its GPU is slow"])
@pytest.mark.parametrize("fed", [{}, {"fed_s": 1e-6, "fed_jitter": 2.0}], ids=["no batches", "too noisy"])
def test_where_nothing_tells_an_evaluation_from_a_slow_gpu_that_is_said_with_what_is_missing(
    what: dict[str, Any], fed: dict[str, Any]
) -> None:
    report = report_of(training(**what, single=False, **fed))
    (verdict,) = report.verdicts
    assert (verdict.klass, verdict.cause, verdict.ranks, verdict.hosts, verdict.confidence) == (
        "inconclusive",
        "compute",
        [2],
        ["host-1"],
        0.0,
    )
    assert sentence(verdict).startswith(
        "Inconclusive: single operations, or times of input and copies: every so many steps rank 2 computes longer"
    )
    assert sentence(verdict).endswith("GPU-hours")
    assert (verdict.evidence[1].name, verdict.evidence[1].value) == ("period", EVERY)
    assert verdict.cost is not None
    assert verdict.cost.share > 0.1
    assert report.marked == []


def test_a_slow_rank_is_found_beside_one_of_which_it_is_unclear() -> None:
    rows = training(by([0]), slow=lambda rank, step: 1.5 if rank == 2 else 1.0, single=False)
    found = {(each.klass, tuple(each.ranks)) for each in report_of(rows).verdicts}
    assert found == {("inconclusive", (0,)), ("slow_worker", (2,))}


def test_a_slow_rank_is_found_beside_one_that_evaluates() -> None:
    rows = training(by([0]), slow=lambda rank, step: 1.5 if rank == 2 else 1.0)
    found = {(each.klass, tuple(each.ranks)) for each in report_of(rows).verdicts}
    assert found == {("lone_evaluation", (0,)), ("slow_worker", (2,))}


def test_one_that_is_followed_begins_once_and_ends_when_the_next_one_does_not_come() -> None:
    following, news = Following(), []
    for steps in range(70, 160, 10):
        rows = training(
            lambda rank, step: 40 * (rank == 0 and step % 20 == 9 and step < 100), steps=steps, ranks=3
        )
        news += [(steps, each.state) for each in following.take(report_of(rows).verdicts, steps - 1)]
    assert news == [(70, "began"), (120, "ended")]


def test_one_that_costs_little_is_told_and_no_verdict() -> None:
    report = report_of(training(by([0], 3, every=20), steps=100))
    assert report.verdicts == []
    assert [(each.ranks, each.steps) for each in report.marked] == [([0], 5)]
