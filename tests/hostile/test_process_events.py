"""Who maps without end blinds nobody beside it."""

from __future__ import annotations

import time

import pytest

from tests.hostile.attacks import MAPPER
from tests.hostile.stage import MOST_RSS_BYTES, Stage, ends_in_time, resident_bytes
from tests.kernel.observing import cuda_calls, read_spans

VICTIMS = 8
CALLS = 61
ATTACHED_S = 5.0
"""How long new programs may wait for their probes while somebody floods the agent, on two processors."""


@pytest.mark.alone(reason="floods the kernel with events: for seconds nobody else gets a processor")
def test_new_programs_are_probed_while_another_container_maps_without_end(stage: Stage) -> None:
    with stage.agent("--families=cuda") as agent:
        for _ in range(2):
            stage.attack_with(MAPPER)
        time.sleep(1)
        stage.run_new_libraries(VICTIMS, calls=CALLS, probed_s=ATTACHED_S)
        assert resident_bytes(agent.process.pid, "VmHWM") < MOST_RSS_BYTES
        ends_in_time(agent)
    assert cuda_calls(read_spans(stage.traces))["cudaLaunchKernel"] == VICTIMS * CALLS
