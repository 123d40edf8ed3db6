"""Verdicts on simulated jobs, whose truth is known: nothing wrong is said, and what costs something is found."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rig.jobs.faults import FAULTS
from tests.rig.jobs.simulation import HEALTHY

pytest.importorskip("duckdb")

from tests.rig.jobs.trials import Trial, try_job

SEEDS = range(1000, 1003)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    return [try_job(name, seed) for name in FAULTS for seed in SEEDS]


def test_healthy_jobs_have_no_verdict() -> None:
    assert [(seed, trial.verdicts) for seed in range(6) if (trial := try_job(HEALTHY, seed)).verdicts] == []


def test_no_verdict_is_wrong(trials: list[Trial]) -> None:
    assert [(each.job.name, each.job.seed, each.verdicts) for each in trials if each.is_wrong] == []


def test_what_costs_something_is_found(trials: list[Trial]) -> None:
    missed = [(each.job.name, each.job.seed) for each in trials if each.is_due and not each.is_found]
    assert len(missed) <= 0.02 * len(trials), missed


def test_the_cost_is_the_true_one(trials: list[Trial]) -> None:
    costs = [cost for each in trials if each.is_due and (cost := each.cost) is not None]
    assert abs(np.median(costs) - 1) < 0.1
    assert np.median(np.abs(np.array(costs) - 1)) < 0.1
