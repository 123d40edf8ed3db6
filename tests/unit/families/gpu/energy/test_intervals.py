"""Readings of a GPU's energy: exact differences, resets left out, power integrated where there is no counter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.gpu.energy.intervals import Energy, EnergySource, IdlePower, Interval
from otelgpu.model.devices import EnergyRead

S = 1_000_000_000


def read(at_s: float, millijoules: int | None = None, milliwatts: int | None = None) -> EnergyRead:
    return EnergyRead(time_ns=int(at_s * S), uuid="GPU-1", millijoules=millijoules, milliwatts=milliwatts)


def interval(seconds: float, joules: float) -> Interval:
    return Interval(
        start_ns=0, end_ns=int(seconds * S), nanojoules=int(joules * S), source=EnergySource.COUNTER
    )


def test_the_first_reading_ends_no_interval_and_each_other_the_one_since_the_last() -> None:
    energy = Energy()
    assert energy.add(read(1, 5_000)) is None
    found = energy.add(read(3, 5_250))
    assert found is not None
    assert (found.start_ns, found.end_ns, found.nanojoules, found.source) == (
        S,
        3 * S,
        250_000_000,
        "counter",
    )
    assert energy.add(read(3, 9_000)) is None  # no time has passed


@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=50))
def test_intervals_sum_up_to_the_counters_difference(steps: list[int]) -> None:
    energy, counter, whole = Energy(), 0, 0
    for second, grown in enumerate(steps):
        counter += grown
        found = energy.add(read(second, counter))
        whole += found.nanojoules if found is not None else 0
    assert whole == (counter - steps[0]) * 1_000_000


def test_a_counter_that_begins_anew_is_counted_and_read_on() -> None:
    energy = Energy()
    found = [energy.add(read(second, value)) for second, value in enumerate((1_000, 2_000, 10, 30))]
    assert [each and each.nanojoules for each in found] == [None, 1_000_000_000, None, 20_000_000]
    assert (energy.resets, energy.implausible) == (1, 0)


def test_a_leap_that_no_gpu_can_draw_is_left_out() -> None:
    energy = Energy()
    assert [energy.add(read(0, 0)), energy.add(read(0.1, 1 << 61))] == [None, None]
    assert energy.implausible == 1
    found = energy.add(read(0.2, (1 << 61) + 10))
    assert found is not None
    assert found.nanojoules == 10_000_000


def test_power_is_integrated_where_there_is_no_counter() -> None:
    energy = Energy()
    energy.add(read(0, milliwatts=100_000))
    found = energy.add(read(2, milliwatts=300_000))
    assert found is not None
    assert (found.nanojoules, found.source) == (400 * S, "power")
    assert energy.add(read(200, milliwatts=300_000)) is None  # what it drew for three minutes nobody knows


def test_idle_power_is_the_least_of_quiet_stretches_and_short_ones_say_nothing() -> None:
    idle = IdlePower()
    assert (idle.milliwatts, idle.how, idle.part_of(interval(1, 70))) == (None, "unknown", 0)
    idle.quiet(interval(0.5, 0))
    assert idle.milliwatts is None
    idle.busy()
    idle.quiet(interval(2, 200))
    idle.quiet(interval(10, 700))
    idle.quiet(interval(1, 90))
    assert (idle.milliwatts, idle.how) == (70_000, "measured")
    assert idle.part_of(interval(1, 300)) == 70 * S
    assert idle.part_of(interval(1, 30)) == 30 * S  # never more than was used


def test_configured_idle_power_is_believed() -> None:
    idle = IdlePower(50_000)
    idle.quiet(interval(10, 700))
    assert (idle.milliwatts, idle.how) == (50_000, "configured")
