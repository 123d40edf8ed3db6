"""A cluster that is none: :class:`FakeCluster`."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kubectl_otelgpu.client import PROGRAM_VARIABLE

ROOT = Path(__file__).resolve().parents[3]
CONTAINER_ID = "8a3b" + "0" * 60

# A cluster that is none answers at once: the plug-in asks it twenty times a second, not once.
_PROGRAM = """
import sys
from kubectl_otelgpu import observation, results
observation._POLL_S = results._PAUSE_S = 0.05
observation._EVENTS_S = observation._SCHEDULING_S = 0.2
from kubectl_otelgpu.commands import main
sys.exit(main())
"""


def pod(
    name: str = "llm-server-1",
    *,
    containers: tuple[str, ...] = ("server",),
    state: dict[str, Any] | None = None,
    container_id: str = CONTAINER_ID,
    restarts: int = 0,
    node: str = "node-a",
    **metadata: Any,
) -> dict[str, Any]:
    """A pod as the API server describes it; each of its containers is in ``state`` (default: runs)."""
    status = {"containerID": f"containerd://{container_id}", "restartCount": restarts}
    return {
        "metadata": {"name": name, "namespace": "serving", "uid": f"uid-{name}", **metadata},
        "spec": {
            "nodeName": node,
            "containers": [{"name": each} for each in containers],
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
            ],
        },
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": each, "state": state or {"running": {}}, **status} for each in containers
            ],
        },
    }


def job_pod(state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    """The Job's pod, with otelgpu's container in ``state`` (default: it has ended well)."""
    made = pod("otelgpu-profile-1-x", containers=("otelgpu", "result"))
    made["status"]["containerStatuses"][0]["state"] = state or {"terminated": {"exitCode": 0}}
    made["status"] |= status
    return made


class FakeCluster:
    """Its answers are attributes; ``run`` is the plug-in against it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "cluster").mkdir()
        self.scenario: dict[str, Any] = {
            "target": [pod()],
            "pods": [],
            "job_pods": [None, job_pod({"running": {}}), job_pod()],
            "events": [],
            "job_labels": {"app.kubernetes.io/managed-by": "kubectl-otelgpu"},
            "log": "profiling container 8a3b00000000 for 1 s\n",
            "log_lasts_s": 0,
            "result": base64.b64encode(b"<html>" + bytes(range(256)) * 2000).decode(),
            "digest": "",
            "breaks": [],
            "lost_packs": 0,
            "fails": {},
            "verdict": "",
        }
        self.environment: dict[str, str] = {}
        kubectl = folder / "kubectl"
        kubectl.write_text(
            f"#!{sys.executable} -IS\n{(Path(__file__).parent / 'fake_kubectl.py').read_text()}"
        )
        kubectl.chmod(0o755)

    @property
    def result(self) -> bytes:
        return base64.b64decode(self.scenario["result"])

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        (self.folder / "cluster/scenario.json").write_text(json.dumps(self.scenario))
        environment = os.environ | {
            PROGRAM_VARIABLE: str(self.folder / "kubectl"),
            "FAKE_CLUSTER": str(self.folder / "cluster"),
            "PYTHONPATH": str(ROOT),
            **self.environment,
        }
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def calls(self) -> list[list[str]]:
        """What ``kubectl`` was asked, in order."""
        path = self.folder / "cluster/calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def created(self) -> list[dict[str, Any]]:
        """Manifests."""
        path = self.folder / "cluster/created.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def deleted(self) -> list[str]:
        """Names of Jobs."""
        return [call[call.index("job") + 1] for call in self.calls() if "delete" in call]


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    return FakeCluster(tmp_path)
