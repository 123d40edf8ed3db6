"""A library that is opened while its process runs: caught at once, its blind window reported, or closed by holding."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernel.observing import (
    OTELGPU,
    Watch,
    cuda_calls,
    probed,
    read_spans,
    state_of,
    wait_until,
)
from tests.kernel.privileged import helpers_of
from tests.rig import fake_cudart_path, run_cuda_client, start_cuda_client

pytestmark = pytest.mark.long

Watcher = Callable[..., Watch]
CAUGHT_WITHIN_NS = 100_000_000


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A copy of the fake that nobody has looked at yet."""
    path = tmp_path / "fresh" / "libcudart.so.12"
    path.parent.mkdir()
    shutil.copy(fake_cudart_path(), path)
    return path


@pytest.mark.alone(reason="a bound of a tenth of a second, of which others may have the processors")
def test_it_is_caught_soon_and_every_call_after_that_is_exact(
    watching: Watch, library: Path, tmp_path: Path
) -> None:
    watching.settle(tmp_path)
    with start_cuda_client(
        late_ms=200, library=library, calls=401, sleep_us=1000, functions=("cudaMalloc",), times=True
    ) as client:
        watching.observe(client.pid)
        said = watching.during(client.finish)
    probed_file = watching.probed_file(library)
    assert 0 < probed_file.blind_ns < CAUGHT_WITHIN_NS
    print(f"blind for {probed_file.blind_ns / 1e6:.1f} ms")
    seen = sorted(int(r["head"]["time_ns"]) for r in watching.records("cuda_allocation"))
    made = [time_ns for name, time_ns in said.times if name == "cudaMalloc"]
    after = [time_ns for time_ns in made if time_ns > probed_file.ready_ns]
    # A call in the window may be seen too: its probe came before the last one.
    assert len(after) > 200
    assert len(after) <= len(seen) <= len(made)
    last = seen[-len(after) :]
    assert all(0 <= s - m < 50_000_000 for s, m in zip(last, after, strict=True))


def test_without_a_gap_in_time_nothing_is_blind(watching: Watch, library: Path) -> None:
    watching.source.prepare_file(library)
    with start_cuda_client(late_ms=0, library=library, calls=23) as client:
        watching.observe(client.pid)
        said = watching.during(client.finish)
    assert watching.calls(said.pid) == probed(dict(said.calls))
    assert watching.probed_file(library).blind_ns == 0


