"""The program that is started and observed."""

from __future__ import annotations

import os
import select
import signal
import subprocess

from otelgpu.child import Child


def test_its_exit_code_is_what_a_shell_gives() -> None:
    child = Child(["sleep", "60"])
    child.start()
    child.signal(signal.SIGTERM)
    assert child.wait() == 128 + signal.SIGTERM


def test_a_signal_after_its_end_reaches_nobody() -> None:
    """Its descriptor's number may be another process's by then."""
    child = Child(["true"])
    child.start()
    number = child.pidfd
    assert child.wait() == 0
    child.signal(signal.SIGTERM)
    with subprocess.Popen(["sleep", "60"]) as other:
        watched = os.pidfd_open(other.pid)
        try:
            if watched != number:
                os.dup2(watched, number, inheritable=False)
            child.signal(signal.SIGTERM)
            assert select.select([watched], [], [], 0.5)[0] == []
        finally:
            other.kill()
            for each in {watched, number}:
                os.close(each)
