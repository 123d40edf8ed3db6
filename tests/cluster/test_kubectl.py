"""``kubectl otelgpu`` on a real node: as a user with only the documented Role, against a pod of another namespace."""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.node import (
    BUSYBOX,
    IMAGE,
    NODE,
    SERVICE_IMAGE,
    Cluster,
    left_on,
    service_pod,
    simple_pod,
    unowned,
    wait_until,
)
from tests.cluster.plugin import Plugin
from tests.deploy.manifests import DEPLOY, manifests
from tests.rig.bpf_objects import list_objects
from tests.rig.fakes import ROOT

SERVING, JOBS, STRICT, ABANDONED = "serving", "otelgpu", "strict", "abandoned"


@pytest.fixture(scope="module")
def prepared(cluster: Cluster) -> Iterator[Cluster]:
    """The service runs, the developer has the documented Roles, and no other right."""
    cluster.namespace(SERVING)
    cluster.namespace(STRICT, "restricted")
    cluster.kubectl("apply", "-f", str(DEPLOY / "kubernetes/namespace.yaml"))
    cluster.kubectl("apply", "-f", str(DEPLOY / "kubernetes/kubectl-role.yaml"))
    cluster.namespace(ABANDONED, "privileged")
    bind = ("create", "rolebinding", "otelgpu-kubectl", "--user=developer")
    for namespace in (JOBS, STRICT, ABANDONED):
        cluster.kubectl("-n", namespace, *bind, "--clusterrole=otelgpu-kubectl")
    cluster.kubectl("-n", SERVING, *bind, "--clusterrole=otelgpu-kubectl-target")
    cluster.kubectl("apply", "-n", SERVING, "-f", "-", given=json.dumps(service_pod("llm-server-1")))
    cluster.wait_ready("llm-server-1", SERVING)
    yield cluster
    cluster.kubectl("delete", "pod", "-n", SERVING, "llm-server-1")
    for namespace in (JOBS, STRICT, ABANDONED, SERVING):
        cluster.kubectl("-n", namespace, "delete", "rolebinding", "otelgpu-kubectl", "--ignore-not-found")


@pytest.fixture
def plugin(prepared: Cluster, tmp_path: Path) -> Iterator[Plugin]:
    """And nothing is left of what it made: Jobs, pods, processes, probes and maps.

    Apart from what was left by those who were killed: of that the last test says that it has gone.
    """
    before, held = left_on(prepared, ABANDONED), list_objects()
    yield Plugin(prepared, tmp_path)
    wait_until(lambda: left_on(prepared, ABANDONED) == before, "nothing to be left", 60)
    wait_until(lambda: not unowned(held), "probes and maps to be gone", 30)


TARGET = ("llm-server-1", "-n", SERVING, "-c", "server", "--job-namespace", JOBS)


def test_a_pod_of_another_namespace_is_profiled_by_a_user_with_the_documented_role(plugin: Plugin) -> None:
    begun = time.monotonic()
    done = plugin.run("profile", *TARGET, "-d", "5", "-o", "flame.html", "-o", "flame.folded")
    took = time.monotonic() - begun
    assert done.returncode == 0, done.stderr
    page, folded = (plugin.folder / name for name in ("flame.html", "flame.folded"))
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")
    assert "cudaLaunchKernel" in folded.read_text() or "engine.py" in folded.read_text(), done.stderr
    assert "SHA-256 as in the pod" in done.stderr
    print(f"flame graph in {took:.1f} s for 5 s of profile: {page.stat().st_size:,} bytes")
    assert took < 5 + 30


def test_who_is_killed_has_begun_a_job(cluster: Cluster, plugin: Plugin) -> None:
    """Ten at moments of their own, five at once. What they leave goes while the tests below run."""
    abandon = ("profile", *TARGET[:-1], ABANDONED, "-d", "3", "--ttl", "2")
    for group in range(2):
        begun = time.monotonic()
        moments = sorted(random.uniform(0.3, 9) for _ in range(5))
        with contextlib.ExitStack() as stack:
            running = [
                stack.enter_context(plugin.start(*abandon, "-o", f"{group}-{number}.html"))
                for number in range(len(moments))
            ]
            for moment, process in zip(moments, running, strict=True):
                time.sleep(max(begun + moment - time.monotonic(), 0))
                process.kill()
    assert cluster.items("jobs", "-n", ABANDONED), "none came as far as a Job"


