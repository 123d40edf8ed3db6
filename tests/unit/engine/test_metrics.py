"""Cumulative series in columns: the same numbers as opentelemetry-sdk, one measurement at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

from otelgpu.engine import metrics as module
from otelgpu.engine import registry
from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.operation_metrics import OperationMeter, parts_of
from otelgpu.model.context import Context
from otelgpu.model.operations import CopyDirection, OperationKind
from otelgpu.model.resource import resource
from otelgpu.model.settings import SignalSettings
from tests.rig.examples import examples
from tests.unit.families.records import btf
from tests.unit.model.builders import LLM, calls

BOUNDS = (0.0, 1.0, 2.5, 10.0)
START, NOW = 1_000, 5_000


def histogram(name: str = "h", buckets: tuple[float, ...] = BOUNDS) -> Metric:
    return Metric(name=name, unit="s", instrument=Instrument.HISTOGRAM, description="d", buckets=buckets)


def counter(name: str = "c") -> Metric:
    return Metric(name=name, unit="By", instrument=Instrument.COUNTER, description="d")


def points(metrics: Metrics) -> dict[str, list[Any]]:
    """Metric name → data points."""
    data, count = metrics.read(NOW)
    found: dict[str, list[Any]] = {}
    for part in data.resource_metrics:
        for m in (m for scope in part.scope_metrics for m in scope.metrics):
            found.setdefault(m.name, []).extend((m.sum if m.HasField("sum") else m.histogram).data_points)
    assert count == sum(map(len, found.values()))
    return found


def by_sdk(values: list[float]) -> Any:
    """The SDK's one data point for the same measurements."""
    reader = InMemoryMetricReader()
    view = View(instrument_name="h", aggregation=ExplicitBucketHistogramAggregation(BOUNDS))
    instrument = MeterProvider([reader], views=[view]).get_meter("m").create_histogram("h")
    for value in values:
        instrument.record(value)
    (point,) = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    return point


measurements = st.lists(
    st.sampled_from([0.0, 0.5, 1.0, 2.5, 2.500001, 10.0, 1e9]) | st.floats(0, 100), min_size=1, max_size=30
)


@examples(40)
@given(measurements, st.data())
def test_a_histogram_is_that_of_the_sdk(values: list[float], data: st.DataObject) -> None:
    metrics, cut = Metrics(START), data.draw(st.integers(0, len(values)))
    for part in (values[:cut], values[cut:]):
        metrics.add(histogram(), "scope", LLM, {}, np.array(part))
    ((point,), theirs) = (points(metrics)["h"], by_sdk(values))
    assert list(point.bucket_counts) == list(theirs.bucket_counts)
    assert list(point.explicit_bounds) == list(theirs.explicit_bounds)
    assert (point.count, point.min, point.max) == (theirs.count, theirs.min, theirs.max)
    assert point.sum == pytest.approx(theirs.sum)


@given(st.lists(st.lists(st.integers(0, 2**40), max_size=5), max_size=10))
def test_a_counter_is_the_exact_sum(parts: list[list[int]]) -> None:
    metrics = Metrics(START)
    metrics.add(counter(), "scope", LLM, {}, 0)
    for part in parts:
        metrics.add(counter(), "scope", LLM, {}, np.array(part, dtype=np.uint64))
    (point,) = points(metrics)["c"]
    assert point.as_int == sum(map(sum, parts))


def test_a_counter_of_time_adds_up_nanoseconds_and_is_exported_in_seconds() -> None:
    """A sum of a tenth of a second in doubles, ten thousand times over, would be 1000.0000000001588."""
    metrics, time = Metrics(START), replace(counter(), unit="s", per_unit=1_000_000_000)
    for _ in range(5_000):
        metrics.add(time, "scope", LLM, {}, np.array([100_000_000], dtype=np.int64))
        metrics.add(time, "scope", LLM, {}, 100_000_000)
    (point,) = points(metrics)["c"]
    assert point.WhichOneof("value") == "as_double"
    assert point.as_double == metrics.value("c") == 1000.0


