"""The image of deploy/Dockerfile at work, in the pods of deploy/kubernetes: as a user that is not root."""

from __future__ import annotations

import gzip
import hashlib
import re
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from kubectl_otelgpu import job, results
from kubectl_otelgpu.target import target_on
from tests.contract.otlp_servers import Server, grpc_server
from tests.deploy.manifests import agent_of
from tests.kernel.observing import wait_until
from tests.rig.fakes import ROOT
from tests.rig.pods import Pod, image_config, image_root, missing_image
from tests.rig.ports import free_port

pytestmark = pytest.mark.skipif(missing_image() is not None, reason=str(missing_image()))

REQUESTS = 7
FIELDS = {
    "spec.nodeName": "node-a",
    "metadata.name": "llm-server-1",
    "metadata.namespace": "serving",
    "metadata.uid": "6f1c1f2e-0000-4000-8000-000000000001",
}


def pod_spec(manifest: str, kind: str, name: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((ROOT / "deploy/kubernetes" / manifest).read_text())
    workload = next(each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name))
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


def sidecar_pod() -> dict[str, Any]:
    return pod_spec("sidecar.yaml", "Deployment", "llm-server")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def start_service(pod: Pod, identity: str | None = None) -> int:
    """The example service, once it answers; its port."""
    port = free_port()
    pod.start("server", "otelgpu-example-service", {}, ["--port", str(port)], identity=identity)
    wait_until(lambda: answers(f"http://127.0.0.1:{port}/health"), "the service to answer")
    return port


def start_agent(pod: Pod, collector: Server) -> None:
    """The agent, once its probe says that it is ready."""
    health = free_port()
    others = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.address,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",  # as for the port of the manifests, 4317
        "OTELGPU_HEALTH_ADDRESS": f"127.0.0.1:{health}",
    }
    pod.start("otelgpu", "otelgpu", others)
    wait_until(lambda: answers(f"http://127.0.0.1:{health}/readyz"), "the agent to observe", limit_s=30)


def is_request_to(port: int, span: Span) -> bool:
    attributes = {each.key: each.value for each in span.attributes}
    at = attributes.get("server.port")  # other services of the machine may have none
    return span.kind == Span.SPAN_KIND_SERVER and at is not None and at.int_value == port


def send_requests(port: int) -> None:
    client = [sys.executable, ROOT / "examples/llm_server/client.py", "--url", f"http://127.0.0.1:{port}"]
    subprocess.run(
        [*client, "--requests", str(REQUESTS), "--max-tokens", "3"],
        check=True, timeout=60, capture_output=True,
    )  # fmt: skip


