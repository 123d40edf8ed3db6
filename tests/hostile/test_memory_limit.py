"""Near its limit of memory the agent gives things up, those of who has most first, and goes on with all others."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from tests.hostile.attacks import FLOOD, MODELS, UPLOADS
from tests.hostile.stage import Stage, ends_in_time, resident_bytes
from tests.kernel.observing import read_metrics

PROCESSES, EACH = 10, 500
LIMIT_MIB = 150
REQUESTS = 120
MOST_LAG_S = 2.0


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a destination that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.alone(reason="floods the agent with requests: for seconds nobody else gets a processor")
def test_memory_stays_below_its_limit_and_others_requests_are_seen(
    stage: Stage, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTELGPU_MEMORY_LIMIT_MIB", str(LIMIT_MIB))
    with stage.agent("--families=http", "--detail=phases", f"--export=otlp:{silent}") as agent:
        stage.attack_with(UPLOADS, "150")
        stage.attack_with(FLOOD)
        attacker = stage.attack_with(MODELS, str(PROCESSES), str(EACH), "0.012")
        assert attacker.stdout is not None
        stage.ask_victim(REQUESTS, pause_s=0.05)
        for _ in range(PROCESSES):
            assert attacker.stdout.readline() == "ended\n"
        time.sleep(2)
        most = resident_bytes(agent.process.pid, "VmHWM")
        ends_in_time(agent)
    metrics = read_metrics(stage.traces)
    (limit,), (level,) = metrics["otelgpu.memory.limit"], metrics["otelgpu.memory.level"]
    lag_s = stage.lag_s()
    print(f"{most / 2**20:.0f} MiB of {LIMIT_MIB}, level {level['asInt']}, lag {lag_s:.3f} s")
    assert int(limit["asInt"]) == LIMIT_MIB << 20
    assert most < LIMIT_MIB << 20
    assert not stage.unseen(REQUESTS)
    assert lag_s < MOST_LAG_S