def test_points_say_since_when_and_until_when() -> None:
    metrics = Metrics(START)
    metrics.add(counter(), "scope", LLM, {}, 1)
    (point,) = points(metrics)["c"]
    assert (point.start_time_unix_nano, point.time_unix_nano) == (START, NOW)


def test_sums_are_cumulative_and_monotonic() -> None:
    metrics = Metrics(START)
    metrics.add(counter(), "scope", LLM, {}, 3)
    metrics.add(histogram(), "scope", LLM, {}, 3.0)
    data, _ = metrics.read(NOW)
    sums, histograms = data.resource_metrics[0].scope_metrics[0].metrics
    assert (sums.sum.aggregation_temporality, sums.sum.is_monotonic) == (2, True)
    assert (histograms.histogram.aggregation_temporality, histograms.unit) == (2, "s")


def test_series_are_kept_apart_by_labels_resource_and_name() -> None:
    metrics, other = Metrics(START), resource({"service.name": "other"})
    for labels in ({"a": 1, "b": "x"}, {"b": "x", "a": 1}, {"a": 2}):
        metrics.add(counter(), "scope", LLM, labels, 1)
    metrics.add(counter(), "scope", other, {"a": 1}, 10)
    assert [p.as_int for p in points(metrics)["c"]] == [2, 1, 10]
    assert (metrics.value("c", LLM), metrics.value("c", a=1), metrics.value("c", b="x")) == (3, 12, 2)


def test_scopes_and_resources_appear_once() -> None:
    metrics = Metrics(START)
    for name in ("a", "b"):
        metrics.add(counter(name), "one", LLM, {}, 1)
    metrics.add(counter("c"), "two", LLM, {}, 1)
    data, _ = metrics.read(NOW)
    (part,) = data.resource_metrics
    assert [(s.scope.name, [m.name for m in s.metrics]) for s in part.scope_metrics] == [
        ("one", ["a", "b"]),
        ("two", ["c"]),
    ]


def test_series_beyond_the_bound_overflow_into_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIES_PER_METRIC", 3)
    metrics = Metrics(START)
    for i in range(10):
        metrics.add(counter(), "scope", LLM, {"id": i}, 1)
    metrics.add(counter(), "scope", LLM, {"id": 1}, 1)
    found = points(metrics)["c"]
    assert [p.as_int for p in found] == [1, 2, 1, 7]
    (attribute,) = found[-1].attributes
    assert (attribute.key, attribute.value.bool_value) == ("otel.metric.overflow", True)


def test_nobody_takes_the_series_of_others() -> None:
    metrics, victim = Metrics(START, capacity=300), resource({"service.name": "victim"})
    attackers = [resource({"service.name": "attacker", "process.pid": i}) for i in range(50)]
    for i, attacker in enumerate(attackers):
        metrics.charge(attacker, i, "container attacker")
        for j in range(100):
            metrics.add(counter(), "scope", attacker, {"id": j}, 1)
    metrics.charge(victim, 100, "container victim")
    for i in range(25):
        metrics.add(counter(), "scope", victim, {"id": i}, 1)
    assert [metrics.value("c", victim, id=i) for i in range(25)] == [1] * 25
    assert len(points(metrics)["c"]) <= 300
    refused, dropped = metrics.counters["series_refused"], metrics.counters["series_dropped"]
    in_overflow = metrics.value("c", **{"otel.metric.overflow": True})
    assert in_overflow == refused > 0
    assert metrics.value("c") + dropped == 50 * 100 + 25
    ((process, container), _), *_ = metrics.refused.due(1 << 62)
    assert (process in range(50), container) == (True, "container attacker")


def test_a_process_alone_has_half_of_all_series_and_gives_them_back() -> None:
    metrics = Metrics(START, capacity=300)
    metrics.charge(LLM, 7, "container a")
    for _ in range(3):
        for i in range(200):
            metrics.add(counter(), "scope", LLM, {"id": i}, 1)
        assert len(points(metrics)["c"]) == 150  # that of all beyond is one, and the table's
        metrics.forget([LLM])
        metrics.charge(LLM, 7, "container a")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 40)), max_size=200))
