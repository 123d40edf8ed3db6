"""`otelgpu topology --observe` on the live kernel: queue pairs of a program, and this host's GPUs by a fake NVML."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.kernel.observing import OTELGPU
from tests.rig.fakes import BUILD, build_fakes
from tests.rig.verbs_client import VerbsClient
from tests.unit.families.gpu.devices.nvml_script import Script

pytestmark = pytest.mark.usefixtures("kernel")

LIMIT_S = 90


@pytest.mark.skipif(
    not (build_fakes() / "verbs" / "verbs_client").exists(),
    reason="the headers of libibverbs are not installed (Debian: libibverbs-dev)",
)
def test_queue_pairs_and_devices_of_this_host_are_shown_in_one_command(tmp_path: Path) -> None:
    script = Script(tmp_path / "nvml").gpu(0, memory_total=1 << 30, memory_used=1 << 20)
    environ = {
        **os.environ,
        "LD_LIBRARY_PATH": str(BUILD),
        "FAKE_NVML": str(script.path),
        "TMPDIR": str(tmp_path),
    }
    command = [OTELGPU, "topology", "--observe", "8s", "--json"]
    with VerbsClient() as client:
        watch = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
        )
        assert watch.stderr is not None
        while "observing every matching process; for 8 s" not in (line := watch.stderr.readline()):
            assert line, "it ended before it observed"
        client.do("open", "pair")
        written, said = watch.communicate(timeout=LIMIT_S)
        numbers = set(client.truth())
    assert watch.returncode in (0, 3), said  # programs of other tests have faults
    found = json.loads(written)
    (node,) = found["nodes"]
    assert node["name"] == os.uname().nodename
    assert len(node["gpus"]) == 1
    own = [
        each["number"]
        for each in found["queue_pairs"]
        if node["processes"][each["process"]]["pid"] == client.pid
    ]
    assert (sorted(own), len(own)) == (sorted(numbers), 2)
    assert not list(tmp_path.glob("otelgpu-topology-*"))
