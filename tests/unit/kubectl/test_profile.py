"""``kubectl otelgpu profile`` against a cluster that is none: what it makes, says, fetches, and leaves behind."""

from __future__ import annotations

import gzip
import signal
import time
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from kubectl_otelgpu import job, results
from kubectl_otelgpu.faults import Fault, no_gpu_work
from otelgpu.kernel.privileges import capabilities
from tests.unit.kubectl.conftest import CONTAINER_ID, FakeCluster, job_pod, pod

pytestmark = pytest.mark.slow  # each waits for a cluster, a second at a time
ROOT = Path(__file__).resolve().parents[3]


def test_the_result_is_here_and_the_job_is_not_there(cluster: FakeCluster) -> None:
    done = cluster.run("profile", "llm-server-1", "-d", "1", "-o", "flame.html")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert (cluster.folder / "flame.html").read_bytes() == cluster.result
    (made,) = cluster.created()
    assert cluster.deleted() == [made["metadata"]["name"]]
    assert "profiling container 8a3b00000000 for 1 s" in done.stderr
    assert not [path for path in cluster.folder.iterdir() if path.name.endswith(".part")]


def test_the_job_is_what_kubernetes_knows_and_is_pinned_to_the_node(cluster: FakeCluster) -> None:
    cluster.run(
        "profile", "llm-server-1", "-d", "90s", "-t", "cuda,cpu", "--ttl", "33", "--image", "r/otelgpu:1"
    )
    (made,) = cluster.created()
    for version in ("1.30", "1.37"):
        kubernetes_validate.validate(made, version, strict=True)
    spec, template = made["spec"], made["spec"]["template"]["spec"]
    assert (spec["ttlSecondsAfterFinished"], spec["backoffLimit"]) == (33, 0)
    assert spec["activeDeadlineSeconds"] == job.START_S + 90 + job.FINISH_S + job.FETCH_S
    terms = template["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["node-a"]
    observer, keeper = template["containers"]
    assert observer["image"] == keeper["image"] == "r/otelgpu:1"
    assert observer["args"][:7] == ["profile", "--container", CONTAINER_ID, "-t", "cuda,cpu", "-d", "90"]
    assert template["hostPID"] is True and template["automountServiceAccountToken"] is False


def test_the_job_has_the_capabilities_of_the_daemonset_and_the_keeper_of_results_none(
    cluster: FakeCluster,
) -> None:
    cluster.run("profile", "llm-server-1", "-d", "1")
    template = cluster.created()[0]["spec"]["template"]["spec"]
    observer, keeper = (each["securityContext"]["capabilities"] for each in template["containers"])
    needs = (
        capabilities.LOADING,
        capabilities.OTHER_PROCESSES,
        capabilities.OTHER_FILES,
        capabilities.REPLACED_FILES,
    )
    assert set(observer["add"]) == {each.name for need in needs for each in need.capabilities}
    assert keeper == {"drop": ["ALL"]}
    documents = yaml.safe_load_all((ROOT / "deploy/kubernetes/daemonset.yaml").read_text())
    daemonset = next(each for each in documents if each["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    assert template["securityContext"] | {"fsGroup": 0} == daemonset["securityContext"] | {"fsGroup": 0}
    assert template["containers"][0]["securityContext"] == daemonset["containers"][0]["securityContext"]


def test_what_the_pod_tolerates_the_job_does_but_no_node_that_is_not_ready() -> None:
    from kubectl_otelgpu.target import target_of

    own = {"key": "team", "operator": "Exists"}
    target = pod()
    target["spec"]["tolerations"] = [own, {"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]
    order = job.Order("profile", [], 1, "i", "1Mi", "2Mi", 60, "jane")
    made = job.manifest("j", "n", target_of(target, None), order)
    tolerations = made["spec"]["template"]["spec"]["tolerations"]
    assert own in tolerations
    assert "node.kubernetes.io/not-ready" not in [each["key"] for each in tolerations]


def test_a_broken_connection_goes_on_where_it_broke(cluster: FakeCluster) -> None:
    cluster.scenario |= {"breaks": [700, 1500], "lost_packs": 1}
    done = cluster.run("profile", "llm-server-1", "-d", "1", "-o", "flame.html")
    assert done.returncode == 0, done.stderr
    assert (cluster.folder / "flame.html").read_bytes() == cluster.result
    begins = [call[call.index("tail") + 2] for call in cluster.calls() if "tail" in call]
    assert begins == ["+1", "+701", "+1501"]


def test_what_is_not_what_the_pod_has_is_not_kept(cluster: FakeCluster) -> None:
    cluster.scenario["digest"] = "0" * 64
    done = cluster.run("profile", "llm-server-1", "-d", "1", "-o", "flame.html")
    assert done.returncode == 1
    assert "not what the pod has" in done.stderr
    assert [path.name for path in cluster.folder.iterdir() if "flame" in path.name] == []
    assert len(cluster.deleted()) == 1


def test_a_place_that_cannot_be_written_to_is_named(cluster: FakeCluster) -> None:
    (cluster.folder / "flame.html").mkdir()
    done = cluster.run("profile", "llm-server-1", "-d", "1", "-o", "flame.html", "--force")
    assert done.returncode == 1
    assert "cannot write flame.html: Is a directory" in done.stderr
    assert len(cluster.deleted()) == 1


def test_a_file_that_is_there_is_kept_and_nothing_is_made(cluster: FakeCluster) -> None:
    (cluster.folder / "flame.html").write_text("mine")
    done = cluster.run("profile", "llm-server-1", "-o", "flame.html")
    assert (done.returncode, cluster.created()) == (1, [])
    assert "flame.html is there already" in done.stderr and "--force" in done.stderr
    assert cluster.run("profile", "llm-server-1", "-d", "1", "-o", "flame.html", "--force").returncode == 0


FORBIDDEN = (
    'Error from server (Forbidden): error when creating "STDIN": jobs.batch is forbidden: User "jane" cannot create '
    'resource "jobs" in API group "batch" in the namespace "serving"'
)
SECURITY = (
    'Error creating: pods "otelgpu-profile-1-x" is forbidden: violates PodSecurity "restricted:latest": '
    'host namespaces (hostPID=true), restricted volume types (volume "tracing" uses restricted volume type "hostPath")'
)


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def unschedulable(message: str) -> dict[str, Any]:
    made = job_pod(waiting("ContainerCreating"))
    made["status"]["conditions"] = [{"type": "PodScheduled", "reason": "Unschedulable", "message": message}]
    return made


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        (
            {"fails": {"create": FORBIDDEN}},
            ["jane may not create jobs in namespace serving", "kubectl-role.yaml"],
        ),
        (
            {"job_pods": [None], "events": [{"reason": "FailedCreate", "message": SECURITY}]},
            [
                "Pod Security refuses the pod in namespace serving",
                "hostPID=true",
                "kubectl label namespace serving pod-security.kubernetes.io/enforce=privileged",
                "--job-namespace",
            ],
        ),
        (
            {"job_pods": [job_pod(waiting("ErrImageNeverPull", "not present"))]},
            ["node node-a cannot get the image", "not present", "--image"],
        ),
        (
            {
                "job_pods": [
                    unschedulable("0/1 nodes: 1 had untolerated taint {node.kubernetes.io/not-ready: }")
                ]
            },
            ["node node-a is not ready", "kubectl describe node node-a"],
        ),
        (
            {"job_pods": [unschedulable("0/1 nodes are available: 1 Insufficient memory")]},
            ["node node-a has no room", "--memory-request"],
        ),
        ({"target": [None]}, ["there is no pod llm-server-1"]),
        ({"target": [pod(containers=("server", "proxy"))]}, ["has no container missing", "server, proxy"]),
        (
            {"target": [pod(containers=("missing",), state=waiting("CrashLoopBackOff"))]},
            ["container missing of pod llm-server-1 does not run: waiting (CrashLoopBackOff)"],
        ),
        ({"target": [pod(containers=("missing",), node="")]}, ["runs on no node yet"]),
        (
            {"job_pods": [job_pod({"terminated": {"reason": "OOMKilled", "exitCode": 137}})]},
            ["more memory than its limit of 1Gi", "--memory-limit"],
        ),
        (
            {
                "job_pods": [job_pod({"terminated": {"exitCode": 1}})],
                "log": "no process runs in container 8a3b\n",
            },
            ["ended with exit code 1: no process runs in container 8a3b"],
        ),
        (
            {"fails": {"config": "error: You must be logged in to the server (Unauthorized)"}},
            ["the API server does not know you"],
        ),
        (
            {"fails": {"config": "The connection to the server localhost:8080 was refused - …"}},
            ["the API server does not answer"],
        ),
        ({"job_pods": [job_pod({"running": {}}), None]}, ["was deleted in the middle", "drained"]),
    ],
)
def test_what_goes_wrong_is_said_in_words_and_nothing_is_left(
    cluster: FakeCluster, scenario: dict[str, Any], words: list[str]
) -> None:
    cluster.scenario |= scenario
    if "target" not in scenario:
        cluster.scenario["target"] = [pod(containers=("missing",))]
    done = cluster.run("profile", "llm-server-1", "-c", "missing", "-d", "1")
    assert done.returncode == 1
    for each in words:
        assert each in done.stderr
    assert "Traceback" not in done.stderr
    assert len(cluster.deleted()) >= len(cluster.created())


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (None, "pod llm-server-1 was deleted in the middle"),
        (pod(container_id="f" * 64, restarts=1), "container server restarted in the middle"),
    ],
)
def test_what_became_of_the_container_meanwhile_is_said(
    cluster: FakeCluster, later: dict[str, Any] | None, words: str
) -> None:
    cluster.scenario["target"] = [pod(), later]
    done = cluster.run("profile", "llm-server-1", "-d", "1", "-o", "flame.html")
    assert done.returncode == 0
    assert words in done.stderr
    assert (cluster.folder / "flame.html").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_deletes_what_was_made(cluster: FakeCluster, number: signal.Signals) -> None:
    cluster.scenario |= {"job_pods": [job_pod({"running": {}})], "log_lasts_s": 30}
    with cluster.start("profile", "llm-server-1", "-d", "600", "-o", "flame.html") as process:
        deadline = time.monotonic() + 30
        while not any("logs" in call for call in cluster.calls()) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert cluster.deleted() == [cluster.created()[0]["metadata"]["name"]]
    assert "interrupted" in said
    assert not (cluster.folder / "flame.html").exists()


def test_an_api_server_that_is_out_of_reach_for_a_while_is_waited_for(cluster: FakeCluster) -> None:
    lost = "Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout"
    cluster.scenario["job_pods"] = [lost, job_pod({"running": {}}), lost, job_pod()]
    done = cluster.run("profile", "llm-server-1", "-d", "1", "-o", "flame.html")
    assert done.returncode == 0, done.stderr


def test_pods_of_a_selector_are_observed_side_by_side(cluster: FakeCluster) -> None:
    cluster.scenario["pods"] = [pod("rank-0"), pod("rank-1")]
    cluster.scenario["job_pods"] = [job_pod()]
    done = cluster.run("profile", "-l", "job=train", "-d", "1", "-o", "flame.html")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in cluster.folder.glob("*.html")) == [
        "flame-rank-0.html",
        "flame-rank-1.html",
    ]
    assert len(set(cluster.deleted())) == len(cluster.created()) == 2


