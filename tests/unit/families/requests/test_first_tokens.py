"""A first token is slow for its service where fewer than a share of those before it were as slow."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.requests.first_tokens import SERVICES, WINDOW, SlowFirstTokens, service_of
from otelgpu.model.exchange import Role
from otelgpu.model.resource import resource
from tests.rig.examples import examples
from tests.unit.model.builders import exchange

ONE, OTHER = ("a", None), ("b", None)


def after(*seconds: float, quantile: float = 0.9) -> SlowFirstTokens:
    made = SlowFirstTokens()
    for each in seconds:
        made.add(ONE, each, quantile)
    return made


@pytest.mark.parametrize(
    ("before", "seconds", "slow"),
    [
        ([0.2] * 9, 60.0, False),  # one of nine is no tenth
        ([0.2] * 10, 0.3, True),
        ([0.2] * 10, 0.2, False),  # all are as slow
        ([0.2] * 9 + [0.4], 0.3, False),
        ([0.2] * 18 + [0.4, 0.1], 0.3, True),
        ([0.2] * 18 + [0.4, 0.5], 0.3, False),
    ],
)
def test_one_of_the_slowest_tenth_is_slow_once_there_were_ten(
    before: list[float], seconds: float, slow: bool
) -> None:
    assert after(*before).add(ONE, seconds, 0.9) is slow


@examples(50)
@given(st.lists(st.sampled_from([0.1, 0.2, 0.5, 1.0, 7.0]), max_size=60), st.sampled_from([0.5, 0.9, 0.99]))
def test_the_window_slides(values: list[float], quantile: float) -> None:
    made = after(*[3.0] * (WINDOW - 20), quantile=quantile)
    seen = [3.0] * (WINDOW - 20)
    for value in values:
        window = seen[-WINDOW:]
        share = math.floor(len(window) * (1 - quantile) + 1e-9)
        assert made.add(ONE, value, quantile) is (sum(each >= value for each in window) < share)
        seen.append(value)


def test_services_are_apart_and_bounded() -> None:
    made = after(*[0.2] * 10)
    assert not made.add(OTHER, 0.3, 0.9)
    for number in range(SERVICES):
        made.add((number,), 0.2, 0.9)
    assert not made.add(ONE, 0.3, 0.9)  # forgotten


def test_a_service_is_its_processes_and_its_clients_are_another() -> None:
    same = {
        service_of(
            exchange(), resource({"service.name": "llm", "process.pid": pid, "service.namespace": "x"})
        )
        for pid in (1, 2)
    }
    assert len(same) == 1
    assert service_of(exchange(role=Role.CLIENT), resource({"service.name": "llm"})) not in same
