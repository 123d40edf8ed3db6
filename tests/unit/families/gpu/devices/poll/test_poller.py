"""What is said when: retries at a slow pace, lost GPUs, a driver that hangs."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from otelgpu.families.gpu.devices.poll import gpus
from otelgpu.families.gpu.devices.poll import poller as device_poller
from otelgpu.families.gpu.devices.poll.nvml import Nvml
from otelgpu.families.gpu.devices.poll.poller import RETRY_NS, SOON_NS, DevicePoller, DeviceWatch
from otelgpu.model.devices import DeviceGone, DeviceInput, DeviceReadings, DeviceSeen, EnergyRead, Quantity
from otelgpu.processes.polling import STUCK_NS
from tests.unit.families.gpu.devices.nvml_script import UUID, Script

FIRST, SECOND = UUID.format(0), UUID.format(1)
NOW = 5_000_000_000


def opening(*, own_pid_namespace: bool = False) -> Callable[[Counter[str]], Nvml]:
    return lambda counters: Nvml(counters, own_pid_namespace=own_pid_namespace)


@pytest.fixture
def watch(script: Script) -> Iterator[DeviceWatch]:
    made = DeviceWatch(opening())
    yield made
    made.close()


def opens_of(watch: DeviceWatch) -> list[None]:
    """Grows by one each time that the watch opens NVML."""
    opens: list[None] = []
    really = watch._open

    def counted(counters: Counter[str]) -> Nvml:
        opens.append(None)
        return really(counters)

    watch._open = counted
    return opens


def outline(inputs: list[DeviceInput]) -> list[tuple[str, Any, Any]]:
    """(kind, uuid, what it says) in order."""
    found: list[tuple[str, Any, Any]] = []
    for item in inputs:
        match item:
            case DeviceSeen():
                found.append(("seen", item.uuid, item.model))
            case DeviceReadings():
                found.append(("readings", item.uuid, item.values.get(Quantity.TEMPERATURE_CELSIUS)))
            case DeviceGone():
                found.append(("gone", item.uuid, item.failed))
    return sorted(found)


def test_devices_are_reported_once_and_read_each_time(script: Script, watch: DeviceWatch) -> None:
    script.gpu(0, temperature=50).gpu(1, temperature=60)
    first = watch.poll(NOW)
    assert [type(item) for item in first[:2]] == [DeviceSeen, DeviceSeen]
    assert {item.time_ns for item in first} == {NOW}
    assert outline(first[2:]) == [("readings", FIRST, 50), ("readings", SECOND, 60)]
    assert outline(watch.poll(NOW + 1)) == [("readings", FIRST, 50), ("readings", SECOND, 60)]


def test_a_change_of_devices_is_noticed_within_a_minute(script: Script, watch: DeviceWatch) -> None:
    script.gpu(0).gpu(1)
    watch.poll(NOW)
    script.restart().gpu(0, name="renamed")
    assert outline(watch.poll(NOW + RETRY_NS)) == [
        ("gone", SECOND, False),
        ("readings", FIRST, None),
        ("seen", FIRST, "renamed"),
    ]


def test_a_lost_gpu_is_reported_and_found_again_after_a_reset(
    script: Script, watch: DeviceWatch, caplog: pytest.LogCaptureFixture
) -> None:
    script.gpu(0, temperature=50).gpu(1, temperature=60)
    sessions = opens_of(watch)
    watch.poll(NOW)
    script.line("fail * 15 1")
    assert outline(watch.poll(NOW + 1)) == [("gone", SECOND, True), ("readings", FIRST, 50)]
    assert outline(watch.poll(NOW + 2)) == [("readings", FIRST, 50)]
    assert (watch.counters["device_lost"], caplog.text.count("is lost")) == (1, 1)
    assert outline(watch.poll(NOW + RETRY_NS)) == [("readings", FIRST, 50)]  # still lost: nothing new
    script.restart().gpu(0, temperature=50).gpu(1, temperature=61)
    assert ("readings", SECOND, 61) in outline(watch.poll(NOW + 2 * RETRY_NS))
    assert len(sessions) == 3  # a new session each time, for a GPU that was reset has a new handle
    watch.poll(NOW + 3 * RETRY_NS)
    assert (len(sessions), watch.counters["device_lost"]) == (3, 1)


def test_a_gpu_that_is_found_but_does_not_answer_is_reported_once(
    script: Script, watch: DeviceWatch, caplog: pytest.LogCaptureFixture
) -> None:
    script.gpu(0, temperature=50)
    watch.poll(NOW)
    script.line("fail nvmlDeviceGetTemperature 15")
    found = [outline(watch.poll(NOW + minute * RETRY_NS)) for minute in range(1, 4)]
    assert found == [[("gone", FIRST, True)], [], []]
    assert (watch.counters["device_lost"], caplog.text.count("is lost")) == (1, 1)
    script.restart().gpu(0, temperature=51)
    assert outline(watch.poll(NOW + 4 * RETRY_NS)) == [("readings", FIRST, 51)]


def test_a_lost_gpu_that_is_taken_out_is_not_looked_for_any_more(script: Script, watch: DeviceWatch) -> None:
    script.gpu(0, temperature=50).gpu(1)
    sessions = opens_of(watch)
    watch.poll(NOW)
    script.line("fail * 15 1")
    watch.poll(NOW + 1)
    script.restart().gpu(0, temperature=50)
    for minute in range(1, 4):
        assert outline(watch.poll(NOW + minute * RETRY_NS)) == [("readings", FIRST, 50)]
    assert len(sessions) == 2


def test_a_gpu_that_is_lost_from_the_beginning_is_counted_and_looked_for(
    script: Script, watch: DeviceWatch
) -> None:
    script.gpu(0, temperature=50).line("fail * 15 0")
    for minute in range(3):
        assert watch.poll(NOW + minute * RETRY_NS) == []
    assert watch.counters["device_lost"] == 1
    script.restart().gpu(0, temperature=50)
    assert outline(watch.poll(NOW + 3 * RETRY_NS)) == [
        ("readings", FIRST, 50),
        ("seen", FIRST, "NVIDIA H200"),
    ]


def test_a_driver_that_is_reloaded_is_opened_again_a_minute_later(script: Script, watch: DeviceWatch) -> None:
    script.gpu(0, temperature=50)
    watch.poll(NOW)
    script.remove()
    assert outline(watch.poll(NOW + 1)) == [("gone", FIRST, False)]
    script.restart().gpu(0, temperature=51)
    assert watch.poll(NOW + RETRY_NS) == []  # not yet
    assert outline(watch.poll(NOW + 1 + RETRY_NS)) == [
        ("readings", FIRST, 51),
        ("seen", FIRST, "NVIDIA H200"),
    ]


def test_a_process_that_uses_a_gpu_has_a_blind_watch_look_again_soon(
    script: Script, watch: DeviceWatch
) -> None:
    script.line("fail nvmlInitWithFlags 9")
    tried = opens_of(watch)
    assert watch.poll(NOW) == []
    for _ in range(100):  # however many come
        watch.want()
        assert watch.poll(NOW + SOON_NS - 1) == []
    assert watch.is_blind and len(tried) == 1
    script.restart().gpu(0, temperature=50)
    assert outline(watch.poll(NOW + SOON_NS)) == [("readings", FIRST, 50), ("seen", FIRST, "NVIDIA H200")]
    assert not watch.is_blind


def test_who_knows_a_gpu_does_not_look_again_for_each_process(script: Script, watch: DeviceWatch) -> None:
    script.gpu(0, temperature=50)
    watch.poll(NOW)
    script.gpu(1, temperature=60)
    watch.want()
    assert outline(watch.poll(NOW + SOON_NS)) == [("readings", FIRST, 50)]
    assert ("readings", SECOND, 60) in outline(watch.poll(NOW + RETRY_NS))


def test_the_poller_is_told_once_of_each_process_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    none = SimpleNamespace(start=lambda: None, want=lambda: told.append(1), collect=lambda now_ns: [])
    monkeypatch.setattr(gpus, "DevicePoller", lambda interval_s: none)
    poller = gpus.GpuPoller(10.0)
    for users in (set(), {7}, {7}, {7, 8}, {8}, {7, 8}):
        poller.collect(NOW, users)
    assert len(told) == 3


def test_a_blind_poller_asks_at_once_when_a_process_comes(script: Script) -> None:
    script.line("fail nvmlInitWithFlags 9")
    poller = DevicePoller(3600.0, DeviceWatch(opening()))
    poller.start()
    poller._polled.wait_for_first(10.0)
    poller._watch._looked_ns -= SOON_NS
    script.restart().gpu(0)
    poller.want()
    assert isinstance(collected(poller, 1)[0], DeviceSeen)
    poller.stop()


def test_what_keeps_nvml_from_opening_is_tried_slowly_and_said_once(
    script: Script, watch: DeviceWatch, caplog: pytest.LogCaptureFixture
) -> None:
    script.gpu(0).line("fail nvmlInitWithFlags 4")
    tried = opens_of(watch)
    for second in range(0, 150, 10):
        assert watch.poll(NOW + second * 1_000_000_000) == []
    assert len(tried) == 3
    assert +watch.counters == {"no_permission": 1}
    assert caplog.text.count("/dev/nvidiactl") == 1
    script.restart().gpu(0)
    watch.poll(NOW + 3 * RETRY_NS)
    script.line("fail * 9", "fail nvmlDeviceGetCount_v2 9")
    watch.poll(NOW + 4 * RETRY_NS)
    assert +watch.counters == {"no_permission": 1, "driver_not_loaded": 1}


def test_a_machine_without_a_gpu_is_no_warning(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    script.line("fail nvmlInitWithFlags 12")
    with caplog.at_level(logging.INFO):
        DeviceWatch(opening()).poll(NOW)
    assert [(record.levelname, "libnvidia-ml.so.1" in record.message) for record in caplog.records] == [
        ("INFO", True)
    ]


def test_a_foreign_pid_namespace_is_counted(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    script.gpu(0).line("process 0 70 1000 5 0 0 10")
    for foreign, processes in ((True, 0), (False, 1)):
        monkeypatch.setattr(device_poller, "in_own_pid_namespace", lambda foreign=foreign: foreign)
        watch = DeviceWatch()
        readings = watch.poll(NOW)[1]
        watch.close()
        assert isinstance(readings, DeviceReadings)
        assert (watch.counters["foreign_pid_namespace"], len(readings.processes)) == (foreign, processes)


# -- the thread --------------------------------------------------------------------------------------------


class SlowWatch(DeviceWatch):
    """One that answers when it is let."""

    def __init__(self, *answers: list[DeviceInput]) -> None:
        super().__init__(opening())
        self.answers = list(answers)
        self.asked, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def poll(self, now_ns: int) -> list[DeviceInput]:
        self.asked.release()
        self.go.acquire()
        self.counters["read_failed"] += 1
        return self.answers.pop(0) if self.answers else []

    def sample(self, clock_ns: Callable[[], int]) -> list[DeviceInput]:
        return []


def collected(poller: DevicePoller, wanted: int, seconds: float = 20) -> list[DeviceInput]:
    found: list[DeviceInput] = []
    until = time.monotonic() + seconds
    while len(found) < wanted and time.monotonic() < until:
        found += poller.collect(time.monotonic_ns())
        time.sleep(0.005)
    return found


def test_the_poller_polls_at_its_interval_until_stopped(script: Script) -> None:
    script.gpu(0, temperature=50, field__83=1_000)
    poller = DevicePoller(0.01, DeviceWatch(opening()))
    assert poller.collect(time.monotonic_ns()) == []
    poller.start()
    found = collected(poller, 6)
    poller.stop()
    assert isinstance(found[0], DeviceSeen)
    assert [type(item) for item in found[1:6]] == [DeviceReadings, EnergyRead] * 2 + [DeviceReadings]
    assert not poller._polled.thread.is_alive()
    assert poller.counters == {}


def test_a_driver_that_hangs_holds_nobody_up(script: Script) -> None:
    script.gpu(0).line("delay nvmlDeviceGetTemperature 600000")
    poller = DevicePoller(0.01, DeviceWatch(opening()))
    poller.start()
    time.sleep(0.05)
    assert collected(poller, 1, 0.05) == []
    poller.stop(0.01)
    assert poller._polled.thread.is_alive()  # a daemon: it dies with the process


def test_readings_of_a_driver_that_hangs_are_withdrawn(caplog: pytest.LogCaptureFixture) -> None:
    readings = DeviceReadings(time_ns=1, uuid=FIRST, values={})
    other = DeviceReadings(time_ns=1, uuid=SECOND, values={})
    lost = DeviceGone(time_ns=1, uuid=SECOND)
    watch = SlowWatch([readings, other, lost], [readings])
    poller = DevicePoller(0.0, watch)
    poller.start()
    watch.go.release()
    assert collected(poller, 3) == [readings, other, lost]
    watch.asked.acquire()
    watch.asked.acquire()  # it asks again, and hangs
    late = time.monotonic_ns() + STUCK_NS + 1
    assert poller.collect(late) == [DeviceGone(time_ns=late, uuid=FIRST)]
    assert poller.collect(late + 1) == []
    assert (poller.counters["poll_stuck"], caplog.text.count("not answered")) == (1, 1)
    watch.go.release()
    assert collected(poller, 1) == [readings]
    assert poller.counters == {"poll_stuck": 1, "read_failed": 2}
    poller.stop(0.0)
    watch.go.release(2)


def test_what_nobody_collects_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_poller, "READY", 3)
    seen = DeviceSeen(time_ns=1, uuid=FIRST, index=0, minor=0, model="m")
    readings = DeviceReadings(time_ns=1, uuid=FIRST, values={})
    watch = SlowWatch([seen, readings], [readings, readings])
    watch.go.release(9)
    poller = DevicePoller(0.0, watch)
    poller.start()
    for _ in range(3):
        watch.asked.acquire()  # two polls are over, and what they found is kept
    poller.stop()
    assert poller.collect(0) == [seen]
    assert poller.counters["readings_dropped"] == 3