def test_requests_of_a_service_that_never_knew_are_traced(cluster: Cluster, plugin: Plugin) -> None:
    done = plugin.run("trace", *TARGET, "-d", "5", "-o", "trace.html", "-o", "trace.jsonl")
    assert done.returncode == 0, done.stderr
    text = (plugin.folder / "trace.jsonl").read_text()
    assert "/v1/completions" in text and "cudaLaunchKernel" in text, done.stderr
    uid = cluster.pod("llm-server-1", SERVING)["metadata"]["uid"]
    assert f'"{uid}"' in text  # k8s.pod.uid of the real pod
    assert (plugin.folder / "trace.html").stat().st_size > 10_000


def test_check_says_what_is_visible_of_the_pod(plugin: Plugin) -> None:
    done = plugin.run("check", *TARGET, "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    assert json.loads(done.stdout)["processes"], done.stdout


def test_ps_names_the_pod(plugin: Plugin) -> None:
    done = plugin.run("ps", "-n", SERVING, "--job-namespace", JOBS)
    assert done.returncode == 0, done.stderr
    assert any("llm-server-1" in line and NODE in line for line in done.stdout.splitlines()), done.stdout


def test_pods_with_a_label_are_profiled_side_by_side(cluster: Cluster, plugin: Plugin) -> None:
    cluster.kubectl("apply", "-n", SERVING, "-f", "-", given=json.dumps(service_pod("llm-server-2")))
    cluster.wait_ready("llm-server-2", SERVING)
    label = "app in (llm-server-1, llm-server-2)"
    done = plugin.run("profile", "-l", label, *TARGET[1:], "-d", "5", "-o", "rank.folded")
    cluster.kubectl("delete", "pod", "-n", SERVING, "llm-server-2")
    assert done.returncode == 0, done.stderr
    for pod in ("llm-server-1", "llm-server-2"):
        assert (plugin.folder / f"rank-{pod}.folded").stat().st_size > 0, done.stderr


# A loop that saves after every fifth step, on the thread that computes.
_STALLED = """\
import time

def compute():
    sum(i * i for i in range(100_000))
    time.sleep(0.03)

def save(state):
    with open("/data/checkpoint.bin", "wb") as file:
        file.write(state)

state = bytes(50_000_000)
while True:
    for _ in range(5):
        compute()
    save(state)
"""


def training_job(name: str) -> list[dict[str, Any]]:
    """An indexed Job of two pods that run it, and the ConfigMap that they have it from."""
    metadata = {"name": name, "namespace": SERVING}
    script = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"train.py": _STALLED}}
    run = ["/opt/service/bin/python", "/code/train.py"]
    mounted = {"volumeMounts": [{"name": each, "mountPath": f"/{each}"} for each in ("code", "data")]}
    volumes = [
        {"name": "code", "configMap": {"name": name}},
        {"name": "data", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
    ]
    pod = simple_pod(name, SERVICE_IMAGE, run, container=mounted, volumes=volumes, restartPolicy="Never")
    spec = {
        "completions": 2,
        "parallelism": 2,
        "completionMode": "Indexed",
        "template": {"spec": pod["spec"]},
    }
    return [script, {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}]


@pytest.fixture
def job(prepared: Cluster) -> Iterator[str]:
    """Its name; both its pods run."""
    name, of_job = "train", ("-n", SERVING, "-l", "batch.kubernetes.io/job-name=train")
    prepared.apply(*training_job(name))
    wait_until(lambda: len(prepared.items("pods", *of_job)) == 2, "the job's pods")
    prepared.kubectl("wait", "pods", *of_job, "--for=condition=Ready", "--timeout=120s")
    yield name
    prepared.kubectl("delete", "job,configmap", name, "-n", SERVING, "--cascade=foreground")


def test_a_job_is_diagnosed_pod_by_pod_and_the_line_that_it_waits_at_is_named(
    job: str, plugin: Plugin
) -> None:
    """By the pods' own Jobs, where no otelgpu is on PATH."""
    done = plugin.run("diagnose", job, *TARGET[1:3], "--job-namespace", JOBS, "--kind", "stall", "-d", "8")
    assert done.returncode == 3, done.stderr + done.stdout
    _, *said = re.split(rf"^{job}-[01]-\w+:\n", done.stdout, flags=re.MULTILINE)
    assert len(said) == 2, done.stdout
    assert all("checkpoint.bin at train.py:9 save" in each for each in said), done.stdout
    files = sorted(each.name for each in (plugin.folder / f"{job}-stall").iterdir())
    expected = [rf"{job}-{number}-\w+\.{kind}" for number in (0, 1) for kind in ("html", "jsonl")]
    assert all(map(re.fullmatch, expected, files)), files


def test_an_environment_is_deployed_worked_in_and_deleted(cluster: Cluster, plugin: Plugin) -> None:
    made = plugin.run("deploy", *TARGET, "-d", "300")
    assert made.returncode == 0, made.stderr
    name = made.stdout.strip()
    status = cluster.pod("llm-server-1", SERVING)["status"]["containerStatuses"]
    (container,) = (each["containerID"].rpartition("/")[2] for each in status if each["name"] == "server")
    within = ("exec", "-n", JOBS, name, "--", "otelgpu")
    traced = plugin.run(*within, "agent", "--container", container, "-d", "4", "--export", "console")
    assert traced.returncode == 0, traced.stderr
    assert "text_completion m" in traced.stdout and "cudaLaunchKernel" in traced.stdout, traced.stderr
    assert plugin.run("delete", "-n", JOBS, name).returncode == 0
    assert plugin.run(*within, "ps").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-n", SERVING), ["developer may not create jobs in namespace serving", "kubectl-role.yaml"]),
        (
            ("-n", SERVING, "--job-namespace", STRICT),
            [
                "Pod Security refuses the pod in namespace strict",
                "hostPID=true",
                "kubectl label namespace strict pod-security.kubernetes.io/enforce=privileged",
            ],
        ),
        (
            ("-n", SERVING, "--job-namespace", JOBS, "--image", "nowhere.invalid/otelgpu:9"),
            ["node node-a cannot get the image nowhere.invalid/otelgpu:9"],
        ),
        (
            ("-n", SERVING, "--job-namespace", JOBS, "--memory-request", "900Gi", "--memory-limit", "900Gi"),
            ["node node-a has no room", "Insufficient memory"],
        ),
        (
            ("-n", SERVING, "--job-namespace", JOBS, "-c", "gpu"),
            ["has no container gpu", "it has: server, load"],
        ),
        (("-n", JOBS), ["there is no pod llm-server-1"]),
        (("-n", "elsewhere"), ["developer may not get pods in namespace elsewhere"]),
    ],
)
def test_what_the_cluster_refuses_is_said_in_words(
    plugin: Plugin, arguments: tuple[str, ...], words: list[str]
) -> None:
    done = plugin.run("profile", "llm-server-1", "-d", "5", *arguments)
    assert done.returncode == 1
    for each in words:
        assert each in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(cluster: Cluster, plugin: Plugin, number: signal.Signals) -> None:
    with plugin.start("profile", *TARGET, "-d", "120", "-o", "flame.html") as process:
        time.sleep(random.uniform(1, 8))
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert cluster.items("jobs", "-n", JOBS) == []


