"""A real Prometheus scrapes an agent's /metrics, and evaluates the rules of deploy/prometheus on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from otelgpu.engine import names
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.self_telemetry import AgentStats, Cost, SelfMetrics
from otelgpu.export.health import HealthServer
from otelgpu.export.prometheus import CONTENT_TYPE, exposition
from otelgpu.model.resource import resource
from otelgpu.model.self_telemetry import Attachment, Delivery, RingFill
from tests.backends.prometheus import Prometheus, missing_prometheus, running_prometheus

OWN = resource({"service.name": "otelgpu", "service.instance.id": 'a "b"\\c'})
ALERTS = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "alerts.yaml"
DOWN = Delivery(
    kind="otlp_grpc_span_exporter",
    metrics=False,
    accepted=5,
    queued=2,
    lost={"queue_full": 3},
    address=("collector", 4317),
    queued_bytes=90,
    queue_limit_bytes=100,
    failing_s=400.0,
)

CHEAP = Cost(user_s=1.0, system_s=0.5, resident_bytes=90 << 20, descriptors=100, threads=5)


class Well:
    """Of an agent that is alive: what it ails from is in its metrics."""

    def not_live(self) -> list[str]:
        return []

    def not_ready(self) -> list[str]:
        return []

    def conditions(self) -> list[str]:
        return []


@pytest.fixture(scope="module")
def agent() -> Iterator[HealthServer]:
    """An endpoint as an agent has it, with metrics of a bad day."""
    metrics = Metrics(time.time_ns())
    own = SelfMetrics(metrics, OWN)
    server = HealthServer("0", Well(), lambda data: (CONTENT_TYPE, exposition(data)))
    server.start()
    ending = threading.Event()

    def loop() -> None:
        while not ending.wait(0.01):
            own.turned(0.2, 0.01)
            if server.is_asked():
                own.publish(
                    AgentStats(
                        uptime_s=1.0,
                        lag_s=0.0,
                        cost=CHEAP,
                        rings={"cuda": RingFill(high_water=80, limit=100)},
                        tracked={"process": 1},
                        attachments=[(7, Attachment(executable='x"\\', failed=1))],
                        deliveries=[(0, DOWN)],
                        reloads={"applied": 1, "refused": 0},
                    )
                )
                server.answer(metrics.read(time.time_ns(), (OWN, names.SELF_SCOPE))[0])

    thread = threading.Thread(target=loop)
    thread.start()
    yield server
    ending.set()
    thread.join()
    server.close()


@pytest.fixture(scope="module")
def prometheus(agent: HealthServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    if why := missing_prometheus():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("prometheus")
    host, port = agent.address
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "otelgpu", "static_configs": [{"targets": [f"{host}:{port}"]}]}],
    }
    with running_prometheus(folder, yaml.safe_dump(configuration)) as running:
        yield running


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def test_every_series_is_scraped_with_its_labels(prometheus: Prometheus) -> None:
    until(lambda: prometheus.query('up{job="otelgpu"} == 1', time.time()), "it is scraped")
    ((labels, value),) = prometheus.query('otelgpu_process_libraries{process_pid="7"}', time.time())
    assert (labels["process_executable_name"], labels["otelgpu_attach_state"], value) == (
        'x"\\',
        "failed",
        1.0,
    )
    ((labels, _),) = prometheus.query("target_info", time.time())
    assert labels["service_instance_id"] == 'a "b"\\c'
    quantile = "histogram_quantile(0.5, otelgpu_drain_interval_seconds_bucket)"
    ((_, value),) = prometheus.query(quantile, time.time())
    assert 0.1 < value <= 0.25


def test_every_rule_can_be_evaluated_and_those_that_should_raise_an_alert_do(prometheus: Prometheus) -> None:
    def alerts() -> dict[str, str]:
        return {rule["name"]: rule["state"] for rule in prometheus.rules() if rule["type"] == "alerting"}

    until(lambda: alerts()["OtelgpuNotDelivering"] == "firing", "the alert")
    until(lambda: {rule["health"] for rule in prometheus.rules()} == {"ok"}, "all are evaluated")
    raised = {name for name, state in alerts().items() if state != "inactive"}
    assert raised == {
        "OtelgpuNotDelivering",
        "OtelgpuDataLost",
        "OtelgpuRingNearlyFull",
        "OtelgpuQueueFilling",
        "OtelgpuProbesRefused",
    }
