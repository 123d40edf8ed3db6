"""File systems in user space that do not answer: whose files they are waits, and nobody else.

A tenant who may make user namespaces mounts one, and an overlayfs above it, by which it answers the agent too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.stage import Stage, ends_in_time
from tests.kernel.observing import cuda_calls, read_metrics, read_spans
from tests.rig import fake_cudart_path, start_cuda_client, user_file_system
from tests.rig.elf_symbols import offset_of

CALLS = 61
MOST_LAG_S = 1.0
MOST_FORK_S = 1.0
DEVICE = Path("/dev/fuse")
#: LOOKUP, GETATTR, OPEN, READ, STATFS, ACCESS
EVERYTHING = ("1", "3", "14", "15", "17", "34")
FORKS = """
import os, sys, time
worst_s = 0.0
while not os.path.exists(sys.argv[1]):
    began = time.monotonic()
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    worst_s = max(worst_s, time.monotonic() - began)
    time.sleep(0.01)
print(worst_s)
"""


@pytest.fixture
def device() -> Iterator[Path]:
    """``/dev/fuse`` with the permissions that udev gives it."""
    if not DEVICE.exists():
        pytest.skip(f"no {DEVICE}")
    before = DEVICE.stat().st_mode
    DEVICE.chmod(0o666)
    yield DEVICE
    DEVICE.chmod(before)


@pytest.mark.parametrize("overlay", [False, True], ids=["plain", "overlay"])
@pytest.mark.parametrize("silent", ["probed page", "everything"])
def test_a_file_system_that_does_not_answer_keeps_nobody_waiting(
    stage: Stage, device: Path, overlay: bool, silent: str, tmp_path: Path
) -> None:
    library = fake_cudart_path()
    page = offset_of(library, "cudaLaunchKernel") & ~0xFFF
    command = [sys.executable, user_file_system.__file__, str(device), "/mnt", str(library)]
    command += ["--overlay"] if overlay else []
    command += ["--silent-at", str(page)] if silent == "probed page" else ["--silent-on", *EVERYTHING]
    over = tmp_path / "over"
    with stage.agent("--families=cuda") as agent:
        forks = stage.start_victim(FORKS, str(over))
        attackers = [stage.attack(*command) for _ in range(2)]
        for attacker in attackers:
            assert attacker.stdout is not None
            assert attacker.stdout.readline() == "mapped\n"
        time.sleep(3)
        with start_cuda_client(prefix=stage.victim, calls=CALLS) as victim:
            time.sleep(1)
            victim.finish()
        over.touch()
        worst_fork_s = float(forks.communicate(timeout=20)[0])
        stage.end_attacks()
        ends_in_time(agent)
    lag_s = stage.lag_s()
    counted = {
        str(point["attributes"]["otelgpu.reason"]): int(point["asInt"])
        for point in read_metrics(stage.traces)["otelgpu.losses"]
    }
    print(f"lag {lag_s:.2f} s, a fork {worst_fork_s:.3f} s at most, {counted}")
    assert counted["file_not_asked"] >= len(attackers)  # it was tried
    assert cuda_calls(read_spans(stage.traces))["cudaLaunchKernel"] == CALLS
    assert (lag_s < MOST_LAG_S, worst_fork_s < MOST_FORK_S) == (True, True)
