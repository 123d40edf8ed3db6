"""Prometheus has every series as it was sent through a Collector; PromQL gives the latencies that the server logged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any, Final, NamedTuple

import pytest

from examples.llm_server.client import Load, run
from tests.backends.engine_session import OTELGPU
from tests.backends.prometheus import Prometheus
from tests.backends.sessions import GOLDEN, send
from tests.rig import start_llm_server
from tests.rig.metrics import metrics_reported
from tests.rig.spans import attributes_of

REQUESTS: Final = 12
TIME_TO_FIRST_TOKEN: Final = "gen_ai_server_time_to_first_token_seconds"
UNITS: Final = {"s": "_seconds", "By": "_bytes"}


class Series(NamedTuple):
    """A series as Prometheus has it; ``le`` is among the labels of a bucket."""

    name: str
    labels: dict[str, str]
    value: float


def test_prometheus_has_every_series_as_it_was_sent(prometheus: Prometheus, tmp_path: Path) -> None:
    send(GOLDEN / "llm_session.capture", prometheus.destination, folder=tmp_path)
    points = read_points(tmp_path / "own.jsonl")
    end_s = time_of(points)
    reported: dict[str, list[tuple[dict[str, str], float]]] = {}
    for labels, value in prometheus.query('{__name__=~".+"}', end_s):
        if "le" in labels:
            labels["le"] = str(float(labels["le"]))  # it is a number, however it is written
        reported.setdefault(labels["__name__"], []).append((labels, value))
    reported.pop("target_info")
    expected = [series for point in points for series in series_of(*point)]
    assert len(expected) == sum(map(len, reported.values()))
    for name, labels, value in expected:
        found = [one for has, one in reported.get(name, ()) if labels.items() <= has.items()]
        assert found == pytest.approx([value], rel=1e-12), (name, labels, reported.get(name))


def test_promql_gives_the_time_to_first_token_that_the_server_logged(
    prometheus: Prometheus, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to observe the server")
    logged = record_requests(tmp_path / "llm.capture")
    spans = send(tmp_path / "llm.capture", prometheus.destination, folder=tmp_path)
    end_s = time_of(read_points(tmp_path / "own.jsonl"))
    ((labels, average),) = prometheus.query(f"{TIME_TO_FIRST_TOKEN}_sum / {TIME_TO_FIRST_TOKEN}_count", end_s)
    assert {labels["instance"]} == {span["resource"]["service.instance.id"] for span in spans}
    # On a machine that shares its cores the server's log, which begins when it has read the request, differs.
    assert average == pytest.approx(mean(logged), rel=0.2)
    buckets = f"sum by (le) ({TIME_TO_FIRST_TOKEN}_bucket)"
    bounds = sorted(float(labels["le"]) for labels, _ in prometheus.query(buckets, end_s))
    ((_, middle),) = prometheus.query(f"histogram_quantile(0.5, {buckets})", end_s)
    upper = next(bound for bound in bounds if median(logged) <= bound)
    assert max((bound for bound in bounds if bound < upper), default=0) <= middle <= upper

    exemplars = prometheus.exemplars(f"{TIME_TO_FIRST_TOKEN}_bucket", end_s - 600, end_s + 600)
    latencies = {
        span["spanId"]: span["attributes"].get("gen_ai.latency.time_to_first_token") for span in spans
    }
    assert exemplars
    assert all(float(one["value"]) == latencies[one["labels"]["span_id"]] for one in exemplars)


def record_requests(capture: Path) -> list[float]:
    """Observe the example server; the times to first token that it logged, some 180 ms each, in seconds."""
    command = (str(OTELGPU), "record", "-o", str(capture), f"--export=file:{capture}.jsonl", "--")
    with start_llm_server(env={"FAKE_CUDART_KERNEL_US": "7000"}, prefix=command) as server:
        load = Load(url=server.url, requests=REQUESTS, concurrency=2, max_tokens=2)
        assert not [outcome.error for outcome in run(load) if outcome.error]
        return [line["ttft_s"] for line in server.truth(REQUESTS)]


Point = tuple[dict[str, Any], dict[str, str], dict[str, Any]]


def read_points(path: Path) -> list[Point]:
    """The data points of an OTLP JSON lines file: the metric, the labels, the point."""
    found = []
    for metric, described, points in metrics_reported(path):
        for point in points:
            labels = attributes_of(point) | {"job": described["service.name"]}
            texts = {key.replace(".", "_"): str(value) for key, value in labels.items()}
            found.append((metric, texts, point))
    return found


def time_of(points: list[Point]) -> float:
    """When the last of them was made: Unix seconds."""
    return max(int(point["timeUnixNano"]) for _, _, point in points) / 1e9


def series_of(metric: dict[str, Any], labels: dict[str, str], point: dict[str, Any]) -> Iterator[Series]:
    """What Prometheus makes of a data point, as its documentation of OTLP says."""
    name = metric["name"].replace(".", "_")
    unit = UNITS.get(metric.get("unit", ""), "")
    name += "" if name.endswith(unit) else unit
    if "histogram" in metric:
        yield Series(f"{name}_count", labels, float(point["count"]))
        yield Series(f"{name}_sum", labels, point["sum"])
        total = 0
        for bound, count in zip([*point["explicitBounds"], float("inf")], point["bucketCounts"], strict=True):
            total += int(count)
            yield Series(f"{name}_bucket", labels | {"le": str(float(bound))}, float(total))
    else:
        value = float(point["asDouble"] if "asDouble" in point else point["asInt"])
        yield Series(name + ("_total" if metric.get("sum", {}).get("isMonotonic") else ""), labels, value)
