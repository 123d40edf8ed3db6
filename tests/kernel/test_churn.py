"""Processes and threads that come and go, or die in the middle: nothing leaks, nothing stops."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.endurance.__main__ import endure
from tests.endurance.growth import judge
from tests.kernel.observing import Watch, state_of, wait_until
from tests.rig import fake_cudart_path, start_cuda_client

pytestmark = pytest.mark.long

STORM = """
import os, sys
sys.stdin.readline()
for number in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        os._exit(0) if number % 2 else os.execv("/bin/true", ["true"])
    os.waitpid(child, 0)
"""
THREADS = """
import ctypes, sys, threading
library = ctypes.CDLL(sys.argv[1])
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    thread = threading.Thread(target=library.cudaDeviceSynchronize)
    thread.start()
    thread.join()
"""
STUCK = """
import ctypes, sys
library, stream, grid, block = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p(), (ctypes.c_uint * 3)(1, 1, 1), 0
class Dim3(ctypes.Structure): _fields_ = [(n, ctypes.c_uint) for n in "xyz"]
sys.stdin.readline()
library.cudaLaunchKernel(ctypes.c_void_p(4096), Dim3(1,1,1), Dim3(1,1,1), None, ctypes.c_size_t(0), None)
print("waiting", flush=True)
library.cudaDeviceSynchronize()
"""


def start(program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def still_works(watching: Watch) -> None:
    watching.start_anew()
    with start_cuda_client(calls=31) as client:
        watching.observe(client.pid)
        watching.during(client.finish)
    assert watching.calls()["cudaLaunchKernel"] == 31
    assert watching.losses() == {}


def test_500_short_processes_leave_nothing_behind(watching: Watch) -> None:
    with start(STORM, "500") as process:
        watching.observe(process.pid)
        watching.during(lambda: process.communicate("go\n"))
    assert process.returncode == 0
    watching.pump(0.1)
    scope = watching.source._loaded["process"].map("scope_processes")
    assert scope.list_keys() == []
    source = watching.source
    assert source._mappers == set()
    lost = {reason: count for (_, reason), count in watching.losses().items()}
    # A process of a millisecond may be gone before anyone can describe it: counted, and nothing else.
    assert lost.keys() <= {"process_vanished", "mapping_vanished", "process_gone"}
    still_works(watching)


def test_threads_that_end_take_their_state_with_them(watching: Watch) -> None:
    with start(THREADS, str(fake_cudart_path()), "997") as process:
        watching.source.prepare_file(fake_cudart_path())
        watching.observe(process.pid)
        watching.during(lambda: process.communicate("go\n"))
    assert watching.calls(process.pid)["cudaDeviceSynchronize"] == 997
    tids = {int(r["head"]["tid"]) for r in watching.records("cuda_synchronization")}
    assert len(tids) == 997
    assert watching.total("cuda", "thread_state_failed") == 0


def test_a_process_killed_in_the_middle_of_a_call_harms_nobody(watching: Watch) -> None:
    watching.source.prepare_file(fake_cudart_path())
    for _ in range(5):
        with start(STUCK, str(fake_cudart_path()), FAKE_CUDART_KERNEL_US="60000000") as process:
            assert process.stdin is not None and process.stdout is not None
            watching.observe(process.pid)
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "waiting\n"
            time.sleep(0.05)
            process.send_signal(signal.SIGKILL)
            process.wait()
        watching.pump(0.05)
        assert watching.calls(process.pid)["cudaLaunchKernel"] == 1  # the wait never returned
    assert state_of(process.pid) == ""
    assert watching.total("cuda", "return_without_entry") == 0
    still_works(watching)


def test_a_call_under_way_at_attach_is_not_made_up(watching: Watch) -> None:
    """It returns through no probe of ours: an entry that was not seen gives no record."""
    watching.source.prepare_file(fake_cudart_path())
    with start(STUCK, str(fake_cudart_path()), FAKE_CUDART_KERNEL_US="300000") as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.05)
        watching.observe(process.pid)
        watching.during(process.wait)
    assert watching.calls(process.pid) == {}
    still_works(watching)


def test_ids_that_come_again_are_other_processes(watching: Watch) -> None:
    first = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True)
    with start_cuda_client(calls=7) as client:
        assert client.pid != int(first.stdout)
        watching.observe(client.pid)
        watching.during(client.finish)
    wait_until(lambda: state_of(client.pid) == "", "it is gone")
    watching.pump(0.05)
    assert client.pid not in watching.source._processes._seen


def test_a_library_that_is_gone_with_its_processes_is_let_go(tmp_path: Path) -> None:
    """Its probes would keep it on the disk, and its file system mounted."""
    copy = tmp_path / "libcudart.so.12"
    shutil.copy(fake_cudart_path(), copy)
    with Watch(keep_probes_s=0.5) as watching:
        watching.source.prepare_file(fake_cudart_path())
        with start_cuda_client(late_ms=0, library=copy, calls=7, linger_ms=1500) as client:
            watching.observe(client.pid)
            watching.during(client.finish)
        watching.pump(0.7)
        assert [placed.path for placed in watching.source.probed_files] == [str(fake_cudart_path())]
        with start_cuda_client(late_ms=200, library=copy, calls=101, sleep_us=3000) as client:
            watching.observe(client.pid)
            watching.during(client.finish)
        watching.pump(0.7)
        assert [placed.path for placed in watching.source.probed_files] == [str(fake_cudart_path())]
        assert (
            watching.calls(client.pid)["cudaLaunchKernel"] > 50
        )  # the first ones were before the new probes


def test_under_churn_nothing_grows_that_must_not(tmp_path: Path) -> None:
    """Twenty seconds of what ``python -m tests.endurance`` does for two hours: too few for a verdict on memory."""
    samples, reported = endure(20, 20, tmp_path / "samples.jsonl")
    done = json.loads(reported.partition('{"server"')[2].partition("\n")[2].partition("}")[0] + "}")
    assert done.pop("failed") == 0 and min(done.values()) > 0, reported
    quick = {verdict.name: verdict for verdict in judge(samples)}
    assert not quick["threads"].grows and not quick["children"].grows, quick
    living = 20 * 25 + 200  # processes of 25 s, and what else is there: nobody else may be remembered
    last = samples[-1]["containers"]
    assert last["otelgpu.engine.processes.Processes._resources"] < living
    assert last["otelgpu.families.requests.routes.Routes._processes"] < living
    assert last["otelgpu.processes.described.DescribedProcesses._seen"] < living