def test_series_that_are_gone_are_free_again(steps: list[tuple[int, int, int]]) -> None:
    metrics = Metrics(START, capacity=60)
    resources = [resource({"service.name": "x", "process.pid": i}) for i in range(3)]
    gauge = Metric(name="g", unit="1", instrument=Instrument.GAUGE, description="")
    for action, who, number in steps:
        owner = resources[who]
        match action:
            case 0:
                metrics.charge(owner, who, f"container {who % 2}")
            case 1:
                metrics.add(counter(), "scope", owner, {"id": number}, 1)
            case 2:
                metrics.set(gauge, "scope", owner, {"id": number}, 1.0)
            case 3:
                metrics.unset(gauge, owner, {"id": number} if number % 3 else None)
            case 4:
                metrics.rename(owner, resources[number % 3])
            case 5:
                metrics.forget([owner])
        assert metrics.read(NOW)[1] <= 60
    metrics.forget(resources)
    metrics.charge(LLM, 7, "container a")
    for i in range(60):
        metrics.add(counter(), "scope", LLM, {"id": i}, 1)
    assert len(points(metrics)["c"]) == 30


def test_what_this_program_reports_of_itself_is_in_no_share() -> None:
    metrics = Metrics(START, LLM, capacity=10)
    for i in range(100):
        metrics.add(counter(), "scope", LLM, {"id": i}, 1)
    assert len(points(metrics)["c"]) == 100


def test_an_empty_column_makes_no_series() -> None:
    metrics = Metrics(START)
    metrics.add(histogram(), "scope", LLM, {}, np.zeros(0))
    assert points(metrics).get("h", []) == []


def test_a_resource_that_is_forgotten_is_reported_no_more() -> None:
    metrics = Metrics(START)
    metrics.add(counter(), "scope", LLM, {}, 1)
    metrics.forget([LLM])
    assert points(metrics) == {}


# -- from operations --------------------------------------------------------------------------------


def measured(**columns: Any) -> Metrics:
    """Metrics of family cuda from calls with these columns."""
    family = registry.families()["cuda"]
    assert family.operations is not None
    metrics = Metrics(START)
    rows = calls(len(next(iter(columns.values()))), **columns)
    decoder = family.operations.decoder(btf("cuda"), SignalSettings())
    meter = OperationMeter(
        metrics, [(decoder, family.operations.signals)], lambda tgid: resource({"process.pid": tgid})
    )
    meter.measure(parts_of(rows, 0)[1])
    return metrics


def api(name: str) -> int:
    return btf("cuda").enumerators("cuda_api")[f"API_{name}"]


def test_launches_are_counted_per_process() -> None:
    metrics = measured(tgid=[100, 100, 200])
    assert metrics.value("gpu.cuda.kernel.launch.calls", resource({"process.pid": 100})) == 2
    assert metrics.value("gpu.cuda.kernel.launch.calls", resource({"process.pid": 200})) == 1


def test_grid_and_block_sizes_are_products() -> None:
    metrics = measured(grid=[(65535, 65535, 64)], block=[(32, 8, 2)])
    assert metrics.value("gpu.cuda.kernel.grid.size") == 65535 * 65535 * 64
    assert metrics.value("gpu.cuda.kernel.block.size") == 512


def test_waits_are_counted_by_what_is_waited_for() -> None:
    apis = [api(f"cuda{what}Synchronize") for what in ("Stream", "Device", "Device", "Event")]
    metrics = measured(kind=[OperationKind.SYNCHRONIZATION] * 4, api=apis, duration_ns=[10**9] * 4)
    counts = [metrics.value(f"gpu.cuda.{what}.synchronize.calls") for what in ("stream", "device", "event")]
    assert (counts, metrics.value("gpu.cuda.synchronize.duration")) == ([1, 2, 1], 4.0)