def spans_in(collector: Server) -> list[Span]:
    sent = [
        ExportTraceServiceRequest.FromString(r.body) for r in collector.requests if "trace" in r.path.lower()
    ]
    return [
        span
        for request in sent
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


@pytest.fixture
def collector() -> Iterator[Server]:
    with grpc_server(host="127.0.0.1") as server:
        yield server


@pytest.mark.parametrize(("manifest", "seccomp"), [("sidecar", "Localhost"), ("daemonset", "RuntimeDefault")])
def test_agent_of_a_pod_observes_the_service_with_the_privileges_of_its_manifest(
    manifest: str, seccomp: str, collector: Server, tmp_path: Path
) -> None:
    pod_of_service, pod_of_node = sidecar_pod(), pod_spec("daemonset.yaml", "DaemonSet", "otelgpu")
    for each in (agent_of(pod_of_service)["securityContext"], pod_of_node["securityContext"]):
        each["seccompProfile"]["type"] = seccomp

    with Pod(pod_of_service, FIELDS, tmp_path) as pod, ExitStack() as stack:
        agent = pod
        if manifest == "daemonset":
            agent = stack.enter_context(Pod(pod_of_node, FIELDS, tmp_path))
        port = start_service(pod)
        start_agent(agent, collector)

        send_requests(port)
        time.sleep(1)  # a request is said when the next drains have passed
        assert agent.stop("otelgpu") == 0, agent.log("otelgpu")

    spans = spans_in(collector)
    served = {span.trace_id for span in spans if is_request_to(port, span)}
    launched = {span.trace_id for span in spans if span.name.startswith("cudaLaunchKernel")}
    assert len(served) == REQUESTS, agent.log("otelgpu")
    assert served <= launched


def test_job_of_the_plug_in_profiles_a_container_and_waits_for_its_result_to_be_fetched(
    tmp_path: Path,
) -> None:
    identity = secrets.token_hex(32)
    name = job.new_name("profile")
    result = f"{name}-0.html"
    arguments = ["profile", "--container", identity, "-t", "all", "-d", "4", "-o", f"{job.FOLDER}/{result}"]
    order = job.Order("profile", arguments, 4, "otelgpu", "128Mi", "1Gi", 60, "", (result,))
    spec = job.manifest(name, "otelgpu", target_on("node-a", "otelgpu"), order)["spec"]["template"]["spec"]
    keeper = next(each for each in spec["containers"] if each["name"] == job.KEEPER)
    keeper["command"][-1] = "6"  # seconds that it waits, once nobody uses the result

    with Pod(sidecar_pod(), FIELDS, tmp_path) as service, Pod(spec, FIELDS, tmp_path) as made:
        port = start_service(service, identity)
        made.start(job.KEEPER, "otelgpu", {})
        made.start(job.OBSERVER, "otelgpu", {})
        observer = made.containers[job.OBSERVER]
        wait_until(
            lambda: "profiling container" in made.log(job.OBSERVER), "the profile to begin", limit_s=30
        )
        send_requests(port)
        assert observer.wait(60) == 0, made.log(job.OBSERVER)

        packed = made.execute(job.KEEPER, "/bin/sh", "-c", results.PACK, "pack", job.FOLDER, result)
        digest, size, _ = results.parse_packed(packed.stdout.decode())
        sent = made.execute(job.KEEPER, "tail", "-c", "+1", f"{job.FOLDER}/{result}.gz").stdout
        capabilities = made.execute(job.KEEPER, "grep", "CapEff", "/proc/self/status").stdout.split()[1]
        ended = made.containers[job.KEEPER].wait(30)

    page = gzip.decompress(sent)
    assert (len(page), hashlib.sha256(page).hexdigest()) == (size, digest)
    assert b"cudaLaunchKernel" in page, made.log(job.OBSERVER)
    assert (int(capabilities, 16), ended) == (0, 0)


def test_check_finds_all_that_is_required_in_the_sidecar(tmp_path: Path) -> None:
    with Pod(sidecar_pod(), FIELDS, tmp_path) as pod:
        pod.start("otelgpu", "otelgpu", {"OTELGPU_EXPORT": "console"}, ["check"])
        assert pod.containers["otelgpu"].wait(60) == 0, pod.log("otelgpu")

        log = pod.log("otelgpu")
    missing = set(re.findall(r"✗ missing ([\w ]+)", log))
    assert missing <= {"bpffs", "PID namespace"}, log  # a pod sees its own processes, and needs no other tool


@pytest.mark.parametrize("dropped", ["BPF", "PERFMON"])
def test_check_names_a_capability_that_the_pod_is_not_granted(dropped: str, tmp_path: Path) -> None:
    spec = sidecar_pod()
    agent_of(spec)["securityContext"]["capabilities"]["add"].remove(dropped)

    with Pod(spec, FIELDS, tmp_path) as pod:
        pod.start("otelgpu", "otelgpu", {}, ["check"])
        assert pod.containers["otelgpu"].wait(60) == 1

        assert f"missing: CAP_{dropped}\n" in pod.log("otelgpu")


def test_image_holds_no_compiler_and_nothing_of_the_build() -> None:
    with image_root("otelgpu") as root:
        folders = [root / path for path in ("usr/bin", "usr/sbin", "opt/otelgpu/bin")]
        programs = {path.name for folder in folders for path in folder.iterdir()}
        build = re.compile(r"(gcc|g\+\+|cc|clang|ld|as|make|pip|setcap)(-?[\d.]+)?")
        assert [name for name in programs if build.fullmatch(name)] == []
        assert not (root / "source").exists()
        assert list(root.glob("opt/otelgpu/lib/python3*/site-packages/otelgpu/_bpf/cuda.bpf.o"))


def test_image_runs_as_the_user_of_the_manifests() -> None:
    user = image_config("otelgpu")["User"]
    security = agent_of(sidecar_pod())["securityContext"]
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"


def test_only_that_user_and_root_may_run_the_interpreter_with_capabilities() -> None:
    with image_root("otelgpu") as root:
        interpreter = (root / "opt/otelgpu/bin/python3").stat()
        assert (interpreter.st_uid, interpreter.st_gid, interpreter.st_mode & 0o7777) == (0, 10001, 0o750)
        files = [path for path in (root / "opt").rglob("*") if not path.is_symlink()]
        writable = [path for path in files if path.stat().st_mode & 0o022]
        assert writable == []
