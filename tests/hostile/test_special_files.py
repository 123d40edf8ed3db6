"""FIFOs, sockets and devices where libraries were stop nobody who goes to look at the libraries."""

from __future__ import annotations

import time

from tests.hostile.attacks import SPECIAL
from tests.hostile.stage import Stage, ends_in_time
from tests.kernel.observing import cuda_calls, read_spans
from tests.rig import fake_cudart_path, start_cuda_client

CALLS = 61
MOST_LAG_S = 1.0


def test_files_of_other_kinds_in_the_places_of_libraries_stop_nobody(stage: Stage) -> None:
    with stage.agent("--families=cuda") as agent:
        for _ in range(2):
            stage.attack_with(SPECIAL, str(fake_cudart_path()))
        time.sleep(4)
        with start_cuda_client(prefix=stage.victim, calls=CALLS) as victim:
            time.sleep(1)
            victim.finish()
        stage.end_attacks()
        ends_in_time(agent)
    lag_s = stage.lag_s()
    print(f"lag {lag_s:.2f} s")
    assert cuda_calls(read_spans(stage.traces))["cudaLaunchKernel"] == CALLS
    assert lag_s < MOST_LAG_S
