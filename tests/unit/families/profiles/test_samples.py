"""Samples of threads into rows: which kinds and sample types each makes, and waits with who ended them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otelgpu.engine.profile_rows import ProfileRows
from otelgpu.families.profiles import names
from otelgpu.families.profiles.samples import SampleProfiles
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.model.samples import SampleKind
from tests.unit.families.profiles.profile_builders import S, sampled


def of_kinds(*kinds: ProfileKind, frequency_hz: int = 100) -> SampleProfiles:
    return SampleProfiles(ProfileSettings(kinds=frozenset(kinds), frequency_hz=frequency_hz))


def by_type(found: list[ProfileRows]) -> dict[str, ProfileRows]:
    assert len({each.sample_type for each in found}) == len(found)
    return {each.sample_type.type: each for each in found}


def test_samples_of_the_clock_are_of_the_kinds_that_were_asked_for() -> None:
    samples = sampled(
        SampleKind.CPU, {"time_ns": S, "stack": 5, "value": 7, "name": b"main", "trace_flags": 1}
    )
    for kinds, types in (
        ((), []),
        ((ProfileKind.OFFCPU,), []),
        ((ProfileKind.CPU,), ["cpu"]),
        ((ProfileKind.PYTHON,), ["python_cpu", "python_wall"]),
        ((ProfileKind.CPU, ProfileKind.PYTHON), ["cpu", "python_cpu", "python_wall"]),
    ):
        of = of_kinds(*kinds)
        of.take(samples)
        found = by_type(of.report(final=False))
        assert sorted(found) == types
        for each in found.values():
            row = each.rows[0]
            assert (row["tgid"], row["tid"], row["stack"], row["value"], row["name"], row["trace_flags"]) == (
                *(10, 11, 5, 7),
                *(b"main", 1),
            )


def test_a_clock_has_the_time_between_its_looks_as_its_period() -> None:
    of = of_kinds(ProfileKind.CPU, frequency_hz=50)
    of.take(sampled(SampleKind.CPU, {}))
    (cpu,) = of.report(final=False)
    assert (cpu.period_type, cpu.period) == (names.CPU, 20_000_000)


def waits(of: SampleProfiles, *, final: bool = False) -> list[tuple[int, int, int]]:
    """(time, waker's process, waker's stack) of the waits that are reported, in order."""
    return sorted(
        (int(row["time_ns"]), int(row["waker_tgid"]), int(row["waker_stack"]))
        for each in of.report(final=final)
        if each.sample_type == names.OFF_CPU
        for row in each.rows
    )


WAIT: dict[str, Any] = {"time_ns": 5 * S, "tid": 11, "stack": 1, "value": S, "state": 2}
WAKER: dict[str, Any] = {"time_ns": 5 * S, "tgid": 20, "tid": 21, "stack": 2, "other": 11}


def test_a_wait_is_reported_with_who_ended_it() -> None:
    of = of_kinds(ProfileKind.OFFCPU)
    of.take(sampled(SampleKind.OFF_CPU, WAIT, WAIT | {"time_ns": 9 * S}, WAIT | {"tid": 12}))
    of.take(sampled(SampleKind.WAKER, WAKER))
    of.take(sampled(SampleKind.WAKER, WAKER | {"other": 12, "stack": 3}))
    assert waits(of, final=True) == [(5 * S, 20, 2), (5 * S, 20, 3), (9 * S, 0, 0)]


def test_who_ended_another_wait_of_the_thread_did_not_end_this_one() -> None:
    of = of_kinds(ProfileKind.OFFCPU)
    of.take(sampled(SampleKind.OFF_CPU, WAIT | {"time_ns": 9 * S}))
    of.take(sampled(SampleKind.WAKER, WAKER))
    assert waits(of, final=True) == [(9 * S, 0, 0)]


@pytest.mark.parametrize("first", [SampleKind.OFF_CPU, SampleKind.WAKER])
def test_the_two_may_come_in_either_order_a_tick_apart(first: SampleKind) -> None:
    of = of_kinds(ProfileKind.OFFCPU)
    parts = {SampleKind.OFF_CPU: WAIT, SampleKind.WAKER: WAKER}
    of.take(sampled(first, parts.pop(first)))
    assert waits(of) == []
    ((second, row),) = parts.items()
    of.take(sampled(second, row))
    assert waits(of) == [(5 * S, 20, 2)]
    assert waits(of, final=True) == []


def test_a_wait_whose_waker_does_not_come_is_reported_a_tick_later_without() -> None:
    of = of_kinds(ProfileKind.OFFCPU)
    of.take(sampled(SampleKind.OFF_CPU, WAIT))
    assert [waits(of), waits(of), waits(of)] == [[], [(5 * S, 0, 0)], []]


def test_wall_clock_by_python_frames_is_what_ran_and_what_waited_without_wakers() -> None:
    of = of_kinds(ProfileKind.PYTHON)
    of.take(sampled(SampleKind.OFF_CPU, WAIT))
    of.take(sampled(SampleKind.WAKER, WAKER))
    of.take(sampled(SampleKind.CPU, {"value": 3}))
    found = [each for each in of.report(final=True) if each.sample_type == names.PYTHON_WALL]
    rows = np.concatenate([each.rows for each in found])
    assert sorted(rows["value"].tolist()) == [3, S]
    assert not rows["waker_stack"].any()


def test_kinds_that_nobody_knows_make_nothing() -> None:
    of = of_kinds(*ProfileKind)
    of.take(sampled(SampleKind.CPU, {"kind": 200}))
    assert of.report(final=True) == []
