"""A process that is held at a library goes on in time, whatever keeps the agent from it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

from otelgpu.kernel.holding import HELD_AT_MOST_S
from tests.hostile.stage import Stage
from tests.kernel.observing import state_of, wait_until
from tests.rig import fake_cudart_path

LOADS = """
import ctypes, sys, time
sys.stdin.readline()
began = time.monotonic()
ctypes.CDLL(sys.argv[1])
print(time.monotonic() - began, flush=True)
sys.stdin.readline()
"""
STALL_S = 3.0


def test_a_stalled_agent_lets_a_held_process_go(stage: Stage) -> None:
    library = stage.folder / "fresh" / "libcudart.so.12"
    library.parent.mkdir()
    shutil.copy(fake_cudart_path(), library)
    with (
        stage.agent("--hold-on-load", "--families=cuda") as agent,
        subprocess.Popen(
            [*stage.victim, sys.executable, "-c", LOADS, str(library)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as victim,
    ):
        assert victim.stdin is not None and victim.stdout is not None
        time.sleep(2)
        os.kill(agent.process.pid, signal.SIGSTOP)
        try:
            victim.stdin.write("\n")
            victim.stdin.flush()
            wait_until(lambda: state_of(victim.pid) == "T", "it is held")
            time.sleep(STALL_S)
            state = state_of(victim.pid)
        finally:
            os.kill(agent.process.pid, signal.SIGCONT)
        waited_s = float(victim.stdout.readline())
        victim.stdin.write("\n")
        victim.stdin.flush()
        victim.wait(5)
        time.sleep(0.5)
    print(f"held for {waited_s:.2f} s")
    assert state != "T"
    assert HELD_AT_MOST_S / 2 < waited_s < 2 * HELD_AT_MOST_S
    assert "went on after 1 s" in agent.said
    assert "held_too_long" in agent.said
