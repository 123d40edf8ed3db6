"""A process in the cgroup of a pod: the kernel says which pod and container it is in."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from otelgpu.engine import registry
from otelgpu.engine.pipeline import Pipeline
from otelgpu.kernel.scope import Scope
from otelgpu.model.resource import resource
from otelgpu.processes.kubernetes import OwnPod
from otelgpu.processes.resources import ResourceDetector
from otelgpu.sources.live import LiveSettings, LiveSource
from tests.kernel.observing import wait_until
from tests.rig import start_cuda_client
from tests.rig.cgroup import in_cgroup, own_cgroup, remove_cgroup
from tests.rig.kubernetes import NODE
from tests.unit.model.builders import Row, read_out


@contextlib.contextmanager
def pod_cgroup(pod_uid: str, container_id: str) -> Iterator[Path]:
    """As kubelet with the cgroupfs driver makes it."""
    with own_cgroup() as root:
        pods = root / "kubepods"
        folder = pods / f"pod{pod_uid}" / container_id
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            for each in (folder, folder.parent, pods):
                remove_cgroup(each)


def test_spans_carry_the_pod_and_the_container_of_their_process() -> None:
    pod_uid, container_id = str(uuid.uuid4()), secrets.token_hex(32)
    families = registry.select(("cuda",))
    with (
        pod_cgroup(pod_uid, container_id) as cgroup,
        start_cuda_client(calls=101) as client,
    ):
        (cgroup / "cgroup.procs").write_text(str(client.pid))
        resource_detector = ResourceDetector({"host.name": "h"}, own=OwnPod(node=NODE, name="agent-x"))
        source = LiveSource(
            families, Scope(), LiveSettings(ring_bytes={}, resource_detector=resource_detector)
        )
        try:
            source.observe(client.pid)
            inputs = source.collect()
            client.finish()
            inputs += source.collect()
            btf = source.btf
        finally:
            source.close()
    pipeline = Pipeline(families, btf, seed=1, own=resource({"service.name": "otelgpu"}), start_unix_ns=0)
    rows: list[Row] = [row for item in inputs for row in read_out(pipeline.feed(item))]
    rows += read_out(pipeline.finish())
    assert sum(int(row.get("otelgpu.count") or 1) for row in rows if "cudaLaunchKernel" in row.name) == 101
    owners = {row.resource for row in rows}
    assert len(owners) == 1
    (owner,) = owners
    assert (owner.get("k8s.pod.uid"), owner.get("container.id")) == (pod_uid, container_id)
    assert owner.get("k8s.node.name") == NODE
    assert owner.get("k8s.pod.name") is None  # the agent's own, which this is not


LOOK = """
import json, sys
from otelgpu.processes.listing import describe
found = [describe(int(tgid)) for tgid in sys.argv[1:]]
print(json.dumps([[f.container_id, f.pod_uid, f.placed_by, f.with_agent] for f in found]))
"""


def test_a_sidecar_with_a_cgroup_namespace_knows_its_own_pod_from_another() -> None:
    own, other = str(uuid.uuid4()), str(uuid.uuid4())
    mine, beside, there = (secrets.token_hex(32) for _ in range(3))
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(own_cgroup())
        sleepers = []
        made = [root / "kubepods"]
        for pod, container in ((own, mine), (own, beside), (other, there)):
            folder = root / "kubepods" / f"pod{pod}" / container
            folder.mkdir(parents=True)
            made += [folder.parent] * (folder.parent not in made) + [folder]
            if container != mine:
                sleeper = stack.enter_context(subprocess.Popen([*in_cgroup(folder), "sleep", "60"]))
                stack.callback(sleeper.kill)
                sleepers.append(sleeper.pid)
        reader = [*in_cgroup(root / "kubepods" / f"pod{own}" / mine), "unshare", "--cgroup"]
        try:
            wait_until(lambda: all(_is_in_a_pod(pid) for pid in sleepers), "the sleepers in their cgroups")
            said = subprocess.run(
                [*reader, sys.executable, "-c", LOOK, *map(str, sleepers)],
                env={**os.environ, "OTELGPU_POD_UID": own},
                check=True,
                capture_output=True,
                text=True,
                timeout=30,
            ).stdout
        finally:
            for pid in sleepers:
                os.kill(pid, 9)
            for folder in reversed(made):
                wait_until(lambda folder=folder: _removed(folder), "an empty cgroup")
    assert json.loads(said) == [[beside, own, "same_pod", True], [there, other, "cgroup", False]]


def _is_in_a_pod(pid: int) -> bool:
    return "/kubepods/" in Path(f"/proc/{pid}/cgroup").read_text()


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True
