"""deploy/ as it runs: DaemonSet, Collector and sidecar on a real node.

No kube-proxy and no DNS run on it: the agents are told the Collector's address, and the Collector the API server's. Of
the manifests nothing else is changed but the image that is "yours", and the GPU that it asks for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.node import NODE, SERVICE_IMAGE, Cluster, service_pod, wait_until
from tests.deploy.manifests import COLLECTOR_CONFIG, DEPLOY, manifests
from tests.rig.llm_server import RigError

SYSTEM, SERVICES = "otelgpu", "services"
API_SERVER = [
    {"name": "KUBERNETES_SERVICE_HOST", "value": "10.97.0.1"},
    {"name": "KUBERNETES_SERVICE_PORT", "value": "26443"},
]
AGENT, COLLECTOR = "app.kubernetes.io/component=agent", "app.kubernetes.io/component=collector"
BACKEND = {
    "exporters": {"debug": {"verbosity": "detailed"}},
    "service": {
        "pipelines": {
            "traces/backend": {"receivers": ["forward"], "exporters": ["debug"]},
            "metrics/backend": {"receivers": ["forward"], "exporters": ["debug"]},
        }
    },
}


def config_map(namespace: str, file: str) -> dict[str, Any]:
    """As the documented command makes it of collector-config/, with a backend that prints."""
    data = {file: (COLLECTOR_CONFIG / file).read_text(), "backend.yaml": yaml.safe_dump(BACKEND)}
    metadata = {"name": "otelgpu-collector", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def set_variables(container: dict[str, Any], *variables: dict[str, Any]) -> None:
    names = {each["name"] for each in variables}
    others = [each for each in container.get("env", ()) if each["name"] not in names]
    container["env"] = [*others, *variables]


def logs(cluster: Cluster, namespace: str, selector: str, container: str) -> str:
    return cluster.kubectl("logs", "-n", namespace, "-l", selector, "-c", container, "--tail=-1")


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def pod_of(cluster: Cluster, namespace: str, selector: str) -> dict[str, Any]:
    """The one that is ready."""

    def ready() -> list[dict[str, Any]]:
        return [pod for pod in cluster.items("pods", "-n", namespace, "-l", selector) if is_ready(pod)]

    try:
        wait_until(lambda: bool(ready()), f"a pod with {selector} to be ready")
    except RigError as error:
        described = cluster.kubectl("describe", "pods", "-n", namespace, "-l", selector)
        raise RigError(f"{error}\n{described[-3000:]}") from None
    return ready()[0]


@pytest.fixture(scope="module")
def daemonset(cluster: Cluster) -> Iterator[Cluster]:
    """Namespace, Collector and agent as deploy/kubernetes says, and a service in another namespace."""
    cluster.namespace(SERVICES)
    cluster.kubectl("apply", "-f", str(DEPLOY / "kubernetes/namespace.yaml"))
    cluster.apply(config_map(SYSTEM, "daemonset.yaml"))
    objects = manifests("collector")
    set_variables(
        objects["DaemonSet", "otelgpu-collector"]["spec"]["template"]["spec"]["containers"][0], *API_SERVER
    )
    cluster.apply(*objects.values())
    endpoint = f"http://{pod_of(cluster, SYSTEM, COLLECTOR)['status']['podIP']}:4317"
    objects = manifests("daemonset", "networkpolicy")
    agent = objects["DaemonSet", "otelgpu"]["spec"]["template"]["spec"]["containers"][0]
    set_variables(agent, {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": endpoint})
    cluster.apply(*objects.values())
    pod_of(cluster, SYSTEM, AGENT)
    cluster.kubectl("apply", "-n", SERVICES, "-f", "-", given=json.dumps(service_pod("llm-server-2")))
    cluster.wait_ready("llm-server-2", SERVICES)
    yield cluster
    cluster.kubectl("delete", "daemonsets", "--all", "-n", SYSTEM, "--cascade=foreground")
    cluster.kubectl("delete", "pod", "llm-server-2", "-n", SERVICES)


def test_requests_of_a_pod_of_another_namespace_carry_the_names_of_the_real_pod(daemonset: Cluster) -> None:
    """By eBPF from inside a pod; the names by the processor k8s_attributes from the real API server."""

    def exported() -> bool:
        said = logs(daemonset, SYSTEM, COLLECTOR, "collector")
        wanted = ("k8s.pod.name: Str(llm-server-2)", "cudaLaunchKernel", "/v1/completions")
        return all(each in said for each in wanted)

    wait_until(exported, "spans with the pod's name", 90)
    said = logs(daemonset, SYSTEM, COLLECTOR, "collector")
    assert f"k8s.namespace.name: Str({SERVICES})" in said
    assert f"k8s.node.name: Str({NODE})" in said


def test_check_in_the_agents_pod_finds_what_is_required(daemonset: Cluster) -> None:
    """The command of docs/how-to/deploy.md."""
    said = daemonset.kubectl("-n", SYSTEM, "exec", "daemonset/otelgpu", "--", "otelgpu", "check", "--json")
    assert json.loads(said)["state"] != "blocked"


def test_a_rolling_upgrade_ends_the_old_agent_and_starts_the_new_one(daemonset: Cluster) -> None:
    before = pod_of(daemonset, SYSTEM, AGENT)["metadata"]["uid"]
    daemonset.kubectl("-n", SYSTEM, "rollout", "restart", "daemonset/otelgpu")
    daemonset.kubectl("-n", SYSTEM, "rollout", "status", "daemonset/otelgpu", "--timeout=110s")
    after = pod_of(daemonset, SYSTEM, AGENT)
    assert after["metadata"]["uid"] != before
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0


def apply_sidecar(cluster: Cluster, namespace: str) -> None:
    """sidecar.yaml; its service is the example's, and asks for no GPU."""
    cluster.apply(config_map(namespace, "sidecar.yaml"))
    deployment = manifests("sidecar")["Deployment", "llm-server"]
    deployment["metadata"]["namespace"] = namespace
    server = deployment["spec"]["template"]["spec"]["containers"][0]
    server |= {"image": SERVICE_IMAGE, "imagePullPolicy": "Never"}
    del server["resources"]
    cluster.apply(deployment)


