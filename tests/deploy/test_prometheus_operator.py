"""The chart's objects for the Prometheus operator: rendered by a real Helm, against the operator's own CRDs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.backends.programs import CACHE, missing_program
from tests.deploy import custom_resources
from tests.deploy.manifests import DEPLOY, KUBERNETES, ROOT, HelmError, Object, missing_helm, render

pytestmark = pytest.mark.skipif(missing_helm() is not None, reason=str(missing_helm()))

GROUP = "monitoring.coreos.com/v1"
MODES = ("daemonset", "sidecar")
PROMTOOL = CACHE / "promtool"
ALERTS = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())
POD_MONITOR = ("--set=podMonitor.enabled=true",)
SERVICE_MONITOR = ("--set=serviceMonitor.enabled=true", "--set=serviceMonitor.services=true")
RULES = ("--set=prometheusRule.enabled=true",)
TUNED = tuple(
    f"--set={monitor}.{setting}"
    for monitor in ("podMonitor", "serviceMonitor")
    for setting in ("interval=1m30s", "scrapeTimeout=10s", "labels.release=kube-prometheus-stack")
)


def of_operator(mode: str, *options: str) -> dict[str, Object]:
    """By kind."""
    return {kind: each for (kind, _), each in render(mode, *options).items() if each["apiVersion"] == GROUP}


def alerts_of(groups: list[dict[str, Any]]) -> list[str]:
    return [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]


@pytest.mark.parametrize("mode", MODES)
def test_without_being_asked_for_there_is_nothing_of_the_operators(mode: str) -> None:
    assert of_operator(mode) == {}


@pytest.mark.parametrize(
    ("mode", "options", "kinds"),
    [
        ("daemonset", (*POD_MONITOR, *SERVICE_MONITOR, *RULES), {"PodMonitor", "ServiceMonitor", "PrometheusRule"}),
        ("daemonset", (*POD_MONITOR, *SERVICE_MONITOR, *TUNED), {"PodMonitor", "ServiceMonitor"}),
        ("sidecar", (*POD_MONITOR, *RULES), {"PodMonitor", "PrometheusRule"}),
    ],
    ids=["daemonset", "tuned", "sidecar"],
)  # fmt: skip
def test_what_is_asked_for_has_only_fields_that_the_operator_knows(
    mode: str, options: tuple[str, ...], kinds: set[str]
) -> None:
    found = of_operator(mode, *options)
    assert set(found) == kinds
    for each in found.values():
        custom_resources.validate(each)


def test_a_field_that_is_misspelt_and_a_wrong_duration_are_found() -> None:
    monitor = of_operator("daemonset", *POD_MONITOR)["PodMonitor"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for wrong in ({"intervall": "15s"}, {"interval": "soon"}):
        spoilt = {**monitor, "spec": {**monitor["spec"], "podMetricsEndpoints": [{**endpoint, **wrong}]}}
        with pytest.raises(jsonschema.ValidationError):
            custom_resources.validate(spoilt)


def test_definitions_are_of_the_version_that_is_written_beside_them() -> None:
    versions = {
        each["metadata"]["annotations"]["operator.prometheus.io/version"]
        for each in custom_resources.definitions()
    }
    (version,) = versions
    assert f"v{version} " in (custom_resources.FOLDER / "README.md").read_text()
    built = (ROOT / "tests/backends/prometheus_operator/go.mod").read_text()
    assert f"prometheus-operator/prometheus-operator v{version} " in built


@pytest.mark.parametrize("mode", MODES)
def test_pod_monitor_names_a_port_and_labels_that_the_agents_pods_have(mode: str) -> None:
    objects = render(mode, *POD_MONITOR)
    spec = objects["PodMonitor", "otelgpu"]["spec"]
    kind = {"daemonset": ("DaemonSet", "otelgpu"), "sidecar": ("Deployment", "llm-server")}[mode]
    template = objects[kind]["spec"]["template"]
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    containers = [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]
    (endpoint,) = spec["podMetricsEndpoints"]
    (port,) = (
        port
        for container in containers
        for port in container.get("ports", ())
        if port.get("name") == endpoint["port"]
    )
    assert port["containerPort"] == 13134
    assert {"targetLabel": "job", "replacement": "otelgpu"} in endpoint[
        "relabelings"
    ]  # job="otelgpu" in alerts


def test_service_monitor_names_ports_of_a_service_at_which_the_collector_listens() -> None:
    objects = render("daemonset", *SERVICE_MONITOR)
    monitor = objects["ServiceMonitor", "otelgpu-collector"]["spec"]
    service = objects["Service", "otelgpu-collector"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (collector,) = objects["DaemonSet", "otelgpu-collector"]["spec"]["template"]["spec"]["containers"]
    listened = {port["name"]: port["containerPort"] for port in collector["ports"]}
    ports = {port["name"]: port for port in service["spec"]["ports"]}
    asked = {
        endpoint["port"]: listened[ports[endpoint["port"]]["targetPort"]] for endpoint in monitor["endpoints"]
    }
    assert asked == {"metrics": 8888, "services": 8889}
    assert {"name": "COLLECTOR_METRICS_HOST", "value": "0.0.0.0"} in collector["env"]
    ingress = objects["NetworkPolicy", "otelgpu-collector"]["spec"]["ingress"]
    of_monitoring = objects["NetworkPolicy", "otelgpu"]["spec"]["ingress"][0]["from"]
    assert {"from": of_monitoring, "ports": [{"port": 8888}, {"port": 8889}]} in ingress


def test_collector_stays_on_loopback_and_its_service_as_it_is_without_a_monitor() -> None:
    text = str(render("daemonset"))
    assert "COLLECTOR_METRICS_HOST'" not in text
    only_own = render("daemonset", "--set=serviceMonitor.enabled=true")
    assert [
        each["port"] for each in only_own["ServiceMonitor", "otelgpu-collector"]["spec"]["endpoints"]
    ] == ["metrics"]
    for each in only_own.values():
        if each["apiVersion"] != GROUP:
            kubernetes_validate.validate(each, KUBERNETES, strict=True)


def test_services_keep_their_own_labels() -> None:
    monitor = of_operator("daemonset", *SERVICE_MONITOR)["ServiceMonitor"]
    own, services = monitor["spec"]["endpoints"]
    assert services["honorLabels"] is True and "honorLabels" not in own
    (dropped,) = services["relabelings"]
    assert dropped["action"] == "labeldrop" and "job" not in dropped["regex"].split("|")


def test_service_monitor_is_refused_where_there_is_no_service() -> None:
    for mode, options in (
        ("sidecar", ()),
        ("daemonset", ("--set=collector.enabled=false", "--set=endpoint=http://c:4317")),
    ):
        with pytest.raises(HelmError, match="serviceMonitor is of the Collector that mode daemonset has"):
            render(mode, *SERVICE_MONITOR, *options)


@pytest.mark.parametrize("mode", MODES)
def test_rules_are_those_that_promtool_tries(mode: str) -> None:
    assert of_operator(mode, *RULES)["PrometheusRule"]["spec"] == ALERTS


def test_alerts_can_be_left_out_by_name() -> None:
    spec = of_operator("daemonset", *RULES, "--set=prometheusRule.disabled={OtelgpuXid,OtelgpuRankLate}")[
        "PrometheusRule"
    ]["spec"]
    left = set(alerts_of(ALERTS["groups"])) - set(alerts_of(spec["groups"]))
    assert left == {"OtelgpuXid", "OtelgpuRankLate"}
    with pytest.raises(HelmError, match=r"prometheusRule\.disabled: there is no alert Xid, but Otelgpu"):
        render("daemonset", *RULES, "--set=prometheusRule.disabled={Xid}")


def test_promtool_takes_the_rules_as_they_are_rendered(tmp_path: Path) -> None:
    if missing := missing_program("promtool", PROMTOOL, "prometheus/go.sum"):
        pytest.skip(missing)
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(of_operator("daemonset", *RULES)["PrometheusRule"]["spec"]))
    checked = subprocess.run(
        [PROMTOOL, "check", "rules", "--lint=all", "--lint-fatal", path],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
