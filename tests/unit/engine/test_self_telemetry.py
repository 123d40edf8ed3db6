"""What the program reports of itself: as it stands at each reading, and counts that never go back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from otelgpu.engine import self_telemetry as table
from otelgpu.engine.metric import Metric
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.self_telemetry import PROCESSES_REPORTED, AgentStats, Cost, SelfMetrics
from otelgpu.model.resource import resource
from otelgpu.model.self_telemetry import ATTEMPT_SECONDS, Attachment, Delivery, Durations, RingFill

OWN = resource({"service.name": "otelgpu"})
COST = Cost(user_s=1.25, system_s=0.5, resident_bytes=4096, descriptors=7, threads=3)
TRACES = Delivery(
    kind="otlp_http_span_exporter",
    metrics=False,
    accepted=100,
    queued=5,
    lost={"queue_full": 3, "refused": 0},
    address=("collector", 4318),
    queued_bytes=50,
    queue_limit_bytes=1000,
    sent_bytes=400,
    retries=2,
    attempts={"": Durations(counts=[1] + [0] * len(ATTEMPT_SECONDS), total_s=0.001)},
    failing_s=12.0,
)


def stats(
    deliveries: Sequence[tuple[int, Delivery]] = (),
    attachments: Sequence[tuple[int, Attachment]] = (),
    rings: dict[str, RingFill] | None = None,
) -> AgentStats:
    return AgentStats(
        uptime_s=9.0,
        lag_s=0.4,
        cost=COST,
        rings=rings or {},
        tracked={"process": 4},
        attachments=attachments,
        deliveries=deliveries,
        reloads={"applied": 1},
    )


class Reported:
    def __init__(self) -> None:
        self.metrics = Metrics(0)
        self.self_metrics = SelfMetrics(self.metrics, OWN)

    def publish(self, reading: AgentStats) -> None:
        self.self_metrics.publish(reading)

    def series(self, metric: Metric) -> dict[tuple[tuple[str, str | int], ...], float]:
        found = self.metrics._tables.get((OWN, metric.name))
        return {labels: series.total for labels, series in found.series.items()} if found else {}

    def value(self, metric: Metric, **labels: str | int) -> float:
        return self.metrics.value(metric.name, OWN, **labels)


@pytest.fixture
def reported() -> Reported:
    return Reported()


def test_what_stands_is_reported_as_it_stands(reported: Reported) -> None:
    reported.publish(stats(rings={"cuda": RingFill(high_water=70, limit=100)}))
    assert reported.value(table.CPU_TIME, **{"cpu.mode": "user"}) == 1.25
    assert reported.value(table.MEMORY) == 4096
    assert reported.value(table.UPTIME) == 9.0
    assert reported.value(table.RING_HIGH_WATER, **{"otelgpu.family": "cuda"}) == 70
    assert reported.value(table.TRACKED_THINGS, **{"otelgpu.tracked.type": "process"}) == 4
    assert reported.value(table.RELOADS, **{"otelgpu.reload.outcome": "applied"}) == 1


def test_a_sum_with_a_fraction_is_exported_with_it(reported: Reported) -> None:
    reported.publish(stats())
    data, _ = reported.metrics.read(1)
    (scope,) = data.resource_metrics[0].scope_metrics
    points = next(m for m in scope.metrics if m.name == "process.cpu.time").sum.data_points
    assert [point.as_double for point in points] == [1.25, 0.5]


def test_items_are_accepted_or_lost_for_a_reason_or_in_flight(reported: Reported) -> None:
    reported.publish(stats([(0, TRACES)]))
    where = {"otel.component.name": "otlp_http_span_exporter/0", "server.address": "collector"}
    assert reported.value(table.SPANS_EXPORTED, **where) == 103  # whatever became of them
    assert reported.value(table.SPANS_EXPORTED, **where, **{"error.type": "queue_full"}) == 3
    assert not reported.value(table.SPANS_EXPORTED, **where, **{"error.type": "refused"})
    assert reported.value(table.SPANS_IN_FLIGHT, **where) == 5
    assert reported.value(table.QUEUE_USAGE, **where) == 50
    assert reported.value(table.FAILING, **where) == 12.0
    assert not reported.series(table.POINTS_EXPORTED)


def test_counts_go_on_where_a_destination_was_replaced(reported: Reported) -> None:
    reported.publish(stats([(0, TRACES)]))
    new = replace(TRACES, accepted=1, queued=0, lost={}, retries=0, failing_s=0.0)
    reported.publish(stats([(0, new), (0, TRACES.retired())]))
    assert reported.value(table.SPANS_EXPORTED) == 104
    assert reported.value(table.RETRIES) == 2
    assert reported.value(table.QUEUE_LIMIT) == 1000  # of the one that takes something
    assert reported.value(table.FAILING) == 0


def test_spans_and_data_points_of_one_destination_are_reported_apart(reported: Reported) -> None:
    spans = Delivery(kind="file", metrics=False, accepted=3, queued=0, lost={})
    reported.publish(stats([(0, spans), (0, replace(spans, metrics=True, accepted=70))]))
    assert reported.value(table.SPANS_EXPORTED) == 3
    assert reported.value(table.POINTS_EXPORTED) == 70


def test_attempts_are_counted_once_however_often_they_are_read(reported: Reported) -> None:
    for _ in range(3):
        reported.publish(stats([(0, TRACES)]))
    more = Durations(counts=[2] + [0] * len(ATTEMPT_SECONDS), total_s=0.003)
    reported.publish(stats([(0, replace(TRACES, attempts={"": more, "transient": more}))]))
    assert reported.value(table.ATTEMPTS, **{"error.type": "transient"}) == pytest.approx(0.003)
    assert reported.value(table.ATTEMPTS) == pytest.approx(0.006)
    histogram = reported.metrics._tables[OWN, table.ATTEMPTS.name].series
    assert sorted(series.count for series in histogram.values()) == [2, 2]


def test_libraries_are_reported_by_process_and_state(reported: Reported) -> None:
    reported.publish(stats(attachments=[(7, Attachment(executable="vllm", attached=2, failed=1))]))
    assert reported.series(table.PROCESS_LIBRARIES) == {
        (("otelgpu.attach.state", state), ("process.executable.name", "vllm"), ("process.pid", 7)): count
        for state, count in (("attached", 2), ("failed", 1))
    }
    reported.publish(stats())
    assert not reported.series(table.PROCESS_LIBRARIES)  # it ended


def test_a_crowd_of_processes_is_reported_together(reported: Reported) -> None:
    crowd = [(1 + n, Attachment(executable="x", attached=1)) for n in range(PROCESSES_REPORTED + 40)]
    reported.publish(stats(attachments=crowd))
    assert len(reported.series(table.PROCESS_LIBRARIES)) == PROCESSES_REPORTED + 1
    assert reported.value(table.PROCESS_LIBRARIES, **{"process.pid": 0}) == 40
    assert reported.value(table.PROCESS_LIBRARIES) == PROCESSES_REPORTED + 40


def test_turns_of_the_loop_are_counted(reported: Reported) -> None:
    reported.self_metrics.turned(None, 0.01)
    reported.self_metrics.turned(0.2, 0.03)
    assert reported.value(table.DRAIN_INTERVAL) == pytest.approx(0.2)
    assert reported.value(table.DRAIN_DURATION) == pytest.approx(0.04)


def test_the_table_has_every_metric_of_the_module() -> None:
    defined = {value.name for value in vars(table).values() if isinstance(value, Metric)}
    assert defined == {metric.name for metric, _ in table.SELF_METRICS}


def test_every_attribute_that_is_reported_is_in_the_table(reported: Reported) -> None:
    reported.self_metrics.count_records("cuda", "cuda_call", 3)
    reported.self_metrics.turned(1.0, 1.0)
    points = replace(TRACES, metrics=True, attempts={"refused": Durations()})
    attachments = [(7, Attachment(executable="x", attached=1))]
    reported.publish(
        stats([(0, TRACES), (1, points)], attachments, {"cuda": RingFill(high_water=1, limit=2)})
    )
    keys = {metric.name: set(keys) for metric, keys in table.SELF_METRICS}
    for (_, name), found in reported.metrics._tables.items():
        assert {key for labels in found.series for key, _ in labels} <= keys[name], name
