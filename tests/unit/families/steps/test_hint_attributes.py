"""Hints on requests: of their own calls, over the time in which they worked with the GPU."""

from __future__ import annotations

import numpy as np

from otelgpu.engine.call_roles import StepCalls
from otelgpu.families.steps.hint_attributes import request_hints
from otelgpu.model.operations import Operations, concatenate, operations
from otelgpu.model.spans import Attribute, attributes_of_rows
from tests.unit.families.steps.steps_engines import APIS, MS, TID, call


def reported(*requests: list[Operations]) -> dict[str, tuple[Attribute, list[bool]]]:
    """Attributes by key, and which requests have each; the rows are mixed."""
    rows = concatenate([row for each in requests for row in each])
    request = np.repeat(np.arange(len(requests)), [len(each) for each in requests])
    order = np.random.default_rng(2).permutation(len(rows))
    found = attributes_of_rows(
        request_hints(rows.take(order), request[order], len(requests), StepCalls([APIS]))
    )
    full = [True] * len(requests)
    return {each.key: (each, full if each.present is None else each.present.tolist()) for each in found}


def test_each_request_has_the_hints_of_its_own_calls() -> None:
    idle = [call(1, 0, MS), call(1, 9 * MS, MS)]
    busy = [call(1, 0, 9 * MS), call(1, 9 * MS, MS)]
    found = reported(busy, idle, [])
    hints, present = found["otelgpu.hints"]
    assert present == [False, True, False]
    assert hints.values.table[hints.values.codes[1]] == ("host_overhead",)  # type: ignore[union-attr]
    assert found["otelgpu.hint.host_overhead"][0].values[1] == 0.8  # type: ignore[index]


def test_the_thread_that_launched_most_is_the_requests() -> None:
    rows = [call(1, 0, MS), call(1, 9 * MS, MS), call(1, 0, 10 * MS, tid=TID + 1)]
    assert found_hints(rows) == {"otelgpu.hints", "otelgpu.hint.host_overhead"}


def test_requests_without_launches_have_none() -> None:
    assert found_hints([call(8, 0, MS), call(8, 9 * MS, MS)]) == set()
    assert request_hints(operations(0), np.zeros(0, dtype=np.int64), 2, StepCalls([APIS])) == [{}, {}]


def found_hints(rows: list[Operations]) -> set[str]:
    return set(reported(rows))
