"""Who reports series without end takes none from others, and not the agent's memory."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from otelgpu.engine.metrics import SERIES
from tests.hostile.attacks import MODELS
from tests.hostile.stage import MOST_RSS_BYTES, Stage, ends_in_time, resident_bytes
from tests.kernel.observing import read_metrics

PROCESSES, EACH = 10, 1100
VICTIMS = 20
METRICS = ("gen_ai.server.request.duration", "gen_ai.server.time_to_first_token")


@pytest.mark.alone(reason="floods the agent with requests: for seconds nobody else gets a processor")
def test_series_are_left_for_a_process_beside_others_that_report_them_without_end(stage: Stage) -> None:
    with stage.agent("--families=http", "--detail=phases") as agent:
        attacker = stage.attack_with(MODELS, str(PROCESSES), str(EACH), "0.012")
        assert attacker.stdout is not None
        for _ in range(PROCESSES):
            assert attacker.stdout.readline() == "ended\n"
        with stage.start_victim(MODELS, "1", str(VICTIMS), "0.01") as victim:
            assert victim.stdout is not None
            assert [victim.stdout.readline() for _ in range(2)] == ["begun\n", "ended\n"]
            time.sleep(1)
            most = resident_bytes(agent.process.pid, "VmHWM")
            ends_in_time(agent)
            victim.kill()
    metrics = read_metrics(stage.traces)
    of_victim = Counter(
        name
        for name in METRICS
        for point in metrics[name]
        if point["resource"]["process.pid"] == victim.pid and "gen_ai.request.model" in point["attributes"]
    )
    series = sum(map(len, metrics.values()))
    print(f"{series} series, {most / 2**20:.0f} MiB; of the victim: {dict(of_victim)}")
    assert of_victim == dict.fromkeys(METRICS, VICTIMS)
    assert SERIES // 2 < series < SERIES + 1000
    assert most < MOST_RSS_BYTES
