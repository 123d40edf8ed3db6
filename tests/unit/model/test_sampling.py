"""Samplers decide as OpenTelemetry's do: by threshold and trace id, or as the caller did."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.model.sampling import Sampler, SamplerName, TailRule, threshold
from tests.rig.examples import examples

RATIOS = st.floats(0, 1)
TRACE_IDS = st.binary(min_size=16, max_size=16)


def trace_id(random_bits: int) -> bytes:
    return b"\xff" * 9 + random_bits.to_bytes(7)


@pytest.mark.parametrize(
    ("ratio", "state"), [(1.0, ""), (0.5, "ot=th:8"), (0.25, "ot=th:c"), (1 / 3, "ot=th:aaaaaaaaaaaab")]
)
def test_the_threshold_and_above_are_kept_and_named(ratio: float, state: str) -> None:
    sampler, least = Sampler(ratio=ratio), threshold(ratio)
    assert sampler.root(trace_id(least)) == (1, state)
    if least:
        assert sampler.root(trace_id(least - 1)) == (0, "")


@examples(200)
@given(TRACE_IDS, RATIOS, RATIOS)
def test_who_samples_more_keeps_all_that_others_keep(trace: bytes, one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert Sampler(ratio=less).root(trace)[0] <= Sampler(ratio=more).root(trace)[0]


@examples(200)
@given(TRACE_IDS, RATIOS)
def test_a_sampler_that_asks_no_parent_decides_a_callers_trace_as_it_would_its_own(
    trace: bytes, ratio: float
) -> None:
    sampler = Sampler(ratio=ratio, parent_based=False)
    for flags in (0, 1, 2, 3):
        assert sampler.child(trace, flags, "")[0] == (flags & ~1) | sampler.root(trace)[0]


@pytest.mark.parametrize("flags", [0, 1])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_a_parent_based_sampler_leaves_a_callers_trace_as_it_is(flags: int, ratio: float) -> None:
    sampler = Sampler(ratio=ratio, parent_based=True)
    assert sampler.child(trace_id(8 << 52), flags, "vendor=1,ot=th:8") == (flags, "vendor=1,ot=th:8")


@pytest.mark.parametrize(
    ("flags", "state", "passed_on"),
    [
        (1, "ot=th:8;rv:7fffffffffffff,vendor=1", "ot=rv:7fffffffffffff,vendor=1"),
        (1, "ot=th:8,vendor=1", "vendor=1"),  # of a trace id that ends in 7
        (1, "ot=rv:80000000000000;th:8", "ot=rv:80000000000000;th:8"),
        (0, "ot=th:8", "ot=th:8"),  # it was left out, as it says
        (1, "vendor=th:8", "vendor=th:8"),
    ],
)
def test_a_threshold_by_which_a_callers_trace_would_have_been_left_out_is_not_passed_on(
    flags: int, state: str, passed_on: str
) -> None:
    assert Sampler().child(trace_id(7), flags, state) == (flags, passed_on)


@pytest.mark.parametrize(
    ("bits", "given_state", "flags", "state"),
    [
        (0, "vendor=1,ot=rv:80000000000000", 1, "ot=th:8;rv:80000000000000,vendor=1"),
        ((1 << 56) - 1, "ot=rv:7fffffffffffff;th:4", 0, "ot=rv:7fffffffffffff"),
        ((1 << 56) - 1, "vendor=rv:00000000000000", 1, "ot=th:8,vendor=rv:00000000000000"),
        ((1 << 56) - 1, "ot=rv:0", 1, "ot=th:8;rv:0"),  # no random value: 14 digits
        (0, "ot=th:0,vendor=1", 0, "vendor=1"),
    ],
)
def test_the_trace_state_gives_the_random_bits_and_takes_our_threshold(
    bits: int, given_state: str, flags: int, state: str
) -> None:
    assert Sampler(ratio=0.5, parent_based=False).child(trace_id(bits), 1, given_state) == (flags, state)


def test_each_of_the_specifications_names_is_a_sampler() -> None:
    made = {name: Sampler.of(name, 0.25) for name in get_args(SamplerName)}
    assert {name: (each.ratio, each.parent_based) for name, each in made.items()} == {
        "always_on": (1.0, False),
        "always_off": (0.0, False),
        "traceidratio": (0.25, False),
        "parentbased_always_on": (1.0, True),
        "parentbased_always_off": (0.0, True),
        "parentbased_traceidratio": (0.25, True),
    }


@pytest.mark.parametrize(
    ("rule", "error_type", "first_token_s", "kept"),
    [
        (TailRule(), "500", None, True),
        (TailRule(errors=False), "500", None, False),
        (TailRule(slow_first_token_s=2), "", 2.0, True),
        (TailRule(slow_first_token_s=2), "", 1.999, False),
        (TailRule(slow_first_token_s=2), "", None, False),
        (TailRule(slow_first_token_s=0), "", 1e6, False),
    ],
)
def test_errors_and_slow_first_tokens_are_kept(
    rule: TailRule, error_type: str, first_token_s: float | None, kept: bool
) -> None:
    assert rule.keeps(error_type, first_token_s) is kept
