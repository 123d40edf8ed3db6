"""Each panel of the dashboards, asked of a real Prometheus, answers where the sessions have what it shows."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from tests.backends.collector import Collector, running_collector
from tests.backends.engine_session import OTELGPU, replay
from tests.backends.programs import ChildProcess
from tests.backends.prometheus import Prometheus, missing_prometheus, running_prometheus
from tests.backends.sessions import GOLDEN, SESSIONS
from tests.rig.fakes import BUILD
from tests.unit.families.gpu.devices.nvml_script import EVERYTHING, Script
from tools.dashboards import DASHBOARDS
from tools.dashboards.grafana import Panel

# Without them a counter that is reported once, as of a short session, has no rate.
FEATURES: Final = ("exemplar-storage", "created-timestamp-zero-ingestion")
SESSION: Final = "60s"  # longer than each of them

PANELS: Final = {
    f"{board.uid}: {panel.title}": panel
    for board in DASHBOARDS
    for row in board.rows
    for panel in row.panels
    if isinstance(panel, Panel)
}

WITHOUT: Final = {
    "otelgpu-agent: Libraries with probes",
    "otelgpu-agent: Records read",
    "otelgpu-engine: Model bandwidth utilisation",
    "otelgpu-gpu: Duration of kernels",
    "otelgpu-gpu: Leaks suspected",
    "otelgpu-rdma: Congestion",
    "otelgpu-rdma: Memory registered",
    "otelgpu-requests: Cost of a request",
    "otelgpu-requests: Duration at clients",
    "otelgpu-requests: Duration of gRPC calls",
    "otelgpu-requests: Emissions of a request",
    "otelgpu-requests: Energy of 1,000 output tokens",
    "otelgpu-requests: Energy of a request",
    "otelgpu-requests: Power by what for",
    "otelgpu-requests: Time in the queue",
    "otelgpu-requests: Time to first chunk",
    "otelgpu-requests: Tokens a second",
}
"""Panels about what none of the sessions has: tests/unit/test_dashboards.py compares their names."""


class Stored(NamedTuple):
    """A Prometheus that has all sessions, and when each of them ended (Unix seconds)."""

    prometheus: Prometheus
    ends_s: list[float]

    def series(self, expression: str) -> list[dict[str, str]]:
        """The labels of each series that has a value at the end of a session."""
        asked = expression.replace("$__rate_interval", SESSION).replace("$job", ".+")
        found = [one for end_s in self.ends_s for one in self.prometheus.query(asked, end_s)]
        return [labels for labels, value in found if not math.isnan(value)]


@pytest.fixture(scope="module")
def stored(engine_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    if missing := missing_prometheus():
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("dashboards")
    with running_prometheus(folder, features=FEATURES) as prometheus:
        with running_collector(folder, to=[prometheus.destination]) as collector:
            for capture in (*(GOLDEN / f"{name}.capture" for name in SESSIONS), engine_capture):
                replay(capture, f"otlp:{collector.addresses['http/protobuf']}")
            observe_a_gpu(collector, prometheus, folder)
        yield Stored(prometheus, ends(collector.metrics()))


def observe_a_gpu(collector: Collector, prometheus: Prometheus, folder: Path) -> None:
    """An agent on a machine with a GPU, by the stand-in for NVML, until it has reported it twice."""
    script = Script(folder / "nvml").gpu(**EVERYTHING)
    environment = {
        **os.environ,
        "FAKE_NVML": str(script.path),
        "LD_LIBRARY_PATH": str(BUILD),
        "OTELGPU_METRIC_INTERVAL_MS": "1000",
        "OTELGPU_DEVICE_INTERVAL_MS": "200",
    }
    export = f"--export=otlp:{collector.addresses['http/protobuf']}"
    agent = ChildProcess(
        [OTELGPU, "agent", export, "--executable=/nowhere"], folder / "agent.log", environment
    )
    reports = "count_over_time(hw_power_watts[1m])"
    try:
        agent.wait_until(lambda: any(value >= 2 for _, value in prometheus.query(reports, time.time())))
    finally:
        agent.stop()


def ends(metrics: MetricsData) -> list[float]:
    """When each service was reported last, in Unix seconds."""
    found: dict[str, int] = {}
    for resource in metrics.resource_metrics:
        service = next(
            each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
        )
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            points = getattr(metric, metric.WhichOneof("data") or "gauge").data_points
            found[service] = max(found.get(service, 0), *(point.time_unix_nano for point in points))
    return [end_ns / 1e9 for end_ns in found.values()]


def test_all_panels_answer_but_those_about_what_did_not_happen(stored: Stored) -> None:
    silent = {
        name
        for name, panel in PANELS.items()
        if not any(stored.series(query.expression) for query in panel.queries)
    }
    assert silent == WITHOUT


@pytest.mark.parametrize(
    "panel", [each for each in PANELS.values() if each.exemplars], ids=lambda panel: panel.title
)
def test_exemplars_lead_to_traces(stored: Stored, panel: Panel) -> None:
    asked = panel.queries[0].expression.replace("$__rate_interval", SESSION).replace("$job", ".+")
    found = [
        one for end_s in stored.ends_s for one in stored.prometheus.exemplars(asked, end_s - 600, end_s + 1)
    ]
    if any(stored.series(query.expression) for query in panel.queries):
        assert found
    assert all(len(one["labels"]["trace_id"]) == 32 for one in found)
