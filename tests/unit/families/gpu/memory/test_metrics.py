"""The ledger as metrics: what stands, what grew, who asked for it, and what ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from otelgpu.engine.memory_names import LEAK_WINDOWS, OTHER, SITES_REPORTED, memory_names
from otelgpu.engine.metric import Instrument
from otelgpu.engine.metrics import Metrics
from otelgpu.families.gpu.memory.ledger import WINDOW_NS, MemoryLedger
from otelgpu.families.gpu.memory.metrics import MemoryMetrics
from otelgpu.model.operations import Memory, Operations, concatenate
from otelgpu.model.resource import Resource, resource
from tests.unit.families.gpu.memory.memory_calls import Decoder, allocation, free

CUDA, HIP = memory_names("cuda"), memory_names("hip")
LLM, TRAINER = resource({"service.name": "llm"}), resource({"service.name": "trainer"})


class Session:
    """A ledger and its metrics, with the resource of each process and the names of call sites."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger([Decoder()] * 3)
        self.metrics = Metrics(0)
        self.owners: dict[int, Resource] = {1: LLM, 2: TRAINER}
        self.sites: Callable[[int, int], str] = lambda tgid, address: f"f{address}"
        self.reported = MemoryMetrics(
            [CUDA, HIP], self.ledger, lambda tgid: self.owners[tgid], lambda *at: self.sites(*at)
        )
        self.now = 100

    def publish(self, *rows: Operations) -> None:
        self.ledger.add(concatenate(rows))
        self.ledger.settle(self.now)
        self.reported.publish(self.metrics)
        self.now += 100

    def __getitem__(self, name: str) -> dict[tuple[Any, ...], int]:
        """Values of a metric by its labels' values, of process 1."""
        return self.of(LLM, name)

    def of(self, owner: Resource, name: str, vendor: str = "cuda") -> dict[tuple[Any, ...], int]:
        table = self.metrics._tables.get((owner, f"gpu.{vendor}.{name}"))
        series = table.series.items() if table else ()
        return {tuple(value for _, value in labels): int(s.total) for labels, s in series}


@pytest.fixture
def session() -> Session:
    return Session()


def test_what_is_held_is_reported_by_device_and_kind(session: Session) -> None:
    session.publish(
        allocation(1, at=1, size=100),
        allocation(2, at=2, size=20, device=1, memory=Memory.MANAGED),
        allocation(3, at=3, size=3, device=-1),
        free(4, at=1),
        allocation(5, at=4, size=7),
    )
    assert session["memory.usage"] == {(0, "device"): 7, (1, "managed"): 20, ("device",): 3}
    assert session["memory.peak"] == {(0, "device"): 100, (1, "managed"): 20, ("device",): 3}
    assert session["memory.live.allocations"] == {(0, "device"): 1, (1, "managed"): 1, ("device",): 1}


def test_each_vendors_memory_has_its_own_names(session: Session) -> None:
    session.publish(
        allocation(1, at=1, size=100, caller=7),
        allocation(2, at=2, size=20, caller=7, family=1),
        allocation(3, at=3, size=4, family=1, status=2),
        free(4, at=1),
    )
    assert session["memory.usage"] == {(0, "device"): 0}
    assert session["memory.site.usage"] == {}
    assert session.of(LLM, "memory.usage", "hip") == {(0, "device"): 20}
    assert session.of(LLM, "memory.site.usage", "hip") == {("f7",): 20}
    assert session.of(LLM, "memory.allocation.failures", "hip") == {(0, "device"): 1}
    assert session["memory.allocation.failures"] == {}
    assert session["memory.free.bytes"] == {(): 100}
    keys = {
        key
        for (_, name), table in session.metrics._tables.items()
        if name.startswith("gpu.hip.")
        for labels in table.series
        for key, _ in labels
    }
    assert keys == {"hip.memory.kind", "hip.device.index", "code.function.name"}


def test_nothing_is_reported_of_a_family_without_names_for_memory(session: Session) -> None:
    session.publish(allocation(1, family=2))
    assert session.metrics._tables == {}


def test_host_memory_and_imports_are_apart(session: Session) -> None:
    session.publish(
        allocation(1, at=1, size=100, memory=Memory.HOST),
        allocation(2, at=1, size=20, memory=Memory.REGISTERED),
        allocation(3, at=2, size=0, memory=Memory.IMPORTED),
    )
    assert session["host.memory.usage"] == {(0, "host"): 100, (0, "registered"): 20}
    assert session["memory.imported"] == {(0,): 1}
    assert session["memory.usage"] == {}