def test_a_function_that_has_no_name_is_of_no_metric_that_names_functions() -> None:
    metrics = measured(
        kind=[OperationKind.SYNCHRONIZATION] * 2, api=[1 << 15, 65535], duration_ns=[10**9] * 2
    )
    counts = [metrics.value(f"gpu.cuda.{what}.synchronize.calls") for what in ("stream", "device", "event")]
    assert (counts, metrics.value("gpu.cuda.synchronize.duration")) == ([0, 0, 0], 2.0)


def test_copies_are_reported_apart_by_direction() -> None:
    directions = [CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST, CopyDirection.UNKNOWN]
    metrics = measured(kind=[OperationKind.COPY] * 3, direction=directions, size_bytes=[1, 20, 300])
    sizes = [
        metrics.value("gpu.cuda.memory.copies", **{"cuda.memcpy.kind": kind})
        for kind in ("MemcpyHostToDevice", "MemcpyDeviceToHost", "unknown")
    ]
    assert sizes == [1, 20, 300]


def test_failed_calls_count_as_errors_only() -> None:
    metrics = measured(status=[0, 2, 98, 98], returned=[1, 1, 1, 0])
    assert metrics.value("gpu.cuda.kernel.launch.calls") == 2  # the one of unknown result is not failed
    assert metrics.value("gpu.cuda.errors", **{"error.type": "cudaErrorMemoryAllocation"}) == 1
    assert metrics.value("gpu.cuda.errors") == 2


@pytest.mark.parametrize("instrument", [Instrument.COUNTER, Instrument.UP_DOWN_COUNTER, Instrument.GAUGE])
def test_a_number_beyond_what_otlp_holds_stands_at_the_most(instrument: Instrument) -> None:
    metrics = Metrics(0)
    metric = Metric(name="m", unit="By", instrument=instrument, description="")
    if instrument is Instrument.COUNTER:
        for _ in range(3):
            metrics.add(metric, "s", LLM, {}, (1 << 62) + 1)
    else:
        metrics.set(metric, "s", LLM, {}, 1 << 63)
    (message,) = metrics.read(5)[0].resource_metrics[0].scope_metrics[0].metrics
    (point,) = getattr(message, message.WhichOneof("data")).data_points
    assert point.as_int == (1 << 63) - 1


def test_a_gauge_that_is_reported_no_more_leaves_no_empty_metric() -> None:
    metrics = Metrics(0)
    metric = Metric(name="m", unit="By", instrument=Instrument.GAUGE, description="")
    metrics.set(metric, "s", LLM, {}, 1)
    metrics.unset(metric, LLM)
    data, points = metrics.read(5)
    assert (len(data.resource_metrics), points) == (0, 0)


# -- exemplars --------------------------------------------------------------------------------------


def test_a_bucket_names_its_newest_sampled_span_until_it_is_read() -> None:
    metrics, reported = Metrics(START), [Context(bytes([i]) * 16, bytes([i]) * 8, 1) for i in range(4)]
    values = [0.5, 0.6, 2.0, 99.0]
    metrics.add(histogram(), "s", LLM, {"a": "b"}, np.array(values))
    spans = [(reported[0], 10), (reported[1], 11), None, (reported[3], 13)]  # the third is not sampled
    metrics.exemplify(histogram(), LLM, {"a": "b"}, values, spans)
    metrics.exemplify(histogram(), LLM, {"a": "other series"}, values, spans)
    (point,) = points(metrics)["h"]
    found = [(e.as_double, e.time_unix_nano, e.trace_id, e.span_id) for e in point.exemplars]
    assert found == [
        (0.6, 11, reported[1].trace_id, reported[1].span_id),
        (99.0, 13, reported[3].trace_id, reported[3].span_id),
    ]
    assert not points(metrics)["h"][0].exemplars


@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(1, 9))
def test_parts_are_the_whole(sizes: list[int], most: int) -> None:
    metrics = Metrics(START)
    for number, size in enumerate(sizes):
        for label in range(size):
            owner = resource({"process.pid": number % 3})
            metrics.add(histogram(f"h{number}"), "s", owner, {"label": label}, [float(label)])
    whole = metrics.read(NOW)[0]
    parts = list(metrics.parts(lambda: NOW, most=most))
    assert all(0 < count <= most for _, count in parts)
    assert [count for _, count in parts] == [len(list(flat(data))) for data, _ in parts]
    assert sorted(point for data, _ in parts for point in flat(data)) == sorted(flat(whole))


