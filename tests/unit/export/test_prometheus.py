"""Prometheus text: what a real parser reads of it is what OTLP said."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from prometheus_client.parser import text_string_to_metric_families

from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.prometheus_names import metric_name
from otelgpu.export.prometheus import exposition
from otelgpu.model.resource import resource

OWN = resource({"service.name": "otelgpu", "process.pid": 7})


def a_metric(name: str, unit: str, instrument: Instrument, **rest: Any) -> Metric:
    return Metric(
        name=name, unit=unit, instrument=instrument, description='What "it" is\nin \\ words.', **rest
    )


def parsed(data: MetricsData) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(exposition(data).decode())}


def reported(metric: Metric, labels: dict[str, str | int], value: float) -> Any:
    metrics = Metrics(0)
    if metric.instrument is Instrument.HISTOGRAM:
        metrics.add(metric, "s", OWN, labels, value)
    else:
        metrics.set(metric, "s", OWN, labels, value)
    return parsed(metrics.read(1)[0])


@pytest.mark.parametrize(
    ("name", "unit", "instrument", "there"),
    [
        ("process.cpu.time", "s", Instrument.COUNTER, "process_cpu_time_seconds_total"),
        ("otelgpu.records", "{record}", Instrument.COUNTER, "otelgpu_records_total"),
        ("process.memory.usage", "By", Instrument.UP_DOWN_COUNTER, "process_memory_usage_bytes"),
        ("a.ratio", "1", Instrument.GAUGE, "a_ratio"),
        ("a.share", "1", Instrument.GAUGE, "a_share_ratio"),
        ("a..b-c", "", Instrument.GAUGE, "a_b_c"),
        ("a.seconds", "s", Instrument.GAUGE, "a_seconds"),
        ("a.status", "1", Instrument.UP_DOWN_COUNTER, "a_status"),
        ("a.clock", "Hz", Instrument.GAUGE, "a_clock_hertz"),
        ("a.total", "{x}", Instrument.COUNTER, "a_total"),
        ("a.rate", "By/s", Instrument.GAUGE, "a_rate_bytes_per_second"),
    ],
)
def test_a_metric_has_the_name_that_the_specification_gives_it(
    name: str, unit: str, instrument: Instrument, there: str
) -> None:
    assert metric_name(name, unit, instrument) == there
    found = reported(a_metric(name, unit, instrument), {}, 5)
    assert there.removesuffix("_total") in found


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20))
def test_any_label_value_comes_back(value: str) -> None:
    found = reported(a_metric("m", "", Instrument.GAUGE), {"a.key": value}, 1)
    assert found["m"].samples[0].labels == {"a_key": value}


def test_values_types_and_help_come_back() -> None:
    counter = reported(a_metric("c", "s", Instrument.COUNTER, whole=False), {"k": 3}, 2.5)["c_seconds"]
    assert (counter.type, counter.samples[0].value, counter.samples[0].labels) == ("counter", 2.5, {"k": "3"})
    assert counter.documentation == 'What "it" is\nin \\ words.'
    assert reported(a_metric("g", "", Instrument.GAUGE), {}, float("inf"))["g"].samples[0].value == float(
        "inf"
    )
    assert reported(a_metric("g", "", Instrument.GAUGE), {}, 1e-7)["g"].samples[0].value == 1e-7


def test_buckets_add_up_as_prometheus_has_them() -> None:
    metrics = Metrics(0)
    histogram = a_metric("h", "s", Instrument.HISTOGRAM, buckets=(0.1, 1.0))
    metrics.add(histogram, "s", OWN, {"k": "v"}, [0.05, 0.1, 0.5, 7.0])
    found = parsed(metrics.read(1)[0])["h_seconds"]
    assert found.type == "histogram"
    assert [(s.name, s.labels.get("le"), s.value) for s in found.samples] == [
        ("h_seconds_bucket", "0.1", 2.0),
        ("h_seconds_bucket", "1.0", 3.0),
        ("h_seconds_bucket", "+Inf", 4.0),
        ("h_seconds_sum", None, 7.65),
        ("h_seconds_count", None, 4.0),
    ]


def test_the_resource_is_target_info() -> None:
    info = reported(a_metric("m", "", Instrument.GAUGE), {}, 1)["target_info"].samples[0]
    assert (info.labels, info.value) == ({"service_name": "otelgpu", "process_pid": "7"}, 1.0)


def test_keys_that_become_one_label_are_reported_together() -> None:
    found = reported(a_metric("m", "", Instrument.GAUGE), {"a.b": "1", "a_b": "2", "0c": "3"}, 1)
    assert found["m"].samples[0].labels == {"a_b": "1;2", "key_0c": "3"}
