"""When a GPU's energy is read: often while somebody waits for it, and otherwise only with all the rest."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from otelgpu.families.gpu.devices.poll.energy import LEASE_S, SAMPLE_S, Pace
from otelgpu.families.gpu.devices.poll.nvml import Nvml
from otelgpu.families.gpu.devices.poll.poller import DevicePoller, DeviceWatch
from otelgpu.model.devices import DeviceInput, DeviceReadings, EnergyRead
from tests.unit.families.gpu.devices.nvml_script import UUID, Script

FIRST = UUID.format(0)


class Clock:
    """Seconds that pass when they are waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pace: Pace) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(pace._changed, "wait", self._wait)

    def __call__(self) -> float:
        return self.now_s

    def _wait(self, seconds: float) -> bool:
        self.now_s += seconds
        return False


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> tuple[Pace, Clock]:
    pace = Pace(lambda: 10.0)
    clock = Clock(monkeypatch, pace)
    pace._clock_s = clock
    return pace, clock


def turns(pace: Pace, clock: Clock, until_s: float) -> list[tuple[float, bool]]:
    """When it reads, and whether all of it."""
    found = []
    while pace.wait(0.0):
        if clock.now_s > until_s:
            return found
        found.append((round(clock.now_s, 6), pace.begin_slow()))
    return found


def test_without_hurry_there_is_one_reading_in_an_interval(paced: tuple[Pace, Clock]) -> None:
    assert turns(*paced, until_s=35) == [(0, True), (10, True), (20, True), (30, True)]


def test_who_hastens_has_it_read_in_short_intervals_for_a_while(paced: tuple[Pace, Clock]) -> None:
    pace, clock = paced
    assert pace.wait(0.0) and pace.begin_slow()
    clock.now_s = 5.0
    pace.hasten()
    found = turns(pace, clock, 11)
    short = [at_s for at_s, whole in found if not whole]
    assert short == pytest.approx([5 + SAMPLE_S * turn for turn in range(len(short))])
    assert short[-1] == pytest.approx(5 + LEASE_S, abs=1.5 * SAMPLE_S)
    assert [at_s for at_s, whole in found if whole] == [10]


def test_a_slow_reading_that_is_brought_forward_begins_a_new_interval(paced: tuple[Pace, Clock]) -> None:
    pace, clock = paced
    assert pace.wait(0.0) and pace.begin_slow()
    clock.now_s = 4.0
    pace.begin()
    assert turns(pace, clock, 25) == [(4, True), (14, True), (24, True)]


def test_a_thread_that_sleeps_is_woken_by_haste_and_by_the_end() -> None:
    pace, turned = Pace(lambda: 3600.0), threading.Semaphore(0)

    def run() -> None:
        while pace.wait(0.0):
            pace.begin_slow()
            turned.release()

    thread = threading.Thread(target=run)
    thread.start()
    assert turned.acquire(timeout=10)
    assert not turned.acquire(timeout=0.3)  # nobody hastens
    pace.hasten()
    assert turned.acquire(timeout=10)
    pace.stop()
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def watch() -> Iterator[DeviceWatch]:
    made = DeviceWatch(lambda counters: Nvml(counters, own_pid_namespace=False))
    yield made
    made.close()


def sampled(watch: DeviceWatch) -> list[DeviceInput]:
    return watch.sample(lambda: 77)


def test_the_counter_is_read_where_there_is_one(script: Script, watch: DeviceWatch) -> None:
    script.gpu(0, field__83=123_456, field__186=70_000)
    assert sampled(watch) == []  # nobody knows what there is
    watch.poll(5)
    assert sampled(watch) == [EnergyRead(time_ns=77, uuid=FIRST, millijoules=123_456)]


@pytest.mark.parametrize("power", [{"field__186": 70_000}, {"power_average": 70_000}])
def test_else_the_power_is(script: Script, watch: DeviceWatch, power: dict[str, int]) -> None:
    script.gpu(0, **power)
    watch.poll(5)
    for _ in range(2):
        assert sampled(watch) == [EnergyRead(time_ns=77, uuid=FIRST, milliwatts=70_000)]
    assert +watch.counters == Counter()


def test_a_gpu_with_neither_is_counted_once(script: Script, watch: DeviceWatch) -> None:
    script.gpu(0)
    watch.poll(5)
    assert [sampled(watch), sampled(watch)] == [[], []]
    assert +watch.counters == {"energy_unreadable": 1}


def test_a_mig_device_has_no_counter_and_its_gpu_has(script: Script, watch: DeviceWatch) -> None:
    script.gpu(0, mig=1, field__83=5).mig(0, 0)
    watch.poll(5)
    assert sampled(watch) == [EnergyRead(time_ns=77, uuid=FIRST, millijoules=5)]


def test_a_gpu_that_is_lost_is_left_to_the_next_look(script: Script, watch: DeviceWatch) -> None:
    script.gpu(0, field__83=5).gpu(1, field__83=6)
    watch.poll(5)
    script.line("fail * 15 0")  # NVML_ERROR_GPU_IS_LOST
    assert [read.uuid for read in sampled(watch) if isinstance(read, EnergyRead)] == [UUID.format(1)]


def test_energy_is_read_often_while_somebody_waits_and_nothing_else_is(script: Script) -> None:
    script.gpu(0, field__83=5)
    poller = DevicePoller(3600.0, DeviceWatch(lambda counters: Nvml(counters, own_pid_namespace=False)))
    poller.start()
    found: list[DeviceInput] = []
    until = time.monotonic() + 20
    while sum(isinstance(item, EnergyRead) for item in found) < 5 and time.monotonic() < until:
        poller.hasten()
        found += poller.collect(time.monotonic_ns())
        time.sleep(0.01)
    poller.stop()
    times = [item.time_ns for item in found if isinstance(item, EnergyRead)]
    assert len(times) >= 5
    assert times == sorted(times)
    assert sum(isinstance(item, DeviceReadings) for item in found) == 1
