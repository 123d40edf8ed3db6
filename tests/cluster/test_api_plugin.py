"""``kubectl otelgpu`` before a real API server, with a test in the place of the controllers and the kubelet.

Its calls go through the real ``kubectl``, authentication, the documented Role and validation; pods have the states that
the test writes into them. What needs a node, logs and ``exec``, is in ``test_kubectl.py``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.node import NODE, ApiServer, simple_pod, wait_until
from tests.cluster.plugin import Plugin
from tests.deploy.manifests import DEPLOY

SERVING, JOBS = "serving", "otelgpu"
TARGET = ("llm-server-1", "-n", SERVING, "--job-namespace", JOBS)
SECURITY = 'violates PodSecurity "baseline:latest": host namespaces (hostPID=true)'


class Hand:
    """Makes a Job's pod and writes its state; takes away what keeps a deleted Job, as the garbage collector does."""

    def __init__(self, server: ApiServer) -> None:
        self._server, self._stop = server, threading.Event()
        self.state: dict[str, Any] | None = None
        self.event = ""
        self.jobs: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Hand:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        seen: set[str] = set()
        while not self._stop.wait(0.3):
            for job in self._server.items("jobs", "-n", JOBS):
                name = job["metadata"]["name"]
                if job["metadata"].get("deletionTimestamp"):
                    self._server.kubectl(
                        "delete", "pod", f"{name}-x", "-n", JOBS, "--ignore-not-found", "--now"
                    )
                    patch = '{"metadata": {"finalizers": null}}'
                    self._server.kubectl("patch", "job", name, "-n", JOBS, "--type=merge", "-p", patch)
                elif name not in seen:
                    seen.add(name)
                    self.jobs.append(job)
                    self._act(job)

    def _act(self, job: dict[str, Any]) -> None:
        name = job["metadata"]["name"]
        if self.event:
            self._server.apply(
                {
                    "apiVersion": "v1",
                    "kind": "Event",
                    "metadata": {"name": name, "namespace": JOBS},
                    "involvedObject": {"kind": "Job", "name": name, "namespace": JOBS},
                    "reason": "FailedCreate",
                    "message": self.event,
                    "type": "Warning",
                }
            )
        if self.state is None:
            return
        template = job["spec"]["template"]
        metadata = {**template["metadata"], "name": f"{name}-x", "namespace": JOBS}
        metadata["labels"] = {**metadata["labels"], "job-name": name}
        self._server.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        )
        set_status(self._server, f"{name}-x", JOBS, self.state)


def set_status(server: ApiServer, pod: str, namespace: str, status: dict[str, Any]) -> None:
    """As its kubelet does."""
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    server.kubectl("patch", "pod", pod, "-n", namespace, *patch)


def container_status(name: str, state: dict[str, Any]) -> dict[str, Any]:
    described = {"image": "otelgpu:0.1.0", "imageID": "", "ready": False, "restartCount": 0}
    return {"name": name, "state": state, "containerID": "containerd://" + "ab" * 32, **described}


def waiting(reason: str, message: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [container_status("otelgpu", state)]}


def unschedulable(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> ApiServer:
    """The target runs, as far as the API server knows; the developer has the documented Roles."""
    for file in ("namespace.yaml", "kubectl-role.yaml"):
        api_server.kubectl("apply", "-f", str(DEPLOY / "kubernetes" / file))
    account = {"name": "default", "namespace": JOBS}
    api_server.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    api_server.namespace(SERVING)
    bind = ("create", "rolebinding", "b", "--user=developer")
    api_server.kubectl("-n", JOBS, *bind, "--clusterrole=otelgpu-kubectl")
    api_server.kubectl("-n", SERVING, *bind, "--clusterrole=otelgpu-kubectl-target")
    target = simple_pod("llm-server-1", "llm-server:1", nodeName=NODE)
    target["metadata"]["namespace"] = SERVING
    api_server.apply(target)
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    status = {"phase": "Running", "containerStatuses": [container_status("server", running)]}
    set_status(api_server, "llm-server-1", SERVING, status)
    return api_server


@pytest.fixture
def hand(server: ApiServer) -> Iterator[Hand]:
    with Hand(server) as started:
        yield started
    assert server.items("jobs") == []


@pytest.mark.parametrize(
    ("state", "event", "words"),
    [
        (
            None,
            SECURITY,
            ["Pod Security refuses the pod in namespace otelgpu: level 'baseline' forbids host"],
        ),
        (waiting("ErrImageNeverPull", "not present"), "", ["cannot get the image", "not present", "--image"]),
        (unschedulable("0/1 nodes: 1 Insufficient memory."), "", ["node node-a has no room"]),
        (
            unschedulable("0/1 nodes: 1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }"),
            "",
            ["node node-a is not ready"],
        ),
    ],
)
def test_what_keeps_the_pod_from_running_is_said_and_the_job_is_gone(
    server: ApiServer, hand: Hand, tmp_path: Path, state: dict[str, Any] | None, event: str, words: list[str]
) -> None:
    hand.state, hand.event = state, event
    done = Plugin(server, tmp_path).run("profile", *TARGET, "-d", "5")
    assert done.returncode == 1
    for each in words:
        assert each in done.stderr
    assert len(hand.jobs) == 1
    wait_until(lambda: server.items("jobs") == [], "the Job to be gone", 20)


def test_the_job_that_is_made_is_what_was_asked_for(server: ApiServer, hand: Hand, tmp_path: Path) -> None:
    hand.state = waiting("ErrImageNeverPull", "")
    Plugin(server, tmp_path).run("profile", *TARGET, "-d", "70", "--ttl", "5", "-t", "cuda")
    (job,) = hand.jobs
    spec = job["spec"]
    assert (spec["ttlSecondsAfterFinished"], spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (
        5,
        0,
        370,
    )
    assert job["metadata"]["annotations"]["otelgpu.io/target"] == f"{SERVING}/llm-server-1/server"
    assert "ab" * 32 in spec["template"]["spec"]["containers"][0]["args"]


def test_a_job_of_which_no_recording_came_names_its_pods_and_leaves_nothing(
    server: ApiServer, hand: Hand, tmp_path: Path
) -> None:
    server.kubectl("label", "pod", "llm-server-1", "-n", SERVING, "job-name=train", "--overwrite")
    hand.state = waiting("ErrImageNeverPull", "not present")
    done = Plugin(server, tmp_path).run("diagnose", "train", *TARGET[1:], "-d", "5")
    assert done.returncode == 1
    assert "nothing was recorded: llm-server-1: node node-a cannot get the image" in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["kubectl-otelgpu"]
    (job,) = hand.jobs
    assert job["spec"]["template"]["spec"]["containers"][0]["args"][0] == "agent"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("llm-server-1", "-n", SERVING), "developer may not create jobs in namespace serving"),
        (("llm-server-1", "-n", "kube-system"), "developer may not get pods in namespace kube-system"),
        (("elsewhere", "-n", SERVING), "there is no pod elsewhere"),
        (("llm-server-1", "-n", SERVING, "-c", "gpu"), "pod llm-server-1 has no container gpu"),
        (("-l", "app=nothing", "-n", SERVING), "no pod runs in namespace serving with labels app=nothing"),
    ],
)
def test_what_is_refused_before_a_job_is_made_is_said(
    server: ApiServer, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = Plugin(server, tmp_path).run("profile", *arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert server.items("jobs") == []
