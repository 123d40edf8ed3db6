"""Verdicts on simulated jobs, whose truth is known: nothing wrong is said, and what costs something is found.

More seeds: ``python -m tests.rig.jobs.trials --seeds 60``.
"""

from __future__ import annotations

import numpy as np
import pytest

from otelgpu.diagnose.ranks.facts import OWN
from otelgpu.diagnose.ranks.verdicts import HANG
from tests.rig.jobs.faults import FAULTS
from tests.rig.jobs.routines import ROUTINES
from tests.rig.jobs.simulation import HEALTHY

pytest.importorskip("duckdb")

from tests.rig.jobs.trials import try_job

SEEDS = range(5000, 5002)
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(4))
def test_a_healthy_job_has_no_verdict(seed: int) -> None:
    assert try_job(HEALTHY, seed).verdicts == []


@pytest.mark.parametrize("name", ROUTINES)
def test_what_healthy_jobs_do_beside_training_has_no_verdict(name: str) -> None:
    assert [(seed, found) for seed in SEEDS if (found := try_job(name, seed).verdicts)] == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_with_its_class_cause_ranks_and_cost_and_nothing_else(name: str) -> None:
    trials = [try_job(name, seed) for seed in SEEDS]
    assert [(each.job.seed, each.verdicts) for each in trials if each.is_wrong] == []
    due = [each for each in trials if each.is_due]
    assert [each.job.seed for each in due if not each.is_found] == []
    costs = [cost for each in due if (cost := each.cost) is not None]
    if due[0].job.fault.verdict != HANG:
        assert float(np.median(costs)) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("name", ["throttled every few steps", "an evaluation of one replica"])
def test_sums_of_steps_tell_a_slow_gpu_from_an_evaluation_by_its_batches_or_nothing_does(name: str) -> None:
    told = try_job(name, SEEDS[0], summed_up=OWN)
    assert told.is_found, told.verdicts
    untold = try_job(name, SEEDS[0], summed_up=["compute"])
    assert untold.is_undecided, untold.verdicts