def test_sums_are_reported_as_they_grow(session: Session) -> None:
    rows = [
        allocation(1, at=1, size=100),
        free(2, at=1),
        allocation(3, status=2),
        allocation(4, returned=0, size=9),
    ]
    session.publish(*rows)
    session.publish()
    assert session["memory.free.bytes"] == {(): 100}
    assert session["memory.allocation.failures"] == {(0, "device"): 1}
    assert session["memory.requested"] == {(0, "device"): 9}
    session.publish(allocation(205, at=1, size=50), free(206, at=1))
    assert session["memory.free.bytes"] == {(): 150}


def test_freed_bytes_of_all_kinds_are_one_sum(session: Session) -> None:
    rows = [allocation(n, at=n, size=10**n, memory=kind) for n, kind in enumerate((1, 2, 3, 4), 1)]
    session.publish(*rows, *(free(10 + n, at=n) for n in range(1, 5)))
    assert session["memory.free.bytes"] == {(): 10 + 100 + 10_000}  # kind 3 is the host's


def test_a_process_that_ended_is_reported_once_more_as_holding_nothing(session: Session) -> None:
    session.publish(allocation(1), allocation(1, tgid=2))
    session.ledger.end_process(1, 150)
    session.publish()
    assert session["memory.usage"] == {(0, "device"): 0}
    assert session["memory.peak"] == {(0, "device"): 100}
    assert session.of(TRAINER, "memory.usage") == {(0, "device"): 100}


def test_another_program_in_the_process_leaves_the_old_one_with_nothing(session: Session) -> None:
    session.publish(allocation(1, size=100), allocation(2, at=2, size=5), free(3, at=2))
    session.ledger.end_process(1, 150)
    session.owners[1] = TRAINER
    session.publish(allocation(160, size=30), allocation(161, at=2, size=6), free(162, at=2))
    assert (session["memory.usage"], session["memory.free.bytes"]) == ({(0, "device"): 0}, {(): 5})
    assert session.of(TRAINER, "memory.usage") == {(0, "device"): 30}
    assert session.of(TRAINER, "memory.free.bytes") == {(): 6}


def test_sites_are_reported_by_function_and_the_rest_together(session: Session) -> None:
    rows = [allocation(n, at=n, size=1000 + n, caller=n) for n in range(1, SITES_REPORTED + 3)]
    session.publish(*rows, allocation(50, at=50, size=5))  # without a site
    reported = session["memory.site.usage"]
    assert len(reported) == SITES_REPORTED + 1
    assert (reported["f22",], reported[OTHER,]) == (1022, 1001 + 1002 + 5)
    assert sum(reported.values()) == sum(session["memory.usage"].values())


def test_places_in_one_function_are_one_site(session: Session) -> None:
    session.sites = lambda tgid, address: "load"
    session.publish(allocation(1, at=1, caller=1), allocation(2, at=2, caller=2), allocation(3, at=3))
    assert session["memory.site.usage"] == {("load",): 200, ("unknown",): 100}


def test_a_site_that_holds_nothing_is_reported_no_more(session: Session) -> None:
    session.publish(allocation(1, at=1, caller=1), allocation(2, at=2, caller=2))
    session.publish(free(110, at=1))
    assert session["memory.site.usage"] == {("f2",): 100}


def test_a_leak_is_suspected_after_so_many_windows_and_cleared_by_a_free(session: Session) -> None:
    session.publish()
    for window in range(LEAK_WINDOWS):
        assert session["memory.leak.suspected"] == {}
        session.now += WINDOW_NS
        session.publish(allocation(session.now - 50, at=window + 1, caller=9))
    assert session["memory.leak.suspected"] == {("f9",): LEAK_WINDOWS * 100}
    session.now += WINDOW_NS
    session.publish(free(session.now - 50, at=1))
    assert session["memory.leak.suspected"] == {}


def test_everything_can_be_exported(session: Session) -> None:
    huge = [allocation(n, at=n, size=1 << 48, memory=1, returned=int(n % 2)) for n in range(1, 2_000)]
    session.publish(*huge)
    data, points = session.metrics.read(1)
    assert points == sum(len(session[m.name.removeprefix("gpu.cuda.")]) for m in CUDA.metrics)
    names = {m.name for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    assert names <= {metric.name for metric in CUDA.metrics}


def test_only_sums_that_fall_are_up_down_counters() -> None:
    kinds = {metric.name: metric.instrument for metric in CUDA.metrics}
    assert {name for name, kind in kinds.items() if kind is Instrument.COUNTER} == {
        "gpu.cuda.memory.free.bytes",
        "gpu.cuda.memory.allocation.failures",
        "gpu.cuda.memory.requested",
    }
