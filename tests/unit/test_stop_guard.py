"""Who hangs when it is asked to stop is killed, and nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otelgpu.kernel.privileges.capabilities import held

PROGRAM = """
import os, re, signal, sys
from otelgpu.agent import Interrupts
from otelgpu.kernel.stop_guard import StopGuard
from otelgpu.processes.reader import server
from otelgpu.processes.reader.forker import Forker
server._TOLD_WITHIN_S = 0  # it gives up its privileges and its user at once
forker = Forker()
with StopGuard(forker.watch, 0.5) as guard, Interrupts(guard=guard) as interrupts:
    print("works", flush=True)
    {work}
print("ended", flush=True)
"""
HANGS = {
    "in a system call": "open(sys.argv[1])",
    "with the interpreter's lock": "re.match('(a*)*b', 'a' * 40)",
}
WAITS = "os.read(interrupts.fd, 8) if __import__('select').select([interrupts.fd], [], []) else 0; interrupts.noticed()"


def started(work: str, path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM.format(work=work), str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "works\n"
    return process


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("hang", HANGS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_hangs_is_killed_and_it_is_said(hang: str, number: signal.Signals, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    process = started(HANGS[hang], tmp_path / "fifo")
    (guard,) = children(process.pid)
    until = time.monotonic() + 20
    while held(Path(f"/proc/{guard}")).permitted:
        assert time.monotonic() < until
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    assert "asked to stop, but hung" in said


def test_who_has_noticed_may_take_its_time(tmp_path: Path) -> None:
    process = started(f"{WAITS}; __import__('time').sleep(1.5)", tmp_path)
    (guard,) = children(process.pid)
    process.send_signal(signal.SIGTERM)
    out, said = process.communicate(timeout=30)
    assert (process.returncode, out, said) == (0, "ended\n", "")
    wait_until_gone(guard)


def test_a_guard_goes_with_whom_it_guards(tmp_path: Path) -> None:
    process = started(WAITS, tmp_path)
    (guard,) = children(process.pid)
    process.kill()
    process.communicate(timeout=30)
    wait_until_gone(guard)


def wait_until_gone(guard: int) -> None:
    until = time.monotonic() + 20
    while Path(f"/proc/{guard}").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
