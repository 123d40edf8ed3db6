"""Who stalls uploads takes the room for bodies from nobody: a neighbour's models and tokens are reported."""

from __future__ import annotations

import time

import pytest

from tests.hostile.attacks import MODELS, UPLOADS
from tests.hostile.stage import MOST_RSS_BYTES, Stage, ends_in_time, resident_bytes
from tests.kernel.observing import read_metrics, read_spans

VICTIMS = 20


@pytest.mark.alone(reason="floods the agent with bodies: for a while nobody else gets a processor")
def test_models_are_known_while_another_container_stalls_its_uploads(stage: Stage) -> None:
    with stage.agent("--families=http") as agent:
        stage.attack_with(UPLOADS, "300")
        with stage.start_victim(MODELS, "1", str(VICTIMS), "0.05") as victim:
            assert victim.stdout is not None
            assert [victim.stdout.readline() for _ in range(2)] == ["begun\n", "ended\n"]
            time.sleep(1)
            assert resident_bytes(agent.process.pid, "VmHWM") < MOST_RSS_BYTES
            ends_in_time(agent)
            victim.kill()
    served = [
        span
        for span in read_spans(stage.traces)
        if span["kind"] == 2 and span["resource"]["process.pid"] == victim.pid
    ]
    models = {span["attributes"].get("gen_ai.request.model") for span in served}
    losses = {
        point["attributes"]["otelgpu.reason"]: int(point["asInt"])
        for point in read_metrics(stage.traces)["otelgpu.losses"]
    }
    print(f"{len(served)} requests, {len(models)} models, {losses}")
    assert models == {f"model-{victim.pid}-{number}" for number in range(VICTIMS)}
    assert losses["body_share_spent"] > 0  # it was tried