def test_run_prepares_what_the_environment_leads_to(library: Path, tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    said = run_cuda_client(
        prefix=(OTELGPU, "run", f"--export=file:{traces}", "--detail=all", "--"),
        late_ms=0,
        library=library,  # LD_LIBRARY_PATH has its folder, as for a user's own copy
        calls=29,
        functions=("all",),
    )
    assert cuda_calls(read_spans(traces)) == probed(dict(said.calls))
    assert re.search(rf"probed +{re.escape(str(library))} \(\d+ functions\)", said.stderr), said.stderr


def test_the_summary_reports_the_blind_window(library: Path, tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    program = (
        "import ctypes, sys, time; time.sleep(0.3); "
        "library = ctypes.CDLL('/'.join(sys.argv[1:])); time.sleep(2.0); "
        "[library.cudaDeviceSynchronize() for _ in range(31)]"
    )
    folder, name = str(library.parent), library.name
    done = subprocess.run(
        [OTELGPU, "run", f"--export=file:{traces}", "--", sys.executable, "-c", program, folder, name],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    reported = re.search(
        r"probed +\S*fresh/libcudart\S* \(\d+ functions, blind for ([0-9.]+) ms", done.stderr
    )
    assert reported, done.stderr
    print(f"blind for {reported[1]} ms")
    assert cuda_calls(read_spans(traces))["cudaDeviceSynchronize"] == 31


def test_held_on_load_every_call_is_seen_from_the_first(
    watch: Watcher, library: Path, tmp_path: Path
) -> None:
    watching = watch(hold_on_load=True)
    for repetition in range(4):
        watching.start_anew()
        copy = tmp_path / f"held{repetition}" / "libcudart.so.12"
        copy.parent.mkdir()
        shutil.copy(library, copy)
        with start_cuda_client(
            late_ms=repetition, library=copy, calls=101, functions=("all",), threads=3, exit_code=7
        ) as client:
            watching.observe(client.pid)
            watching.pump(0.05)  # the first heartbeat
            said = watching.during(client.finish)
        assert said.exit_code == 7
        assert watching.calls(said.pid) == probed(dict(said.calls))
        assert watching.probed_file(copy).blind_ns == 0


def test_who_is_held_waits_for_no_verifier(watch: Watcher) -> None:
    for hold, loaded in (True, {"nccl", "verbs"}), (False, set()):
        watching = watch(families=("nccl", "verbs"), hold_on_load=hold)
        assert {"nccl", "verbs"} & watching.source.rings.keys() == loaded


def test_run_holds_from_the_first_moment(library: Path, tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    program = (
        "import ctypes, sys; library = ctypes.CDLL('/'.join(sys.argv[1:])); "
        "[library.cudaDeviceSynchronize() for _ in range(31)]; sys.exit(7)"
    )
    done = subprocess.run(
        [
            *(OTELGPU, "run", "--hold-on-load", f"--export=file:{traces}", "--"),
            *(sys.executable, "-c", program, str(library.parent), library.name),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 7, done.stderr
    assert cuda_calls(read_spans(traces))["cudaDeviceSynchronize"] == 31
    assert "blind" not in done.stderr


LOADS_FOREVER = """
import ctypes, os, shutil, sys, time
folder, library = sys.argv[1:]
number = 0
while True:
    number += 1
    copy = os.path.join(folder, f"libmany{number}.so")
    shutil.copy(library, copy)
    ctypes.CDLL(copy)
    os.unlink(copy)
    print(number, flush=True)
    time.sleep(0.002)
"""


@contextlib.contextmanager
def holding(program: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """An agent that holds a program at what it maps; killed at the end."""
    command = [OTELGPU, "attach", "--hold-on-load", "--export=file:/dev/null", f"-p{program.pid}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stderr is not None
            assert "observing" in agent.stderr.readline()
            yield agent
        finally:
            agent.kill()


def test_an_agent_that_is_killed_leaves_nobody_stopped(tmp_path: Path) -> None:
    """Whenever it is killed: the program is held for most of its time, as its loads follow one another."""
    library = Path(fake_cudart_path()).with_name("libllmkernels.so")
    command = [sys.executable, "-c", LOADS_FOREVER, str(tmp_path), str(library)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        program.stdout.readline()
        try:
            for repetition in range(4):
                with holding(program):
                    before = int(program.stdout.readline())
                    for _ in range(20 + repetition):
                        assert (
                            int(program.stdout.readline()) > before
                        )  # it is held and let go, again and again
                time.sleep(0.5)
                wait_until(lambda: state_of(program.pid) in "SR", "it runs")
                for _ in range(20):
                    program.stdout.readline()
        finally:
            program.kill()


def test_without_its_guard_an_agent_holds_nobody(tmp_path: Path) -> None:
    library = Path(fake_cudart_path()).with_name("libllmkernels.so")
    command = [sys.executable, "-c", LOADS_FOREVER, str(tmp_path), str(library)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program, holding(program) as agent:
        assert program.stdout is not None and agent.stderr is not None
        wait_until(lambda: len(helpers_of(agent.pid)[0]) == 1, "one has privileges")
        (guard,), _ = helpers_of(agent.pid)
        os.kill(guard, signal.SIGKILL)
        assert "nothing is held" in agent.stderr.readline()
        agent.kill()
        for _ in range(20):
            program.stdout.readline()
        program.kill()


def test_who_is_held_and_waits_for_his_turn_is_let_go_at_the_end(tmp_path: Path) -> None:
    """His record has left the ring, and is not looked at any more."""
    library = Path(fake_cudart_path()).with_name("libllmkernels.so")
    command = [sys.executable, "-c", LOADS_FOREVER, str(tmp_path), str(library)]
    with (
        Watch(hold_on_load=True) as watch,
        subprocess.Popen(command, stdout=subprocess.DEVNULL) as program,
    ):
        try:
            watch.observe(program.pid)
            watch.source.start_holding()
            wait_until(lambda: state_of(program.pid) == "T", "it is held")
            assert list(watch.source._loaded["process"].drain())
            watch.source.stop_holding()
            wait_until(lambda: state_of(program.pid) in "SRD", "it goes on", 5)
        finally:
            program.kill()


def test_an_agent_that_is_asked_to_stop_lets_everybody_go(tmp_path: Path) -> None:
    library = Path(fake_cudart_path()).with_name("libllmkernels.so")
    with contextlib.ExitStack() as stack:
        program = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", LOADS_FOREVER, str(tmp_path), str(library)],
                stdout=subprocess.DEVNULL,
            )
        )
        stack.callback(program.kill)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
            agent = stack.enter_context(
                subprocess.Popen(
                    [OTELGPU, "attach", "--hold-on-load", "--export=file:/dev/null", f"-p{program.pid}"],
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            assert agent.stderr is not None
            assert "observing" in agent.stderr.readline()
            time.sleep(0.2)
            agent.send_signal(number)
            agent.stderr.read()
            agent.wait(20)
            time.sleep(0.3)
            assert state_of(program.pid) in ("S", "R", "D")
