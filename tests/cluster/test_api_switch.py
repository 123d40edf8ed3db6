"""More detail by an annotation, before a real API server: who may ask, and that ``otelgpu watch-pods`` hears of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.node import NODE, ApiServer, RigError, simple_pod, wait_until
from tests.deploy.manifests import DEPLOY, ROOT

SERVING = "serving"
POD = ("pod", "llm-server-1", "-n", SERVING)


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> ApiServer:
    for file in ("namespace.yaml", "daemonset.yaml", "switch.yaml"):
        api_server.kubectl("apply", "-f", str(DEPLOY / "kubernetes" / file))
    api_server.namespace(SERVING)
    for name, node in (("llm-server-1", NODE), ("elsewhere", "node-z")):
        pod = simple_pod(name, "llm-server:1", nodeName=node)
        pod["metadata"]["namespace"] = SERVING
        api_server.apply(pod)
    return api_server


@pytest.fixture
def watched(server: ApiServer, tmp_path: Path) -> Iterator[Path]:
    """The file of a watch that goes on, as the DaemonSet's service account."""
    config = json.loads(server.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    (tmp_path / "token").write_text(server.kubectl("create", "token", "otelgpu", "-n", "otelgpu"))
    cluster: dict[str, Any] = config["clusters"][0]["cluster"]
    file = tmp_path / "switches.json"
    command = [sys.executable, "-m", "otelgpu", "watch-pods", "-o", file, "--node", NODE]
    authority = server.folder / "certs/apiserver.crt"  # which the server has made for itself
    command += [
        "--server",
        cluster["server"],
        "--token-file",
        tmp_path / "token",
        "--ca-file",
        authority,
    ]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: file.exists() or process.poll() is not None, "the first list", 60)
            assert file.exists(), process.stderr.read() if process.stderr else ""
            yield file
        finally:
            process.terminate()


def switches(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text())["switches"]
    return found


def test_an_annotation_is_heard_of_with_who_wrote_it_and_when_and_so_is_its_end(
    server: ApiServer, watched: Path
) -> None:
    assert switches(watched) == []
    server.kubectl("annotate", "pod", "elsewhere", "-n", SERVING, "otelgpu.io/detail=all 5m")
    server.kubectl("annotate", *POD, "otelgpu.io/detail=all 5m")
    wait_until(lambda: bool(switches(watched)), "the annotation", 20)
    (found,) = switches(watched)
    assert (found["namespace"], found["pod"], found["value"]) == (SERVING, "llm-server-1", "all 5m")
    assert found["uid"] == server.pod("llm-server-1", SERVING)["metadata"]["uid"]
    assert found["manager"] == "kubectl-annotate"
    assert abs(found["written_unix_s"] - time.time()) < 30
    server.kubectl("annotate", *POD, "otelgpu.io/detail-")
    wait_until(lambda: switches(watched) == [], "its end", 20)


def test_who_may_not_change_the_pod_may_not_ask(server: ApiServer) -> None:
    with pytest.raises(RigError, match=r"cannot (get|patch) resource"):
        server.kubectl("annotate", *POD, "otelgpu.io/detail=all 5m", who="developer")


@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),
    [
        *(("list", "pods", "yes"), ("watch", "pods", "yes"), ("get", "pods", "no"), ("patch", "pods", "no")),
        *(("get", "secrets", "no"), ("create", "pods/exec", "no"), ("get", "nodes/proxy", "no")),
    ],
)
def test_who_watches_may_list_and_watch_pods_and_no_more(
    server: ApiServer, verb: str, resource: str, allowed: str
) -> None:
    asked = ("auth", "can-i", verb, resource, "-A", "--as=system:serviceaccount:otelgpu:otelgpu")
    try:
        answer = server.kubectl(*asked)
    except RigError:  # it fails where it is not allowed
        answer = "no"
    assert answer.strip() == allowed


def test_the_patch_is_taken_in_and_leaves_the_agent_without_a_token(server: ApiServer) -> None:
    file = str(DEPLOY / "kubernetes/patches/switch.yaml")
    patched = json.loads(
        server.kubectl("-n", "otelgpu", "patch", "daemonset", "otelgpu", "--patch-file", file, "-o", "json")
    )
    spec = patched["spec"]["template"]["spec"]
    agent, watcher = spec["containers"]
    assert (agent["name"], watcher["name"]) == ("otelgpu", "watch-pods")
    assert len(agent["securityContext"]["capabilities"]["add"]) == 5
    assert "add" not in watcher["securityContext"]["capabilities"]
    assert [each["name"] for each in agent["volumeMounts"]] == ["tracing", "run"]
    assert {"name": "OTELGPU_SWITCH_FILE", "value": "/run/otelgpu/switches.json"} in agent["env"]
    assert len(agent["env"]) > 5
    assert spec["automountServiceAccountToken"] is False


def test_the_patch_for_profiles_is_taken_in_and_what_takes_them_has_no_token(server: ApiServer) -> None:
    for patch in ("switch", "switch-profiles"):
        file = str(DEPLOY / f"kubernetes/patches/{patch}.yaml")
        found = server.kubectl(
            "-n", "otelgpu", "patch", "daemonset", "otelgpu", "--patch-file", file, "-o", "json"
        )
    containers = {each["name"]: each for each in json.loads(found)["spec"]["template"]["spec"]["containers"]}
    assert list(containers) == ["otelgpu", "watch-pods", "profile-pods"]
    assert "--profiles" in containers["watch-pods"]["args"]
    taker = containers["profile-pods"]
    assert taker["securityContext"] == containers["otelgpu"]["securityContext"]
    assert [each["name"] for each in taker["volumeMounts"]] == ["tracing", "run", "profiles"]