def test_a_pod_that_ends_in_the_middle_is_reported_and_what_it_did_is_kept(
    cluster: Cluster, plugin: Plugin
) -> None:
    cluster.kubectl(
        "apply", "-n", SERVING, "-f", "-", given=json.dumps(simple_pod("brief", BUSYBOX, ["sleep", "900"]))
    )
    cluster.wait_ready("brief", SERVING)
    with plugin.start(
        "profile", "brief", *TARGET[1:3], "--job-namespace", JOBS, "-d", "8", "-o", "a.html"
    ) as process:
        wait_until(lambda: bool(cluster.items("jobs", "-n", JOBS)), "the Job")
        time.sleep(5)
        cluster.kubectl("delete", "pod", "-n", SERVING, "brief", "--wait=false")
        _, said = process.communicate(timeout=90)
    assert process.returncode == 0, said
    assert "pod brief was deleted in the middle" in said


def test_documented_role_is_what_the_commands_of_the_manual_bind() -> None:
    names = [name for _, name in manifests("kubectl-role")]
    page = (ROOT / "docs/how-to/kubectl.md").read_text()
    assert all(f"--clusterrole={name} " in page for name in names)
    assert IMAGE.endswith("otelgpu:0.1.0")


def test_what_those_who_were_killed_left_is_deleted_by_the_cluster(cluster: Cluster) -> None:
    def is_gone() -> bool:
        return not (cluster.items("jobs", "-n", ABANDONED) or cluster.items("pods", "-n", ABANDONED))

    wait_until(is_gone, "the TTL to clean up", 200)
