"""Who floods his own server with tiny pipelined requests slows nobody's agent, and hides nobody's requests."""

from __future__ import annotations

import time

import pytest

from tests.hostile.attacks import FLOOD
from tests.hostile.stage import MOST_RSS_BYTES, Stage, ends_in_time, resident_bytes
from tests.kernel.observing import read_spans

REQUESTS = 120
MOST_LAG_S = 2.0
"""On two processors that attackers keep busy; half a second of it is for parsing."""


@pytest.mark.alone(reason="floods the agent with requests: for seconds nobody else gets a processor")
def test_requests_are_seen_while_another_container_floods_its_own_server(stage: Stage) -> None:
    with stage.agent("--families=http") as agent:
        for _ in range(2):
            stage.attack_with(FLOOD)
        time.sleep(1)
        stage.ask_victim(REQUESTS, pause_s=0.05, of_connection=REQUESTS)
        assert resident_bytes(agent.process.pid, "VmHWM") < MOST_RSS_BYTES
        ends_in_time(agent)
    spans = [span for span in read_spans(stage.traces) if span["kind"] == 2]
    victims = [span for span in spans if span["attributes"].get("url.path", "").startswith("/victim/")]
    lag_s = stage.lag_s()
    print(f"{len(victims)} of {REQUESTS} seen, {len(spans)} in all, lag {lag_s:.3f} s")
    assert lag_s < MOST_LAG_S
    assert not stage.unseen(REQUESTS)
    assert not [span for span in victims if "error.type" in span["attributes"]]
