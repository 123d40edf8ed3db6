"""Who holds tens of thousands of idle connections hides nobody's requests."""

from __future__ import annotations

import time

import pytest

from tests.hostile.attacks import IDLE
from tests.hostile.stage import MOST_RSS_BYTES, Stage, ends_in_time, resident_bytes
from tests.kernel.observing import read_metrics

IDLE_CONNECTIONS = 72_000
"""Two entries each: more than the table has."""
REQUESTS = 240
MOST_LAG_S = 1.0


@pytest.mark.alone(reason="holds a hundred thousand sockets, which take seconds to make")
def test_requests_are_seen_while_another_container_holds_idle_connections(stage: Stage) -> None:
    with stage.agent("--families=http") as agent:
        stage.attack_with(IDLE, str(IDLE_CONNECTIONS))
        stage.ask_victim(REQUESTS, pause_s=0.01)
        stage.end_attacks()  # what it held is taken out again
        time.sleep(3)
        assert resident_bytes(agent.process.pid, "VmHWM") < MOST_RSS_BYTES
        ends_in_time(agent)
    refused = sum(
        int(point["asInt"])
        for point in read_metrics(stage.traces)["otelgpu.losses"]
        if "connection_share_spent" in point["attributes"].values()
    )
    print(f"{len(stage.unseen(REQUESTS))} of {REQUESTS} unseen, {refused} refused, lag {stage.lag_s():.3f} s")
    assert not stage.unseen(REQUESTS)
    assert refused > 0
    assert stage.lag_s() < MOST_LAG_S