@pytest.mark.parametrize(
    ("kinds", "counted", "noted"),
    [
        ("all", "cpu 12, python_wall 3", True),
        ("cuda,kernel", "no samples", True),
        ("all", "cpu 12, cuda_calls 385", False),
        ("all", "cpu 12, cuda_calls 0", True),
        ("cpu", "cpu 12", False),
    ],
)
def test_a_container_without_gpu_work_is_named(kinds: str, counted: str, noted: bool) -> None:
    log = [
        "profiling container 8a3b for 5 s",
        f"otelgpu: written to /run/otelgpu/a.html (flame graph): {counted}",
    ]
    assert no_gpu_work(kinds, log) == noted


def test_what_a_pod_prints_cannot_command_the_terminal(cluster: FakeCluster) -> None:
    cluster.scenario["log"] = "\x1b]0;owned\x07 line\n"
    done = cluster.run("profile", "llm-server-1", "-d", "1", "-o", "flame.html")
    assert "owned" in done.stderr
    assert "\x1b" not in done.stderr and "\x07" not in done.stderr


def test_a_missing_kubectl_is_named(cluster: FakeCluster) -> None:
    (cluster.folder / "kubectl").unlink()
    done = cluster.run("profile", "llm-server-1")
    assert done.returncode == 1
    assert "there is no program" in done.stderr and "install kubectl" in done.stderr


@pytest.mark.parametrize(
    ("packed", "size", "words"),
    [
        (b"\x1f\x8b no gzip at all", 100, "no gzip"),
        (gzip.compress(bytes(1 << 20)), 100, "more than it said"),
    ],
)
def test_what_a_pod_sends_is_bounded_by_what_it_announced(packed: bytes, size: int, words: str) -> None:
    written: list[bytes] = []
    with pytest.raises(Fault, match=words):
        results.Unpacked(written.append, size).take(packed)
    assert sum(map(len, written)) <= size
