"""deploy/ as it runs: DaemonSet, Collector and sidecar on a real node.

No kube-proxy and no DNS run on it: the agents are told the Collector's address, and the Collector the API server's. Of
the manifests nothing else is changed but the image that is "yours", and the GPU that it asks for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from tests.cluster.node import NODE, SERVICE_IMAGE, Cluster, service_pod, unowned, wait_until
from tests.deploy.manifests import COLLECTOR_CONFIG, DEPLOY, manifests
from tests.rig.bpf_objects import Kind, list_objects
from tests.rig.llm_server import RigError

SYSTEM, SERVICES, SERVICE = "otelgpu", "services", "llm-server-2"
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
            "logs/backend": {"receivers": ["forward"], "exporters": ["debug"]},
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

    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        found[:] = filter(is_ready, cluster.items("pods", "-n", namespace, "-l", selector))
        return bool(found)

    try:
        wait_until(is_there, f"a pod with {selector} to be ready")
    except RigError as error:
        described = cluster.kubectl("describe", "pods", "-n", namespace, "-l", selector)
        raise RigError(f"{error}\n{described[-3000:]}") from None
    return found[0]


@pytest.fixture(scope="module")
def held_before(cluster: Cluster) -> set[tuple[Kind, int]]:
    """What the kernel has of BPF, whosever it is, before there is an agent on the node."""
    return list_objects()


@pytest.fixture(scope="module")
def daemonset(cluster: Cluster, held_before: set[tuple[Kind, int]]) -> Iterator[Cluster]:
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
    start_service(cluster)
    yield cluster
    cluster.kubectl("delete", "daemonsets", "--all", "-n", SYSTEM, "--cascade=foreground")
    cluster.kubectl("delete", "pod", SERVICE, "-n", SERVICES)
    wait_until(lambda: not unowned(held_before), "probes and maps to be gone", 60)


def start_service(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-n", SERVICES, "-f", "-", given=json.dumps(service_pod(SERVICE)))
    cluster.wait_ready(SERVICE, SERVICES)


def wait_for_spans(cluster: Cluster) -> None:
    """Until the Collector has some of the service that began from now on."""
    since = datetime.now(UTC) + timedelta(seconds=1)
    wanted = (f"k8s.pod.name: Str({SERVICE})", "/v1/completions", "cudaLaunchKernel")

    def exported() -> bool:
        said = cluster.kubectl(
            "logs", "-n", SYSTEM, "-l", COLLECTOR, "--tail=-1", f"--since-time={since:%Y-%m-%dT%H:%M:%SZ}"
        )
        begun = [line.partition(": ")[2] for line in said.splitlines() if "Start time" in line]
        return max(begun, default="") > f"{since:%Y-%m-%d %H:%M:%S}" and all(each in said for each in wanted)

    wait_until(exported, "spans of what the service does now", 90)


def restarts(cluster: Cluster) -> dict[str, int]:
    """Of the service's containers: who was harmed has been started again."""
    status = cluster.pod(SERVICE, SERVICES)["status"]
    return {each["name"]: each["restartCount"] for each in status["containerStatuses"]}


def test_requests_of_a_pod_of_another_namespace_carry_the_names_of_the_real_pod(daemonset: Cluster) -> None:
    """By eBPF from inside a pod; the names by the processor k8s_attributes from the real API server."""

    wait_for_spans(daemonset)
    said = logs(daemonset, SYSTEM, COLLECTOR, "collector")
    assert f"k8s.namespace.name: Str({SERVICES})" in said
    assert f"k8s.node.name: Str({NODE})" in said


def test_check_in_the_agents_pod_finds_what_is_required(daemonset: Cluster) -> None:
    """The command of docs/how-to/deploy.md."""
    said = daemonset.kubectl("-n", SYSTEM, "exec", "daemonset/otelgpu", "--", "otelgpu", "check", "--json")
    assert json.loads(said)["state"] != "blocked"


def test_a_rolling_upgrade_ends_the_old_agent_and_starts_the_new_one(
    daemonset: Cluster, held_before: set[tuple[Kind, int]]
) -> None:
    wait_for_spans(daemonset)
    before = pod_of(daemonset, SYSTEM, AGENT)["metadata"]["uid"]
    daemonset.kubectl("-n", SYSTEM, "rollout", "restart", "daemonset/otelgpu")
    daemonset.kubectl("-n", SYSTEM, "rollout", "status", "daemonset/otelgpu", "--timeout=110s")
    after = pod_of(daemonset, SYSTEM, AGENT)
    assert after["metadata"]["uid"] != before
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    wait_for_spans(daemonset)
    wait_until(lambda: not unowned(held_before), "what the old agent held to be gone", 30)
    assert set(restarts(daemonset).values()) == {0}


def test_of_a_node_that_is_drained_the_agent_stays_and_sees_who_comes_back(daemonset: Cluster) -> None:
    agent = pod_of(daemonset, SYSTEM, AGENT)["metadata"]["uid"]
    drain = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=100s")
    daemonset.kubectl("drain", NODE, *drain)
    try:
        assert daemonset.items("pods", "-n", SERVICES) == []
    finally:
        daemonset.kubectl("uncordon", NODE)
    start_service(daemonset)
    wait_for_spans(daemonset)
    after = pod_of(daemonset, SYSTEM, AGENT)
    assert after["metadata"]["uid"] == agent
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0


def limit_memory(cluster: Cluster, limit: str) -> None:
    resources = {
        "name": "otelgpu",
        "resources": {"requests": {"memory": "16Mi"}, "limits": {"memory": limit}},
    }
    patch = json.dumps({"spec": {"template": {"spec": {"containers": [resources]}}}})
    cluster.kubectl("-n", SYSTEM, "patch", "daemonset", "otelgpu", "-p", patch)


def test_an_agent_that_the_kernel_ends_for_want_of_memory_leaves_nothing_and_harms_nobody(
    daemonset: Cluster, held_before: set[tuple[Kind, int]]
) -> None:
    """It comes as far as its probes: the limit is of what it needs when it has them."""
    limit_memory(daemonset, "96Mi")

    def ended() -> bool:
        found = daemonset.items("pods", "-n", SYSTEM, "-l", AGENT)
        statuses = [each for pod in found for each in pod["status"].get("containerStatuses", ())]
        states = [state for each in statuses for state in (each["state"], each["lastState"])]
        return any(state.get("terminated", {}).get("reason") == "OOMKilled" for state in states)

    wait_until(ended, "the agent to be ended")
    wait_until(lambda: not unowned(held_before), "what it held to be gone", 30)
    assert set(restarts(daemonset).values()) == {0}
    limit_memory(daemonset, "512Mi")
    daemonset.kubectl("-n", SYSTEM, "rollout", "status", "daemonset/otelgpu", "--timeout=110s")
    wait_for_spans(daemonset)
    assert set(restarts(daemonset).values()) == {0}


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
