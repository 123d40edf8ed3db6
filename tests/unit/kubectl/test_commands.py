"""``kubectl otelgpu trace``, ``check`` and ``ps``, against a cluster that is none."""

from __future__ import annotations

import json

import pytest

from tests.unit.kubectl.conftest import CONTAINER_ID, FakeCluster, job_pod, pod

pytestmark = pytest.mark.slow  # each waits for a cluster, a second at a time
PROCESS = {
    "pid": 4242,
    "name": "vllm",
    "command": ["vllm", "serve"],
    "executable": "/usr/bin/vllm",
    "container_id": CONTAINER_ID,
    "container_name": "",
    "pod_uid": "uid-llm-server-1",
    "devices": [{"uuid": "GPU-1", "index": 3, "model": "H200", "memory_bytes": 1}],
    "libraries": [],
    "profile": "otelgpu profile -p 4242",
}


def test_trace_makes_a_page_of_what_the_agent_collected(cluster: FakeCluster) -> None:
    done = cluster.run(
        "trace", "llm-server-1", "-d", "5", "-o", "a.html", "-o", "a.jsonl", "--export", "otlp:http://c:4318"
    )
    assert done.returncode == 0, done.stderr
    job = cluster.created()[0]["metadata"]["name"]
    arguments = cluster.created()[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments == [
        *("agent", "--container", CONTAINER_ID, "-d", "5"),
        *("--export", f"file:/run/otelgpu/{job}.jsonl", "--export", "otlp:http://c:4318"),
    ]
    view = ["view", f"/run/otelgpu/{job}.jsonl", "-o", f"/run/otelgpu/{job}.html"]
    assert any(call[-5:-1] == view for call in cluster.calls())
    assert (cluster.folder / "a.html").exists() and (cluster.folder / "a.jsonl").exists()


def test_a_trace_of_another_format_is_refused_before_anything_is_made(cluster: FakeCluster) -> None:
    done = cluster.run("trace", "llm-server-1", "-o", "a.svg")
    assert (done.returncode, cluster.created()) == (1, [])
    assert "a trace is a page (.html) or OTLP/JSON lines (.jsonl)" in done.stderr


def test_check_prints_what_otelgpu_says(cluster: FakeCluster) -> None:
    cluster.scenario["log"] = "everything required is there\n"
    done = cluster.run("check", "llm-server-1")
    assert (done.returncode, done.stdout) == (0, "everything required is there\n"), done.stderr
    assert cluster.created()[0]["spec"]["template"]["spec"]["containers"][0]["args"] == [
        "check", "--container", CONTAINER_ID,
    ]  # fmt: skip


def test_ps_names_pods_and_asks_nodes_whose_pods_have_gpus(cluster: FakeCluster) -> None:
    with_gpu = pod()
    with_gpu["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    cluster.scenario |= {
        "pods": [with_gpu, pod("other", node="node-b")],
        "job_pods": [job_pod()],
        "log": "a line of the log\n" + json.dumps({"note": "", "processes": [PROCESS]}, indent=2) + "\n",
    }
    done = cluster.run("ps")
    assert done.returncode == 0, done.stderr
    assert len(cluster.created()) == len(cluster.deleted()) == 1
    title, row = done.stdout.splitlines()
    assert title.split() == ["NODE", "NAMESPACE", "POD", "CONTAINER", "PID", "DEVICE", "COMMAND"]
    assert row.split() == [
        *("node-a", "serving", "llm-server-1", CONTAINER_ID[:12], "4242", "GPU", "3", "vllm", "serve")
    ]
    assert json.loads(cluster.run("ps", "--json").stdout)["processes"][0]["pod"] == "llm-server-1"


def test_ps_of_a_node_that_answers_nonsense_says_so(cluster: FakeCluster) -> None:
    cluster.scenario |= {"pods": [pod()], "job_pods": [job_pod()], "log": "{]\n"}
    done = cluster.run("ps")
    assert done.returncode == 1
    assert "node-a answered what is no document" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["profile"], "give a pod, or pods by -l"),
        (["profile", "a", "-l", "b=c"], "give a pod, or pods by -l"),
        (["profile", "a", "-d", "2d"], "no duration"),
        (["profile", "a", "-d", "0"], "no duration"),
        (["profile", "a", "--memory-limit", "lots"], "no amount of memory"),
        (["profile", "a", "--ttl", "-1"], "no number of seconds"),
        (["profile", "a", "-o", "flame"], "says no format"),
        (["profile", "a", "-o", "nowhere/flame.html"], "there is no folder nowhere"),
        (["profile", "-l", "b=c"], "no pod runs in namespace serving with labels b=c"),
    ],
)
def test_bad_input_is_refused_in_words_before_anything_is_made(
    cluster: FakeCluster, arguments: list[str], words: str
) -> None:
    done = cluster.run(*arguments)
    assert done.returncode in (1, 2)
    assert words in done.stderr and "Traceback" not in done.stderr
    assert cluster.created() == []


def test_an_environment_stays_when_the_command_has_ended_and_is_deleted_by_its_name(
    cluster: FakeCluster,
) -> None:
    cluster.scenario["job_pods"] = [job_pod({"running": {}})]
    done = cluster.run("deploy", "--node", "node-b", "-d", "5m", "--ttl", "9")
    assert done.returncode == 0, done.stderr
    (made,) = cluster.created()
    assert done.stdout.strip() == made["metadata"]["name"]
    assert cluster.deleted() == []
    template = made["spec"]["template"]["spec"]
    assert (made["spec"]["ttlSecondsAfterFinished"], template["securityContext"]["runAsUser"]) == (9, 0)
    assert len(template["containers"]) == 1
    assert len(template["containers"][0]["securityContext"]["capabilities"]["add"]) == 5

    done = cluster.run("delete", done.stdout.strip())
    assert done.returncode == 0, done.stderr
    assert cluster.deleted() == [made["metadata"]["name"]]


def test_a_job_of_somebody_else_is_neither_entered_nor_deleted(cluster: FakeCluster) -> None:
    cluster.scenario["job_labels"] = {}
    for arguments in (["delete", "backup"], ["exec", "backup", "--", "sh"]):
        done = cluster.run(*arguments)
        assert done.returncode == 1
        assert "job backup was not made by kubectl otelgpu" in done.stderr
    assert cluster.deleted() == []
