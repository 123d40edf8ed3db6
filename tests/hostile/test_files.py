"""Files that change while the agent reads them end nobody but who reads wrong things in them."""

from __future__ import annotations

import time

from tests.hostile.attacks import CUTTER
from tests.hostile.stage import Stage, ends_in_time
from tests.kernel.observing import cuda_calls, read_spans
from tests.rig import start_cuda_client

LIBRARY = "/lib/x86_64-linux-gnu/libstdc++.so.6"
CALLS = 61


def test_libraries_that_are_cut_off_while_they_are_read_end_nobody(stage: Stage) -> None:
    with stage.agent("--families=cuda") as agent:
        for _ in range(2):
            stage.attack_with(CUTTER, LIBRARY)
        time.sleep(4)
        with start_cuda_client(prefix=stage.victim, calls=CALLS) as victim:
            time.sleep(1)
            victim.finish()
        assert agent.process.poll() is None
        stage.end_attacks()
        ends_in_time(agent)
    assert cuda_calls(read_spans(stage.traces))["cudaLaunchKernel"] == CALLS
