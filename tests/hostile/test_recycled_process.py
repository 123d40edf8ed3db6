"""What a process that ended has called is not exported as of the next one with its id, nor the other way round."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.hostile.stage import END_S, Stage, ends_in_time
from tests.kernel.observing import Session, read_spans
from tests.rig import run_cuda_client, start_cuda_client

NUMBERED = """
import ctypes, os, signal, struct, sys
number = ctypes.c_int(int(sys.argv[1]))
# struct clone_args of linux/sched.h: the fifth is exit_signal, then from the ninth set_tid, set_tid_size
arguments = struct.pack("<11Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(number), 1, 0)
CLONE3 = 435
child = ctypes.CDLL(None, use_errno=True).syscall(CLONE3, arguments, len(arguments))
if child == 0:
    os.execv(sys.argv[2], sys.argv[2:])
assert child == number.value, os.strerror(ctypes.get_errno())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""Run a command as the process of a number that nobody has."""
FORMERS, LATTERS = 61, 37


def numbered(stage: Stage, number: int) -> list[str]:
    """What to write before the command of a victim that is to be process ``number``."""
    return [*stage.victim, sys.executable, "-c", NUMBERED, str(number)]


def free_number() -> int:
    """One that somebody had just now: all others are given before it is again."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@contextmanager
def not_run(agent: Session) -> Iterator[None]:
    """The agent is stopped meanwhile."""
    os.kill(agent.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(agent.process.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("is_known", "ends"), [(True, False), (True, True), (False, False)], ids=["known", "ends", "unknown"]
)
def test_what_two_owners_of_a_process_id_call_is_each_ones_own(
    stage: Stage, is_known: bool, ends: bool
) -> None:
    """``is_known``: whether the agent came to look at the first of them; the second begins while it is not run.

    ``ends``: when it is run again, it is to end.
    """
    number = free_number()
    former = {"env": {"OTEL_SERVICE_NAME": "former"}, "calls": FORMERS}
    latter = {"env": {"OTEL_SERVICE_NAME": "latter"}, "calls": LATTERS}
    with stage.agent("--families=cuda") as agent:
        with start_cuda_client(prefix=stage.victim) as first:
            time.sleep(1)  # until the library is probed
            first.finish()
        if is_known:
            with start_cuda_client(prefix=numbered(stage, number), **former) as client:
                time.sleep(1)
                with not_run(agent):
                    assert client.finish().pid == number
                    assert run_cuda_client(prefix=numbered(stage, number), **latter).pid == number
                    if ends:
                        agent.process.terminate()
        else:
            with not_run(agent):
                assert run_cuda_client(prefix=numbered(stage, number), **former).pid == number
                with start_cuda_client(prefix=numbered(stage, number), **latter) as client:
                    os.kill(agent.process.pid, signal.SIGCONT)
                    time.sleep(1)
                    assert client.finish().pid == number
        if ends:
            agent.process.wait(END_S)
        else:
            time.sleep(1)
            ends_in_time(agent)
    calls = [span for span in read_spans(stage.traces) if span["name"].startswith("cudaLaunchKernel")]
    by_owner = Counter(
        span["resource"]["service.name"] for span in calls if span["resource"]["process.pid"] == number
    )
    print(dict(by_owner))
    if is_known:  # nobody came to look at the second while it was there
        assert by_owner == {"former": FORMERS, "unknown_service": LATTERS}
    else:
        assert by_owner == {"unknown_service": FORMERS, "latter": LATTERS}
