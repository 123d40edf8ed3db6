"""Hints are raised by what the host calls were, each with the share that raised it."""

from __future__ import annotations

import numpy as np
import pytest

from otelgpu.engine.call_roles import StepCalls
from otelgpu.families.steps.evidence import evidence_of
from otelgpu.families.steps.hints import HINTS, hints
from otelgpu.families.steps.step import Evidence
from otelgpu.model.operations import Operations, concatenate
from tests.unit.families.steps.steps_engines import APIS, D2H, H2D, MS, TID, call


def evidence(*rows: Operations) -> Evidence:
    joined = concatenate(rows)
    joined = joined.take(np.random.default_rng(1).permutation(len(joined)))
    return evidence_of(joined, StepCalls([APIS]).roles(joined), TID)


def test_a_copy_that_waits_is_reported_with_its_share() -> None:
    found = evidence(call(4, 0, 2 * MS, direction=H2D), call(1, 2 * MS, 8 * MS))
    assert hints(found, 10 * MS) == {"blocking_copies": 0.2}


def test_synchronisation_right_after_a_queued_copy_is_a_copy_that_waits() -> None:
    found = evidence(call(3, 0, MS, direction=H2D), call(5, MS, 4 * MS), call(1, 5 * MS, 5 * MS))
    assert hints(found, 10 * MS) == {"blocking_copies": 0.4}


def test_waiting_for_results_is_no_hint() -> None:
    found = evidence(
        call(3, 0, MS, direction=H2D),
        call(1, MS, MS),
        call(3, 2 * MS, MS, direction=D2H),
        call(5, 3 * MS, 7 * MS),
    )
    assert hints(found, 10 * MS) == {}
    assert found.wait_ns == 7 * MS


def waited_for(launches: int) -> Evidence:
    pairs = [(call(1, 2 * n * MS, MS), call(8, (2 * n + 1) * MS, MS)) for n in range(launches)]
    return evidence(*(row for pair in pairs for row in pair))


def test_launches_that_are_each_waited_for() -> None:
    assert hints(waited_for(4), 8 * MS) == {"synchronous_launches": 1.0}
    assert hints(waited_for(3), 6 * MS) == {}


def test_time_without_a_call_under_way() -> None:
    found = evidence(call(1, 0, MS), call(8, 6 * MS, 4 * MS))
    assert hints(found, 10 * MS) == {"host_overhead": 0.5}


def test_calls_of_other_threads_fill_no_gap() -> None:
    found = evidence(call(1, 0, MS), call(7, MS, 9 * MS, tid=TID + 1))
    assert hints(found, 10 * MS) == {"host_overhead": 0.9}


@pytest.mark.parametrize("elapsed_ns", [-1, 0])
def test_no_time_makes_no_share(elapsed_ns: int) -> None:
    assert hints(evidence(call(1, 0, MS)), elapsed_ns) == {}


def test_every_hint_is_explained() -> None:
    assert all(0 < hint.least <= 1 and hint.description for hint in HINTS.values())
