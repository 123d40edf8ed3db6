"""``otelgpu profile-pods`` live: the pod whose annotation asks has its profile taken, and nobody else's process."""

from __future__ import annotations

import secrets
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest
import yaml

from otelgpu.cli.pod_watch.command import Switches
from otelgpu.cli.pod_watch.metadata import Metadata
from otelgpu.model.switches import PROFILE_ANNOTATION
from otelgpu.render.format import read_profiles
from tests.kernel.observing import OTELGPU, wait_until
from tests.kernel.test_switch import events
from tests.rig.cgroup import in_cgroup, memory_cgroup, own_cgroup, remove_cgroup

pytestmark = pytest.mark.long

SPIN = """
import time
def {name}():
    return sum(number * number for number in range(20000))
while True:
    {name}()
    time.sleep(0.002)
"""


@contextmanager
def asked_for(folder: Path, settings: Mapping[str, object]) -> Iterator[str]:
    """``profile-pods`` in a folder, and two pods, of which one is annotated, whose uid is given; then it ends well."""
    asked, config = folder / "profiles.json", folder / "otelgpu.yaml"
    (folder / "taken").mkdir()
    config.write_text(yaml.safe_dump(dict(settings)))
    asking, other = str(uuid.uuid4()), str(uuid.uuid4())
    with ExitStack() as stack:
        pods = stack.enter_context(own_cgroup()) / "kubepods"
        pods.mkdir()
        stack.callback(remove_cgroup, pods)
        for uid, name in ((asking, "asked_for"), (other, "not_asked_for")):
            place = pods / f"pod{uid}" / secrets.token_hex(32)
            place.mkdir(parents=True)
            for each in (place.parent, place):
                stack.callback(remove_cgroup, each)
            command = (*in_cgroup(place), sys.executable, "-c", SPIN.format(name=name))
            stack.callback(stack.enter_context(subprocess.Popen(command)).kill)
        pod = Metadata(name="asking", namespace="serving", uid=asking, annotations={PROFILE_ANNOTATION: "2s"})
        Switches(asked, PROFILE_ANNOTATION).replace([pod])
        begins = (OTELGPU, "profile-pods", "--requests", asked, "-o", folder / "taken", "--config", config)
        agent = stack.enter_context(subprocess.Popen(begins, stderr=subprocess.PIPE, text=True))
        stack.callback(agent.kill)
        yield asking
        agent.terminate()
        assert agent.wait(20) == 0


def test_the_pod_that_is_annotated_has_a_profile_of_its_own_processes_alone(tmp_path: Path) -> None:
    out, folder = tmp_path / "out.jsonl", tmp_path / "taken"
    with asked_for(tmp_path, {"export": [f"file:{out}"]}) as asking:
        wait_until(lambda: out.exists() and len(events(out)) == 2, "the event that it ended", limit_s=90)
    (file,) = set(folder.iterdir()) - {folder / "decided.json"}
    batches = read_profiles(file.name, file.read_bytes())
    functions = {each.name for batch in batches for each in batch.functions}
    assert "asked_for" in functions and "not_asked_for" not in functions
    began, ended = events(out)
    assert began == "pod serving/asking: a profile of 2 s began"
    assert ended.startswith("pod serving/asking: a profile of 2 s ended: over: ")
    assert ended.endswith(f" samples in {file}")
    kept = msgspec.json.decode((folder / "decided.json").read_bytes())
    assert (kept["decided"], kept.get("current")) == ({asking: "2s"}, None)


HUNGRY = """
import sys
from otelgpu.cli.commands import cli
from otelgpu.cli.pod_profiles import taking
taking.take = lambda order: b"x" * (512 << 20)
cli(["profile-pods", *sys.argv[1:]])
"""


def test_the_kernel_ends_a_profile_for_want_of_memory_and_that_is_reported(tmp_path: Path) -> None:
    """A real OOM kill in a container of 200 MiB: of the profile's process alone."""
    out, asked, config = tmp_path / "out.jsonl", tmp_path / "profiles.json", tmp_path / "otelgpu.yaml"
    config.write_text(yaml.safe_dump({"export": [f"file:{out}"]}))
    pod = Metadata(
        name="asking", namespace="serving", uid=str(uuid.uuid4()), annotations={PROFILE_ANNOTATION: "2s"}
    )
    Switches(asked, PROFILE_ANNOTATION).replace([pod])
    with memory_cgroup(200 << 20) as container:
        begins = [*in_cgroup(container), sys.executable, "-c", HUNGRY, "--requests", str(asked)]
        begins += ["-o", str(tmp_path), "--config", str(config)]
        with subprocess.Popen(begins, stderr=subprocess.PIPE, text=True) as agent:
            try:
                wait_until(lambda: out.exists() and len(events(out)) == 2, "the event of it", limit_s=90)
                agent.terminate()
                assert agent.wait(20) == 0
            finally:
                agent.kill()
    assert events(out)[1] == (
        "pod serving/asking: a profile of 2 s ended: failed: "
        "what took it ended for want of memory: its container may have 200 MiB"
    )
