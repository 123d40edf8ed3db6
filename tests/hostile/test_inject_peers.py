"""Peers of the in-process source that write all they can neither bloat the agent nor hide anybody's calls."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.stage import MOST_RSS_BYTES, Stage, ends_in_time, resident_bytes
from tests.kernel.observing import read_metrics
from tests.rig import ROOT

PEERS = 32
CALLS = 200
FLOOD_S = 5.0
MOST_LAG_S = 2.0
PEER = """
import os, sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
from otelgpu.kernel.injection.server import read_library
from otelgpu.kernel.loader import read_image
from types import SimpleNamespace
from tests.rig.inject_client import HEADER_BYTES, InjectClient, launches
peers, calls = int(sys.argv[3]), int(sys.argv[4])
layout, btf = read_library().layout, read_image("cuda").btf
for _ in range(peers - 1):
    if os.fork() == 0:
        break
client = InjectClient(SimpleNamespace(path=sys.argv[2]), layout, btf)
client.threads["owner"] = os.getpid()
if calls:  # one after another
    for number in range(calls):
        client.write(client.call())
        time.sleep(0.02)
    os.write(1, b"written\\n")
    time.sleep(60)
ring_bytes = client.rings.shape[1]
records = launches(btf, 1 << 14, ends_ns=time.clock_gettime_ns(time.CLOCK_MONOTONIC))
frame = HEADER_BYTES + records.shape[1]
count = (ring_bytes - HEADER_BYTES) // frame
framed = np.zeros(ring_bytes, dtype=np.uint8)
rows = framed[: count * frame].reshape(count, frame)
rows[:, :4] = np.frombuffer(np.uint32(records.shape[1]).tobytes(), dtype=np.uint8)
rows[:, HEADER_BYTES:] = np.resize(records, (count, records.shape[1]))
rest = np.uint32((1 << 30) | (ring_bytes - count * frame - HEADER_BYTES))
framed[count * frame : count * frame + 4] = np.frombuffer(rest.tobytes(), dtype=np.uint8)
client.rings[:] = framed
os.write(1, b"begun\\n")
while True:
    client.threads["producer"] = client.threads["consumer"] + ring_bytes  # as full as can be, at all times
    time.sleep(0.001)
"""


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """Of a socket in a folder that everybody may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder, "inject.sock")


@pytest.mark.alone(reason="floods the agent with records: for seconds nobody else gets a processor")
def test_peers_that_write_all_they_can_take_their_parts_alone(
    stage: Stage, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTELGPU_INJECT_SOCKET", str(socket_path))
    monkeypatch.setenv("OTELGPU_SOURCE", "inject")
    with stage.agent("--families=cuda", "--detail=phases") as agent:
        socket_path.chmod(0o666)
        stage.attack_with(PEER, str(ROOT), str(socket_path), str(PEERS), "0")
        time.sleep(FLOOD_S)
        with subprocess.Popen(
            [*stage.victim, sys.executable, "-c", PEER, str(ROOT), str(socket_path), "1", str(CALLS)],
            stdout=subprocess.PIPE,
            text=True,
        ) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "written\n"
            time.sleep(2)
            most = resident_bytes(agent.process.pid, "VmHWM")
            ends_in_time(agent)
            victim.kill()
    metrics = read_metrics(stage.traces)
    seen = sum(
        int(point["asInt"])
        for point in metrics["gpu.cuda.memory.free.calls"]
        if point["resource"]["process.pid"] == victim.pid
    )
    (lag,) = metrics["otelgpu.loop.lag"]
    print(f"{most >> 20} MiB, lag {lag['asDouble']:.3f} s, {seen} of {CALLS} calls")
    assert seen == CALLS
    assert lag["asDouble"] < MOST_LAG_S
    assert most < MOST_RSS_BYTES