def flat(data: Any) -> Iterator[tuple[bytes, str, str, bytes]]:
    """Resource, scope, metric and point of each point."""
    for owner in data.resource_metrics:
        for scope in owner.scope_metrics:
            for metric in scope.metrics:
                for point in getattr(metric, metric.WhichOneof("data")).data_points:
                    yield (
                        owner.resource.SerializeToString(),
                        scope.scope.name,
                        metric.name,
                        point.SerializeToString(),
                    )


def test_a_part_is_of_its_own_time_and_what_changes_between_parts_is_in_one_or_none() -> None:
    metrics, now = Metrics(START), iter([NOW, NOW + 7])
    gone, stays = resource({"process.pid": 1}), resource({"process.pid": 2})
    metrics.add(counter("a"), "s", gone, {}, 3)
    metrics.add(counter("b"), "s", stays, {}, 4)
    metrics.add(counter("c"), "s", stays, {}, 5)
    parts = metrics.parts(lambda: next(now), departed={gone}, most=1)
    (first,) = flat(next(parts)[0])
    assert first[2] == "b", "what departs comes last: it may be added to until then"
    metrics.rename(stays, resource({"process.pid": 2, "more": "known"}))
    metrics.add(counter("a"), "s", gone, {}, 30)
    (last,) = next(parts)[0].resource_metrics[0].scope_metrics[0].metrics
    assert (last.name, last.sum.data_points[0].as_int, last.sum.data_points[0].time_unix_nano) == (
        "a",
        33,
        NOW + 7,
    )
    assert next(parts, None) is None
    assert metrics.value("a") == 0, "it was forgotten"
    assert metrics.value("c") == 5


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["a", "b"]), st.integers(0, 12)), max_size=20),
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["a", "b"]), st.integers(0, 12)), max_size=20),
)
def test_what_is_renamed_to_what_there_is_is_added_to_it(
    first: list[tuple[int, str, int]], then: list[tuple[int, str, int]]
) -> None:
    """Also by who keeps a series of either; and none is counted twice, in the share neither."""
    before, after = resource({"process.pid": 1}), resource({"process.pid": 1, "service.name": "known"})
    metrics, whole = Metrics(START), Metrics(START)
    kept: dict[tuple[int, str], Any] = {}

    def report(reported: list[tuple[int, str, int]]) -> None:
        for whose, label, value in reported:
            owner, labels = (before, after)[whose], {"l": label}
            if (whose, label) not in kept:
                kept[whose, label] = metrics.growing(counter("kept"), "s", owner, labels)
            kept[whose, label].grow(value)
            metrics.add(counter(), "s", owner, labels, value)
            metrics.add(histogram(), "s", owner, labels, [float(value), 1.0])
            whole.growing(counter("kept"), "s", after, labels).grow(value)
            whole.add(counter(), "s", after, labels, value)
            whole.add(histogram(), "s", after, labels, [float(value), 1.0])

    report(first)
    metrics.rename(before, after)
    report(then)
    for name in ("kept", "c", "h"):
        assert sorted(map(str, points(metrics).get(name, []))) == sorted(
            map(str, points(whole).get(name, []))
        )
    metrics.forget([after])
    assert metrics._pool.held == 0


def test_of_a_level_what_the_fuller_name_reported_is_kept() -> None:
    gauge = Metric(name="g", unit="1", instrument=Instrument.GAUGE, description="d")
    before, after = resource({"process.pid": 1}), resource({"process.pid": 1, "service.name": "known"})
    metrics = Metrics(START)
    metrics.set(gauge, "s", before, {}, 7)
    metrics.set(gauge, "s", before, {"l": "a"}, 8)
    metrics.set(gauge, "s", after, {}, 9)
    metrics.rename(before, after)
    assert (metrics.value("g", after), metrics.value("g", after, l="a")) == (17, 8)
