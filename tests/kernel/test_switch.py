"""A live agent and two pods that make the same calls: the one that is annotated has each of them reported."""

from __future__ import annotations

import secrets
import subprocess
import uuid
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
import yaml

from otelgpu.cli.pod_watch.command import Switches
from otelgpu.cli.pod_watch.metadata import Metadata
from tests.kernel.observing import OTELGPU, wait_until
from tests.rig import own_suffix, start_cuda_client
from tests.rig.cgroup import own_cgroup, remove_cgroup
from tests.rig.spans import read_spans

pytestmark = pytest.mark.long

CALLS = 997  # prime, and more than the spans that a window has in detail ops
CLIENT = f"cuda_client{own_suffix()}"


def annotated(uid: str, value: str) -> Metadata:
    return Metadata(name="asking", namespace="serving", uid=uid, annotations={"otelgpu.io/detail": value})


def events(path: Path) -> list[str]:
    """Words that the records of the file's logs have."""
    found = []
    for line in path.read_text().splitlines():
        for of in msgspec.json.decode(line).get("resourceLogs", ()):
            for scope in of["scopeLogs"]:
                found += [each["body"]["stringValue"] for each in scope["logRecords"]]
    return found


def test_the_pod_that_is_annotated_has_each_call_reported_and_its_neighbour_has_not(tmp_path: Path) -> None:
    asking, other = str(uuid.uuid4()), str(uuid.uuid4())
    out, switches, config = tmp_path / "out.jsonl", tmp_path / "switches.json", tmp_path / "otelgpu.yaml"
    settings = {
        "families": ["cuda"],
        "executables": [CLIENT],
        "export": [f"file:{out}"],
        "switch_file": str(switches),
    }
    config.write_text(yaml.safe_dump(settings | {"device_interval_ms": 0, "fabric_interval_ms": 0}))
    with ExitStack() as stack:
        root = stack.enter_context(own_cgroup())
        pods = root / "kubepods"
        pods.mkdir()
        stack.callback(remove_cgroup, pods)
        clients = []
        for uid in (asking, other):
            folder = pods / f"pod{uid}" / secrets.token_hex(32)
            folder.mkdir(parents=True)
            for each in (folder.parent, folder):
                stack.callback(remove_cgroup, each)
            client = stack.enter_context(start_cuda_client(calls=CALLS, suffix=own_suffix()))
            (folder / "cgroup.procs").write_text(str(client.pid))
            clients.append(client)
        agent = stack.enter_context(
            subprocess.Popen(
                [OTELGPU, "agent", "--quiet", "--config", config], stderr=subprocess.PIPE, text=True
            )
        )
        stack.callback(agent.terminate)
        assert agent.stderr is not None and "observing" in agent.stderr.readline()
        Switches(switches).replace([annotated(asking, "all 5m")])
        wait_until(lambda: out.exists() and bool(events(out)), "the event that it began", limit_s=20)
        for client in clients:
            assert client.finish().calls["cudaLaunchKernel"] == CALLS
        Switches(switches).replace([])
        wait_until(lambda: len(events(out)) == 2, "the event that it ended", limit_s=20)
        agent.terminate()
        agent.wait(20)
    spans = [each for each in read_spans(out) if each["name"].startswith("cudaLaunchKernel")]
    counts = {
        uid: [
            int(each["attributes"].get("otelgpu.count", 1))
            for each in spans
            if each["resource"].get("k8s.pod.uid") == uid
        ]
        for uid in (asking, other)
    }
    assert sum(counts[other]) == sum(counts[asking]) == CALLS
    assert len(counts[other]) < 20
    assert counts[asking] == [1] * CALLS
    began, ended = events(out)
    assert began == "pod serving/asking: detail all for 300 s began"
    assert ended == "pod serving/asking: detail all for 300 s ended: withdrawn"
