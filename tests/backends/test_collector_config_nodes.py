"""What sidecar.yaml and daemonset.yaml add to what agents send, and what becomes of it while nobody takes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.backends.configured import configured_collector, wait_for
from tests.backends.kubernetes_api import KubernetesApi, deployed_pod, kubernetes_api
from tests.backends.otlp_messages import SERVICE, metrics, sent_metrics, sent_spans, span, traces
from tests.contract.otlp_servers import Server, grpc_server
from tests.rig.kubernetes import NODE
from tests.rig.ports import free_port

SIDECAR: Final = ["sidecar.yaml", "backends/otlp.yaml"]
DAEMONSET: Final = ["daemonset.yaml", "backends/otlp.yaml"]


def resource_of(server: Server, name: str) -> dict[str, Any]:
    """Of the span of that name, once it is there."""
    found: list[dict[str, Any]] = []

    def arrived() -> bool:
        found.extend(resource for resource, each in sent_spans(server.requests) if each.name == name)
        return bool(found)

    wait_for(arrived, f"the span {name}")
    return found[0]


def test_a_sidecar_adds_what_it_knows_and_changes_nothing_that_was_said(tmp_path: Path) -> None:
    known = "deployment.environment.name=staging,service.name=otelcol"
    with (
        grpc_server() as server,
        configured_collector(
            tmp_path, SIDECAR, OTLP_ENDPOINT=server.address, OTEL_RESOURCE_ATTRIBUTES=known
        ) as collector,
    ):
        said = SERVICE | {"host.name": "gpu-17"}
        collector.send("traces", traces([span("request", 1)], said))
        resource = resource_of(server, "request")
        collector.send("metrics", metrics("gen_ai.requests", said))
        wait_for(lambda: sent_metrics(server.requests), "the metric")
    assert resource == said | {"deployment.environment.name": "staging", "os.type": "linux"}
    assert sent_metrics(server.requests)[0][0] == resource


CONTAINER: Final = "ab" * 32


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesApi]:
    """A cluster of two pods; the test sends from the address of the second."""
    llm = deployed_pod("llm", uid="uid-1", address="10.1.2.3", container_id=CONTAINER)
    app = deployed_pod("app", uid="uid-2", address="127.0.0.1", container_id="cd" * 32)
    with kubernetes_api(tmp_path_factory.mktemp("api"), [llm, app]) as running:
        yield running


@pytest.fixture(scope="module")
def named(
    api: KubernetesApi, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, dict[str, Any]]]:
    """What became of the resources of spans, by what was said of the process: its pod, its container, or nothing."""
    said = {
        "pod": {"k8s.pod.uid": "uid-1"},
        "container": {"container.id": CONTAINER},
        "connection": {},
        "another": {"k8s.pod.uid": "uid-3"},
    }
    folder = tmp_path_factory.mktemp("daemonset")
    settings = {
        "OTELGPU_NODE_NAME": NODE,
        "KUBERNETES_AUTH": "kubeConfig",
        "KUBECONFIG": str(api.kubeconfig),
    }
    with (
        grpc_server() as server,
        configured_collector(folder, DAEMONSET, OTLP_ENDPOINT=server.address, **settings) as collector,
    ):
        for number, (name, attributes) in enumerate(said.items(), 1):
            collector.send("traces", traces([span(name, number)], SERVICE | attributes))
        yield {name: resource_of(server, name) for name in said}


@pytest.mark.parametrize(("by", "deployment"), [("pod", "llm"), ("container", "llm"), ("connection", "app")])
def test_a_pod_is_known_by(named: dict[str, dict[str, Any]], by: str, deployment: str) -> None:
    resource = named[by]
    assert resource["k8s.pod.name"] == f"{deployment}-5d9f7c8b6-x2x9z"
    assert resource["k8s.namespace.name"] == "inference"
    assert resource["k8s.deployment.name"] == deployment
    assert resource["k8s.node.name"] == NODE
    assert resource["service.name"] == "llm"


def test_a_container_gets_its_name_and_image(named: dict[str, dict[str, Any]]) -> None:
    resource = named["container"]
    assert resource["k8s.container.name"] == "server"
    assert (resource["container.image.name"], resource["container.image.tag"]) == (
        "registry.example/llm",
        "1.2",
    )


def test_another_pod_gets_no_names(named: dict[str, dict[str, Any]]) -> None:
    """Nor those of the pod that it was sent from."""
    assert named["another"].keys() & {"k8s.pod.uid", "k8s.pod.name", "k8s.namespace.name"} == {"k8s.pod.uid"}


def test_only_the_pods_of_the_node_are_asked_for(
    named: dict[str, dict[str, Any]], api: KubernetesApi
) -> None:
    assert api.selectors() == {f"spec.nodeName={NODE}"}
    assert {path for path, _ in api.server.asked} == {"/api/v1/pods"}


def test_a_collector_that_has_no_memory_left_refuses(tmp_path: Path) -> None:
    """Who sent is reported to try again, and it is counted; nothing is taken and dropped."""
    with (
        grpc_server() as server,
        configured_collector(
            tmp_path,
            SIDECAR,
            OTLP_ENDPOINT=server.address,
            COLLECTOR_MEMORY_MIB=8,
            COLLECTOR_MEMORY_CHECK="100ms",
        ) as collector,
    ):
        wait_for(lambda: collector.send("traces", traces([span("request", 1)])) == 503, "a refusal")
        assert collector.counted("receiver_refused_spans") > 0


def test_what_waits_for_a_backend_outlives_the_collector(tmp_path: Path) -> None:
    port = free_port()
    with configured_collector(tmp_path, SIDECAR, OTLP_ENDPOINT=f"http://127.0.0.1:{port}") as collector:
        assert collector.send("traces", traces([span("request", 1)])) == 200
        collector.process.kill()
        with grpc_server(host="127.0.0.1", port=port) as server:
            collector.start()
            resource_of(server, "request")


LONG: Final = {"gen_ai.input.messages": "x" * 1000}


def test_when_the_queue_is_full_it_is_said(tmp_path: Path) -> None:
    port = free_port()
    with configured_collector(
        tmp_path, SIDECAR, OTLP_ENDPOINT=f"http://127.0.0.1:{port}", QUEUE_BYTES=1_000_000
    ) as collector:
        many = [span("request", number, attributes=LONG) for number in range(400)]
        statuses = [collector.send("traces", traces(many)) for _ in range(5)]
        assert (statuses[0], statuses[-1]) == (200, 503)
        assert collector.counted("exporter_enqueue_failed_spans") == len(many) * statuses.count(503)


def test_batches_are_no_larger_than_a_grpc_server_takes(tmp_path: Path) -> None:
    """4 MiB; here 10 MB come at once, in small requests."""
    with (
        grpc_server() as server,
        configured_collector(tmp_path, SIDECAR, OTLP_ENDPOINT=server.address) as collector,
    ):
        for first in range(0, 9000, 300):
            many = [span("request", first + number, attributes=LONG) for number in range(300)]
            assert collector.send("traces", traces(many)) == 200
        wait_for(lambda: len(sent_spans(server.requests)) == 9000, "all spans")
        assert len(server.requests) < 15
