"""One tenant does all that it can at once, for 10 seconds; ``OTELGPU_ATTACK_S=600``: for ten minutes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import pytest

from tests.hostile.attacks import CUTTER, FLOOD, IDLE, LAUNCHER, MAPPER, MODELS, UPLOADS
from tests.hostile.stage import MOST_RSS_BYTES, Stage, ends_in_time, resident_bytes
from tests.hostile.test_files import LIBRARY
from tests.hostile.test_names import NAMES
from tests.hostile.test_names import kernels as kernels
from tests.rig import fake_cudart_path
from tests.rig.cpu_time import cpu_s

ATTACK_S: Final = float(os.environ.get("OTELGPU_ATTACK_S", "10"))
A_SECOND: Final = 200
MOST_LAG_S: Final = 1.0
MOST_CORES: Final = 1.0


@pytest.mark.timeout(3 * ATTACK_S + 240)
@pytest.mark.alone(reason="keeps both processors busy with all attacks at once")
def test_a_tenant_that_does_it_all_at_once_hides_nothing_of_anybody(stage: Stage, kernels: Path) -> None:
    requests = int(ATTACK_S * A_SECOND)
    stage.niceness = 10
    with stage.agent() as agent:
        stage.attack_with(IDLE, "20000")
        stage.attack_with(UPLOADS, "150")
        stage.attack_with(FLOOD)
        stage.attack_with(MAPPER)
        stage.attack_with(CUTTER, LIBRARY)
        stage.attack_with(LAUNCHER, str(fake_cudart_path()), str(kernels), *NAMES)
        stage.attack_with(MODELS, "4", "100000", "0.05")
        began, before = time.monotonic(), cpu_s(agent.process.pid, children=True)
        stage.ask_victim(requests, pause_s=1 / A_SECOND, timeout_s=10 * ATTACK_S + 60)
        cores = (cpu_s(agent.process.pid, children=True) - before) / (time.monotonic() - began)
        most = resident_bytes(agent.process.pid, "VmHWM")
        end_s = ends_in_time(agent)
    lag_s, unseen = stage.lag_s(), stage.unseen(requests)
    print(f"{len(unseen)} of {requests} unseen, {most >> 20} MiB, {cores:.2f} cores", end=", ")
    print(f"lag {lag_s:.2f} s, ended in {end_s:.1f} s")
    assert not unseen
    assert most < MOST_RSS_BYTES
    assert cores < MOST_CORES
    assert lag_s < MOST_LAG_S