def test_a_namespace_that_is_restricted_refuses_the_sidecar_and_says_why(cluster: Cluster) -> None:
    cluster.namespace("closed", "restricted")
    apply_sidecar(cluster, "closed")

    def refused() -> bool:
        events = cluster.items("events", "-n", "closed", "--field-selector", "reason=FailedCreate")
        return any('violates PodSecurity "restricted:latest"' in each["message"] for each in events)

    wait_until(refused, "the ReplicaSet to be refused", 60)
    assert cluster.items("pods", "-n", "closed") == []
    cluster.kubectl("delete", "deployment", "llm-server", "-n", "closed")


def test_a_sidecar_sees_its_pod_from_the_first_request_on(cluster: Cluster) -> None:
    cluster.namespace("beside", "privileged")
    apply_sidecar(cluster, "beside")
    selector = "app.kubernetes.io/name=llm-server"
    pod = pod_of(cluster, "beside", selector)["metadata"]["name"]
    ask = (
        "import time, urllib.request as r, json\n"
        "for _ in range(50):\n"
        "    try:\n"
        "        r.urlopen('http://127.0.0.1:8000/health'); break\n"
        "    except OSError: time.sleep(0.2)\n"
        "body = json.dumps({'model': 'm', 'prompt': 'a', 'max_tokens': 2}).encode()\n"
        "asked = r.Request('http://127.0.0.1:8000/v1/completions', body, {'content-type': 'application/json'})\n"
        "r.urlopen(asked).read()"
    )
    python = ("/opt/service/bin/python", "-c", ask)
    cluster.kubectl("exec", "-n", "beside", pod, "-c", "server", "--", *python)
    wait_until(
        lambda: "/v1/completions" in logs(cluster, "beside", selector, "collector"), "the request's span", 60
    )
    begun = time.monotonic()
    cluster.kubectl("delete", "deployment", "llm-server", "-n", "beside", "--cascade=foreground")
    assert time.monotonic() - begun < 60
