"""The chart's monitors and rules before a real Prometheus operator, and a real Prometheus that scrapes by them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.backends.collector import missing_collector
from tests.backends.configured import configured_collector
from tests.backends.engine_session import replay
from tests.backends.programs import CACHE, ChildProcess, answers, missing_program
from tests.backends.prometheus import missing_prometheus, running_prometheus
from tests.backends.sessions import GOLDEN
from tests.cluster.helm import NAMESPACE, RELEASE, Helm
from tests.cluster.node import ApiServer, wait_until
from tests.cluster.prometheus_operator import (
    PrometheusOperator,
    labels_of_endpoint,
    labels_of_pod,
    missing_operator,
    scraping,
)
from tests.deploy.manifests import DEPLOY, Objects, missing_helm, read_objects
from tests.rig.ports import free_ports

MISSING = missing_helm() or missing_operator()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

PROMTOOL = CACHE / "promtool"
PICKED = "kube-prometheus-stack"
AGENTS = f"podMonitor/{NAMESPACE}/otelgpu/0"
COLLECTORS, SERVICES = (f"serviceMonitor/{NAMESPACE}/otelgpu-collector/{number}" for number in range(2))
OPTIONS = (
    *(f"--set={what}.enabled=true" for what in ("podMonitor", "serviceMonitor", "prometheusRule")),
    *(f"--set={what}.labels.release={PICKED}" for what in ("podMonitor", "serviceMonitor", "prometheusRule")),
    "--set=serviceMonitor.services=true",
    "--set=podMonitor.interval=1s",
    "--set=serviceMonitor.interval=1s",
    "--set=prometheusRule.disabled={OtelgpuCostly}",
)


@pytest.fixture(scope="module")
def operator(api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusOperator]:
    started = PrometheusOperator(api_server, tmp_path_factory.mktemp("operator"), {"release": PICKED})
    yield started
    started.stop()


@pytest.fixture(scope="module")
def installed(
    api_server: ApiServer, operator: PrometheusOperator, tmp_path_factory: pytest.TempPathFactory
) -> Objects:
    """The chart's objects; the operator has seen them."""
    api_server.namespace(NAMESPACE, "privileged")
    helm = Helm(api_server, tmp_path_factory.mktemp("helm"))
    helm.put("install", *OPTIONS)
    operator.wait_for_jobs(3)
    return read_objects(helm("get", "manifest", RELEASE))


@pytest.mark.usefixtures("installed")
def test_promtool_takes_what_the_operator_makes_of_it(operator: PrometheusOperator, tmp_path: Path) -> None:
    if missing := missing_program("promtool", PROMTOOL, "prometheus/go.sum"):
        pytest.skip(missing)
    jobs = operator.scrape_configs()
    assert set(jobs) == {AGENTS, COLLECTORS, SERVICES}
    assert {each["scrape_interval"] for each in jobs.values()} == {"1s"}
    config = tmp_path / "prometheus.yaml"
    for each in jobs.values():
        each.pop("bearer_token_file", None)
    config.write_text(yaml.safe_dump({"scrape_configs": list(jobs.values())}))
    checked = subprocess.run(
        [PROMTOOL, "check", "config", config], capture_output=True, text=True, check=False, timeout=60
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.usefixtures("installed")
def test_the_alerts_are_what_it_is_given_but_for_those_left_out(operator: PrometheusOperator) -> None:
    def alerts(groups: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}

    given = alerts(operator.rules())
    wanted = alerts(yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"])
    assert set(wanted) - set(given) == {"OtelgpuCostly"}
    for name, rule in given.items():
        assert {key: rule[key] for key in wanted[name]} == wanted[name]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[str]:
    """Where a real one answers that observes nobody."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "otelgpu", "agent", "--families=http", "--executable=nobody"]
    command.append(f"--export=file:{tmp_path / 'spans.jsonl'}")
    settings = {"OTELGPU_HEALTH_ADDRESS": f"127.0.0.1:{port}"}
    process = ChildProcess(command, tmp_path / "agent.log", {**os.environ, **settings})
    try:
        process.wait_until(lambda: answers(f"http://127.0.0.1:{port}/readyz"))
        yield f"127.0.0.1:{port}"
    finally:
        process.stop()


def test_a_prometheus_scrapes_agents_and_services_under_their_own_names(
    operator: PrometheusOperator, installed: Objects, agent: str, tmp_path: Path
) -> None:
    if missing := missing_prometheus() or missing_collector():
        pytest.skip(missing)
    jobs = operator.scrape_configs()
    template = installed["DaemonSet", "otelgpu"]["spec"]["template"]
    of_agent = labels_of_pod(template, "otelgpu", "health")
    service = installed["Service", "otelgpu-collector"]
    of_collector = labels_of_pod(
        installed["DaemonSet", "otelgpu-collector"]["spec"]["template"], "collector", "x"
    )
    (scraped,) = free_ports(1)
    files = ["gateway.yaml", "backends/prometheus-scrape.yaml"]
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": operator.rules()}))
    configuration = {
        "global": {"evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            scraping(jobs[AGENTS], agent, of_agent),
            scraping(
                jobs[SERVICES],
                f"127.0.0.1:{scraped}",
                of_collector | labels_of_endpoint(service, "services"),
            ),
        ],
    }
    with (
        configured_collector(tmp_path, files, SCRAPE_LISTEN=f"127.0.0.1:{scraped}") as collector,
        running_prometheus(tmp_path, yaml.safe_dump(configuration)) as prometheus,
    ):
        replay(GOLDEN / "llm_session.capture", f"otlp:{collector.grpc}", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")

        def asked(expression: str) -> list[tuple[dict[str, str], float]]:
            return prometheus.query(expression, time.time())

        wait_until(lambda: bool(asked('up{job="otelgpu"} == 1')), "the agent to be scraped", 30)
        ((labels, _),) = asked('up{job="otelgpu"}')
        assert (
            labels["node"] == "node-a"
            and labels["pod"] == "otelgpu-abcde"
            and labels["namespace"] == NAMESPACE
        )
        assert len(asked('otelgpu_drain_interval_seconds_count{job="otelgpu"}')) == 1
        tokens = "gen_ai_server_time_to_first_token_seconds_count"
        wait_until(lambda: bool(asked(tokens)), "what the service measured", 30)
        for labels, _ in asked(tokens):
            assert labels["job"] != "otelgpu-collector"
            assert not {"pod", "container", "namespace", "service", "endpoint"} & set(labels)
        wait_until(
            lambda: {rule["health"] for rule in prometheus.rules()} == {"ok"}, "all rules to be evaluated", 30
        )
