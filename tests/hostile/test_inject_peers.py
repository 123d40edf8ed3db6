"""Peers of the in-process source that write all they can neither bloat the agent nor hide anybody's calls."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.attacks import PEER
from tests.hostile.stage import MOST_RSS_BYTES, Stage, ends_in_time, resident_bytes
from tests.kernel.observing import read_metrics
from tests.rig import ROOT

PEERS = 32
CALLS = 200
FLOOD_S = 3.0
MOST_LAG_S = 2.0


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
        with stage.start_victim(PEER, str(ROOT), str(socket_path), "1", str(CALLS)) as victim:
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
    print(f"{most >> 20} MiB, lag {stage.lag_s():.3f} s, {seen} of {CALLS} calls")
    assert seen == CALLS
    assert stage.lag_s() < MOST_LAG_S
    assert most < MOST_RSS_BYTES
