"""Alive, ready, and what each reader is reported of the rings."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from otelgpu.engine import self_telemetry as table
from otelgpu.engine.metrics import Metrics
from otelgpu.export.health import HealthServer
from otelgpu.model.inputs import Batch, Tick
from otelgpu.model.resource import resource
from otelgpu.model.self_telemetry import Delivery, RingFill
from otelgpu.self_telemetry import STALLED_SECONDS, UNDELIVERED_SECONDS, HighWater, Lags, SelfWatch, read_cost

OWN = resource({})


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Session:
    def __init__(self) -> None:
        self.metrics, self.own = Metrics(0), OWN
        self.tracked = {"process": 1}
        self.sent: list[tuple[int, Delivery]] = []

    def deliveries(self) -> list[tuple[int, Delivery]]:
        return self.sent


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def watch(session: Any, clock: Clock) -> SelfWatch:
    source: Any = SimpleNamespace(rings={"cuda": RingFill(high_water=5, limit=10)}, attachments={})
    return SelfWatch(source, session, interval_s=0.2, clock=clock)


def delivery(failing_s: float) -> Delivery:
    return Delivery(
        kind="otlp_grpc_span_exporter", metrics=False, accepted=0, queued=9, lost={}, failing_s=failing_s
    )


def test_a_loop_that_comes_round_is_alive_and_one_that_does_not_is_not(
    watch: SelfWatch, clock: Clock
) -> None:
    clock.now += STALLED_SECONDS
    watch.turned(clock.now, [])
    clock.now += STALLED_SECONDS
    assert watch.not_live() == []
    clock.now += 1
    assert watch.not_live() == ["the rings have not been drained for 31 s"]
    assert watch.not_ready() == watch.not_live()
    watch.turned(clock.now, [])
    assert watch.not_live() == []


def test_a_probe_of_a_loop_that_stands_fails(watch: SelfWatch, clock: Clock) -> None:
    server = HealthServer("0", watch, lambda data: ("", b""))
    server.start()
    try:
        host, port = server.address
        url = f"http://{host}:{port}/healthz"
        with urllib.request.urlopen(url, timeout=5) as answer:
            assert answer.status == 200
        clock.now += STALLED_SECONDS + 1
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(url, timeout=5)
    finally:
        server.close()


def test_a_long_interval_is_no_stall(watch: SelfWatch, clock: Clock) -> None:
    watch.interval_s = 10.0
    clock.now += STALLED_SECONDS + 9
    assert watch.not_live() == []


def test_a_destination_that_is_down_makes_it_unready_but_not_dead(watch: SelfWatch, session: Session) -> None:
    session.sent = [(0, delivery(UNDELIVERED_SECONDS - 1)), (1, delivery(UNDELIVERED_SECONDS))]
    assert watch.not_ready() == ["otlp_grpc_span_exporter/1 has accepted no traces for 300 s; 9 wait"]
    assert watch.not_live() == []


def test_the_last_flush_is_no_stall(watch: SelfWatch, clock: Clock) -> None:
    watch.stop()
    clock.now += 10 * STALLED_SECONDS
    assert watch.not_live() == []
    assert watch.not_ready() == ["the session is ending"]


def test_records_are_counted_by_family_and_struct(watch: SelfWatch, session: Session) -> None:
    def batch(kind: str, rows: int) -> Batch:
        return Batch(family="cuda", kind=kind, records=np.zeros(rows, dtype=[("x", "u1")]))

    inputs = [batch("cuda_call", 3), batch("cuda_name", 1), batch("cuda_call", 4), Tick(time_ns=1)]
    watch.turned(100.0, inputs)
    count = session.metrics.value
    assert count(table.RECORDS.name, OWN, **{"otelgpu.record": "cuda_call"}) == 7
    assert count(table.RECORDS.name, OWN) == 8


def test_the_first_turn_has_no_interval(watch: SelfWatch, session: Session, clock: Clock) -> None:
    watch.turned(clock.now, [])
    assert not session.metrics.value(table.DRAIN_INTERVAL.name, OWN)
    clock.now += 0.25
    watch.turned(clock.now, [])
    assert session.metrics.value(table.DRAIN_INTERVAL.name, OWN) == 0.25


def test_a_reader_takes_nothing_from_another() -> None:
    water = HighWater("a", "b")

    def take(reader: str, most: int) -> int:
        return water.take(reader, {"cuda": RingFill(high_water=most, limit=9)})["cuda"].high_water

    assert take("a", 7) == 7
    assert take("a", 2) == 2
    assert take("b", 1) == 7
    assert take("b", 0) == 0


def test_reading_reports_all_there_is(watch: SelfWatch, session: Session) -> None:
    session.sent = [(0, delivery(1.0))]
    watch.publish("scrape")
    reported = {
        metric.name for metric, _ in table.SELF_METRICS if session.metrics._tables.get((OWN, metric.name))
    }
    assert {"process.cpu.time", "otelgpu.ring.limit", "otel.sdk.exporter.span.exported"} <= reported


def test_the_cost_is_that_of_this_process() -> None:
    cost = read_cost()
    assert cost.user_s > 0
    assert cost.resident_bytes > 10 << 20
    assert cost.descriptors >= 3
    assert cost.threads >= 1


def test_how_late_the_loop_came_at_most_is_reported_to_each_reader_once() -> None:
    lags = Lags("export", "scrape")
    for seconds in (0.1, -0.2, 0.7, 0.3):
        lags.late(seconds)
    assert (lags.take("export"), lags.take("export")) == (0.7, 0.0)
    lags.late(0.2)
    assert (lags.take("export"), lags.take("scrape")) == (0.2, 0.7)


def test_a_drain_that_takes_long_makes_the_next_one_late(
    watch: SelfWatch, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[float] = []
    monkeypatch.setattr(watch._lags, "late", late.append)
    watch.turned(clock.now, [])
    began = clock.now = clock.now + 0.2
    clock.now += 5  # it takes so long
    watch.turned(began, [])
    watch.turned(clock.now, [])
    assert late == pytest.approx([0.0, 4.8])


def test_a_probe_of_a_loop_that_stands_hears_where(watch: SelfWatch, clock: Clock) -> None:
    clock.now += STALLED_SECONDS + 1
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(watch.not_live()))
    names = iter(lambda: (thread.start(), thread.join()), None)
    thread_runs_in(names)
    assert found and found[0].endswith("in takes_its_time of imagined, line 2")


def thread_runs_in(steps: Any) -> None:
    """The next of ``steps`` under a function that looks like one of the program's."""
    place: dict[str, Any] = {"__name__": "otelgpu.imagined"}
    exec("def takes_its_time(steps):\n    next(steps)\n", place)
    place["takes_its_time"](steps)
