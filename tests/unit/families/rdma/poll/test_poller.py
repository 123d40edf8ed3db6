"""Threads around the sensors: what is collected, what is dropped, a driver that hangs."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from otelgpu.families.rdma.poll import poller as fabric_poller
from otelgpu.families.rdma.poll.kernel_log import KernelLogWatch
from otelgpu.families.rdma.poll.netlink import QueuePairWatch
from otelgpu.families.rdma.poll.poller import FabricPoller, FabricWatch
from otelgpu.families.rdma.poll.ports import PortWatch
from otelgpu.model.fabric import FabricInput, HardwareError, PortGone, PortReadings, PortSeen
from otelgpu.processes.polling import STUCK_NS
from tests.unit.families.rdma.poll.infiniband import MLX5, build
from tests.unit.families.rdma.poll.test_kernel_log import XID_79, Log

SEEN = PortSeen(time_ns=1, device="mlx5_0", port=1, state="ACTIVE", link_layer="Ethernet")
READ = PortReadings(time_ns=1, device="mlx5_0", port=1, values={"a": 1})


class Scripted:
    """A sensor that gives what it is reported to, and waits while it is reported to hang."""

    def __init__(self, found: list[FabricInput]) -> None:
        self.counters: Counter[str] = Counter(port_unreadable=1)
        self.found = found
        self.let_go = threading.Event()
        self.let_go.set()
        self.polls = 0
        self.closed = False

    def poll(self, now_ns: int) -> list[FabricInput]:
        self.polls += 1
        self.let_go.wait(60)
        return list(self.found)

    def close(self) -> None:
        self.closed = True


def until(poller: FabricPoller, count: int, now_ns: int = 0) -> list[FabricInput]:
    """Collect until there are ``count`` inputs."""
    found: list[FabricInput] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        found += poller.collect(now_ns or time.monotonic_ns())
        time.sleep(0.002)
    return found


def test_ports_and_the_log_come_together(tmp_path: Path) -> None:
    build(tmp_path / "infiniband", MLX5)
    log = Log()
    watch = FabricWatch(PortWatch(tmp_path / "infiniband"), QueuePairWatch(lambda: os.abort()))
    watch._pairs.poll = lambda now_ns, devices: []  # type: ignore[method-assign]
    poller = FabricPoller(0.01, watch=watch, log=lambda: log.watch)
    poller.start()
    log.write(XID_79)
    try:
        found = until(poller, 4)
        deadline = time.monotonic() + 30
        while not any(isinstance(item, HardwareError) for item in found) and time.monotonic() < deadline:
            found += until(poller, 1)
    finally:
        poller.stop(30)
    assert isinstance(found[0], PortSeen)
    assert {type(item) for item in found} == {PortSeen, PortReadings, HardwareError}
    assert poller.counters == {}
    log.close()


def test_it_reads_once_more_at_the_end_and_lets_go() -> None:
    sensor = Scripted([SEEN])
    poller = FabricPoller(3600, watch=sensor, log=None)
    poller.start()
    assert until(poller, 1) == [SEEN]
    sensor.found = [READ]
    poller.stop(30)
    poller.stop()
    assert poller.collect(time.monotonic_ns()) == [READ]
    assert (sensor.polls, sensor.closed) == (2, True)
    assert poller.counters == {"port_unreadable": 1}


def test_the_first_collection_has_the_first_reading_and_later_ones_do_not_wait() -> None:
    sensor = Scripted([SEEN])
    sensor.let_go.clear()
    poller = FabricPoller(0.001, watch=sensor, log=None)
    poller.start()
    threading.Timer(0.3, sensor.let_go.set).start()
    assert SEEN in poller.collect(time.monotonic_ns())
    sensor.let_go.clear()
    until_s = time.monotonic() + 30
    while poller.collect(time.monotonic_ns()) and time.monotonic() < until_s:
        pass  # what was under way
    assert poller.collect(time.monotonic_ns()) == []
    sensor.let_go.set()
    poller.stop(30)


def test_a_first_reading_that_hangs_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_poller, "FIRST_S", 0.05)
    sensor = Scripted([SEEN])
    sensor.let_go.clear()
    poller = FabricPoller(3600, watch=sensor, log=None)
    poller.start()
    began_s = time.monotonic()
    assert poller.collect(time.monotonic_ns()) == []
    monkeypatch.setattr(fabric_poller, "FIRST_S", 60.0)
    assert poller.collect(time.monotonic_ns()) == []
    assert time.monotonic() - began_s < 40
    sensor.let_go.set()
    poller.stop(30)


def test_a_log_that_cannot_be_read_ends_its_thread() -> None:
    def refuse() -> int:
        raise PermissionError(1, "no")

    poller = FabricPoller(0, log=lambda: KernelLogWatch(refuse))
    poller.start()
    assert poller._log is not None
    poller._log.thread.join(30)
    assert not poller._log.thread.is_alive()
    assert (poller.collect(1), poller.counters) == ([], {"kernel_log_refused": 1})
    poller.stop()


def test_a_driver_that_hangs_leaves_nothing_standing_until_it_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    sensor = Scripted([SEEN])
    poller = FabricPoller(0.001, watch=sensor, log=None)
    poller.start()
    assert until(poller, 1)[0] == SEEN
    sensor.let_go.clear()
    sensor.found = [READ]
    deadline = time.monotonic() + 30
    assert poller._fabric is not None
    while not poller._fabric.asked_ns and time.monotonic() < deadline:
        time.sleep(0.001)
    poller._fabric.take()
    later = poller._fabric.asked_ns + STUCK_NS + 1
    assert poller.collect(later) == [PortGone(time_ns=later, device="mlx5_0", port=1)]
    assert poller.collect(later + 1) == []
    assert poller.counters["ports_stuck"] == 1
    assert len(caplog.records) == 1
    sensor.let_go.set()
    assert until(poller, 2)[:2] == [SEEN, READ]
    poller.stop(30)


def test_readings_that_nobody_collects_are_dropped_and_ports_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_poller, "READY", 3)
    sensor = Scripted([SEEN, READ, READ, READ])
    poller = FabricPoller(3600, watch=sensor, log=None)
    poller.start()
    assert until(poller, 1) == [SEEN]
    sensor.found = []
    poller.stop(30)
    assert poller.counters["readings_dropped"] == 3
