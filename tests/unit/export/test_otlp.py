"""Metrics payloads: the same bytes as an export request, split between resources."""

from __future__ import annotations

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from otelgpu.export.otlp.exporter import count_points, encode_metrics


def data(resources: int) -> MetricsData:
    """Resources with a sum of one point, a histogram of two and a metric without data each."""
    made = MetricsData()
    for _ in range(resources):
        metrics = made.resource_metrics.add().scope_metrics.add().metrics
        metrics.add(name="sum").sum.data_points.add(as_int=1)
        histogram = metrics.add(name="histogram").histogram
        histogram.data_points.add(count=1)
        histogram.data_points.add(count=2)
        metrics.add(name="empty")
    return made


def test_metrics_data_is_an_export_request() -> None:
    (payload,) = encode_metrics(data(3), 9)
    request = ExportMetricsServiceRequest.FromString(payload.body)
    assert list(request.resource_metrics) == list(data(3).resource_metrics)
    assert payload.items == 9


def test_large_metrics_are_split_between_resources() -> None:
    size = data(1).ByteSize()
    payloads = encode_metrics(data(5), 15, max_bytes=2 * size)
    assert [payload.items for payload in payloads] == [6, 6, 3]
    parts = [
        part for p in payloads for part in ExportMetricsServiceRequest.FromString(p.body).resource_metrics
    ]
    assert parts == list(data(5).resource_metrics)


def test_a_resource_that_is_too_large_alone_is_sent_alone() -> None:
    assert [payload.items for payload in encode_metrics(data(2), 6, max_bytes=1)] == [3, 3]


def test_no_metrics_make_no_payload() -> None:
    assert encode_metrics(MetricsData(), 0) == []


def test_points_of_every_type_are_counted() -> None:
    assert count_points(data(1).resource_metrics[0]) == 3
