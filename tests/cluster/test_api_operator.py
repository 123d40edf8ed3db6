"""The chart's monitors and rules before a real Prometheus operator."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.backends.programs import CACHE, missing_program
from tests.cluster.helm import NAMESPACE, RELEASE, Helm
from tests.cluster.node import ApiServer
from tests.cluster.prometheus_operator import (
    PrometheusOperator,
    missing_operator,
)
from tests.deploy.manifests import DEPLOY, Objects, missing_helm, read_objects

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
