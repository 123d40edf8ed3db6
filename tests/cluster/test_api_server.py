"""deploy/ and the Job of ``kubectl otelgpu`` before a real API server: validation, admission, authorisation."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kubectl_otelgpu import job
from kubectl_otelgpu.faults import Fault, of_kubectl
from kubectl_otelgpu.target import target_of
from tests.cluster.node import CACHE, ApiServer, Who
from tests.deploy.manifests import DEPLOY
from tests.unit.kubectl.conftest import pod

FILES = sorted((DEPLOY / "kubernetes").glob("*.yaml"), key=lambda path: path.name != "namespace.yaml")
RIGHTS = {
    ("create", "jobs.batch"): True,
    ("delete", "jobs.batch"): True,
    ("list", "events"): True,
    ("get", "pods/log"): True,
    ("create", "pods/exec"): True,
    ("create", "pods"): False,
    ("delete", "pods"): False,
    ("get", "secrets"): False,
    ("update", "jobs.batch"): False,
}


def made() -> dict[str, Any]:
    results = ("otelgpu-1-0.html",)
    order = job.Order("profile", ["profile"], 30, "otelgpu:0.1.0", "128Mi", "1Gi", 60, "jane", results)
    return job.manifest("otelgpu-1", "otelgpu", target_of(pod(), None), order)


def ask(
    server: ApiServer, *arguments: str, given: Any = None, who: Who = "admin"
) -> tuple[str, Fault | None]:
    """What ``kubectl`` prints, and what the plug-in makes of its failure."""
    done = subprocess.run(
        [CACHE / "bin/kubectl", *arguments],
        input=json.dumps(given), env=server.environment(who), capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    return done.stdout, of_kubectl(done.stderr, "kubectl") if done.returncode else None


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> ApiServer:
    for path in FILES:
        if path.name != "sidecar.yaml":
            api_server.kubectl("apply", "--validate=strict", "-f", str(path))
    api_server.namespace("serving")
    api_server.namespace("strict", "restricted")
    account = {"name": "default", "namespace": "otelgpu"}
    api_server.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    return api_server


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_manifest_is_taken_in_without_a_word(server: ApiServer, path: Path) -> None:
    where = ["-n", "serving"] if path.name == "sidecar.yaml" else []
    done = subprocess.run(
        [CACHE / "bin/kubectl", "apply", "--dry-run=server", "--validate=strict", *where, "-f", path],
        env=server.environment(), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    unexpected = [line for line in done.stderr.splitlines() if "would violate PodSecurity" not in line]
    assert (done.returncode, unexpected) == (0, [])


def test_the_job_is_taken_in(server: ApiServer) -> None:
    printed, fault = ask(server, "create", "--dry-run=server", "--validate=strict", "-f", "-", given=made())
    assert fault is None and "job.batch/otelgpu-1 created" in printed


def test_a_user_without_a_role_is_named_what_is_missing(server: ApiServer) -> None:
    _, fault = ask(server, "get", "pods", "-n", "serving", who="developer")
    assert fault is not None and fault.message == "developer may not list pods in namespace serving"
    _, fault = ask(server, "create", "--validate=false", "-f", "-", given=made(), who="developer")
    assert fault is not None and fault.message == "developer may not create jobs in namespace otelgpu"
    assert "kubectl-role.yaml" in fault.hint


def test_the_role_grants_what_the_plug_in_does_and_nothing_else(server: ApiServer) -> None:
    bind = (
        "create",
        "rolebinding",
        "b",
        "--user=developer",
        "--clusterrole=otelgpu-kubectl",
        "-n",
        "serving",
    )
    server.kubectl(*bind)

    def may(verb: str, what: str, namespace: str = "serving") -> bool:
        kind, _, part = what.partition("/")
        parts = (f"--subresource={part}",) if part else ()
        printed, _ = ask(server, "auth", "can-i", verb, kind, *parts, "-n", namespace, who="developer")
        return printed.strip() == "yes"

    assert {each: may(*each) for each in RIGHTS} == RIGHTS
    assert not may("create", "jobs.batch", "strict")


@pytest.mark.parametrize(("namespace", "refused"), [("strict", True), ("otelgpu", False)])
def test_pod_security_refuses_the_pod_with_the_words_that_the_plug_in_reads(
    server: ApiServer, namespace: str, refused: bool
) -> None:
    template = made()["spec"]["template"]
    given = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": "p", "namespace": namespace},
        "spec": template["spec"],
    }
    _, fault = ask(server, "create", "--dry-run=server", "-f", "-", given=given)
    assert (fault is not None) == refused
    if fault is not None:
        assert fault.message.startswith("Pod Security refuses the pod: level 'restricted' forbids")
        assert "host namespaces (hostPID=true)" in fault.message
        assert "pod-security.kubernetes.io/enforce=privileged" in fault.hint


def test_what_is_not_there_is_named(server: ApiServer) -> None:
    _, fault = ask(server, "get", "pod", "llm-server-1", "-n", "serving")
    assert fault is not None and fault.message == "there is no pod llm-server-1"
    _, fault = ask(server, "--server=https://127.0.0.1:9", "get", "pods")
    assert (
        fault is not None and fault.message.startswith("the API server does not answer") and fault.transient
    )
    _, fault = ask(server, "--token=wrong", "get", "pods")
    assert fault is not None and fault.message.startswith("the API server does not know you")
