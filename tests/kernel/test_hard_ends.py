"""Threads and processes that end in the middle of a call, and numbers that come again: nothing is taken for another's.

The program is data/hard_ends.c, which has the functions in itself and says what it does.
"""

from __future__ import annotations

import signal
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from otelgpu.model.inputs import ProcessGone
from tests.kernel.observing import OTELGPU, Watch, read_metrics, read_spans, state_of, wait_until
from tests.kernel.test_files import unshared

SOURCE = Path(__file__).parent / "data" / "hard_ends.c"
SYNCHRONIZE = "cudaDeviceSynchronize"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    binary = tmp_path_factory.mktemp("hard_ends") / "hard_ends"
    flags = ("-O1", "-g0", "-Wall", "-Wextra", "-Werror", "-pthread", "-rdynamic")
    subprocess.run(["gcc", *flags, "-o", binary, SOURCE], check=True)
    return binary


def start(program: Path, *arguments: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None and process.stderr.readline() == "ready\n"
    return process


def run(watching: Watch, program: Path, *arguments: object) -> tuple[int, str]:
    """Observe a program from its first call to its end: its number and what it said."""
    with start(program, *arguments) as process:
        watching.observe(process.pid)
        stdout, stderr = watching.during(lambda: process.communicate("go\n", timeout=50))
    assert (process.returncode, stderr) == (0, "")
    return process.pid, stdout


@pytest.mark.parametrize("sessions", [True, False])
def test_of_threads_killed_in_the_middle_every_call_that_returned_is_reported(
    watch: Callable[..., Watch], program: Path, tmp_path: Path, sessions: bool
) -> None:
    watching, threads = watch(sessions=sessions, ring_bytes=64 << 20), 4
    for turn in range(5):
        counters = tmp_path / f"counters{turn}"
        with start(program, "storm", counters, threads) as process:
            watching.observe(process.pid)

            def kill(process: subprocess.Popen[str] = process, after_s: float = 0.05 + 0.03 * turn) -> None:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
                time.sleep(after_s)
                process.send_signal(signal.SIGKILL)
                process.wait()

            watching.during(kill)
        watching.pump(0.05)
        pairs = list(struct.iter_unpack("<QQ", counters.read_bytes()))
        begun, returned = (sum(column) for column in zip(*pairs, strict=True))
        reported = watching.calls(process.pid)[SYNCHRONIZE]
        assert len(pairs) == threads and returned > 100
        assert returned <= reported <= begun <= returned + threads
        gone = [item for item in watching.inputs if isinstance(item, ProcessGone)]
        assert [item.tgid for item in gone if item.tgid == process.pid] == [process.pid]
    assert watching.total("cuda", "ring_full") == watching.total("cuda", "return_without_entry") == 0


@pytest.mark.parametrize("how", ["pthread_exit", "exit", "longjmp"])
@pytest.mark.parametrize("sessions", [True, False])
def test_a_thread_that_is_left_in_a_call_leaves_nothing_to_the_next(
    watch: Callable[..., Watch], program: Path, how: str, sessions: bool
) -> None:
    """The second call of each never returns; those of the threads after them have their own times."""
    watching = watch(sessions=sessions)
    pid, _ = run(watching, program, "threads", how, 211)
    assert watching.calls(pid) == {SYNCHRONIZE: 2 * 211}
    tids = Counter(watching.column("cuda_synchronization", "head")["tid"].tolist())
    assert set(tids.values()) == {1}
    assert watching.column("cuda_synchronization", "head")["duration_ns"].max() < 1_000_000_000


@pytest.mark.parametrize("sessions", [True, False])
def test_a_program_executed_in_the_middle_of_a_call_begins_anew(
    watch: Callable[..., Watch], program: Path, sessions: bool
) -> None:
    watching = watch(sessions=sessions)
    pid, _ = run(watching, program, "exec")
    assert watching.calls(pid) == {SYNCHRONIZE: 7}
    assert watching.column("cuda_synchronization", "head")["duration_ns"].max() < 1_000_000_000


@pytest.mark.parametrize("sessions", [True, False])
def test_a_call_that_two_processes_return_from_is_its_caller_s(
    watch: Callable[..., Watch], program: Path, sessions: bool
) -> None:
    watching = watch(sessions=sessions)
    pid, _ = run(watching, program, "fork")
    by_process = Counter(watching.column("cuda_synchronization", "head")["tgid"].tolist())
    assert by_process.pop(pid) == 1 + 11
    assert list(by_process.values()) == [7]


@pytest.mark.parametrize("sessions", [True, False])
def test_a_graph_at_the_address_of_another_has_its_own_nodes(
    watch: Callable[..., Watch], program: Path, sessions: bool
) -> None:
    watching = watch(sessions=sessions)
    run(watching, program, "graphs")
    assert watching.column("cuda_graph_launch", "extra").tolist() == [3, 1, 1]


def test_threads_of_one_number_are_not_taken_for_each_other(program: Path, tmp_path: Path) -> None:
    """Every other one is left in its second call, and the next one has its number."""
    traces = tmp_path / "traces.jsonl"
    prefix = unshared("-p", "-f", "--mount-proc")
    command = [
        *prefix,
        OTELGPU,
        "run",
        "--detail=all",
        f"--export=file:{traces}",
        "--",
        program,
        "numbers",
        43,
    ]
    done = subprocess.run(
        [*map(str, command)], input="go\n", capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    (number,) = set(done.stdout.split())
    calls = [span for span in read_spans(traces) if span["name"] == SYNCHRONIZE]
    assert Counter(str(span["attributes"]["thread.id"]) for span in calls) == {number: 22 * 2 + 21}
    assert all(before["end"] <= after["start"] for before, after in pairwise(calls))


def test_memory_of_a_process_ends_with_it_and_not_with_the_next_of_its_number(
    program: Path, tmp_path: Path
) -> None:
    traces = tmp_path / "traces.jsonl"
    prefix = unshared("-p", "-f", "--mount-proc")
    options = ("--detail=all", "--families=cuda", f"--export=file:{traces}")
    done = subprocess.run(
        [*prefix, OTELGPU, "run", *options, "--", str(program), "held", "5"],
        input="go\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    number = int(done.stdout.split()[0])
    reported: dict[str, list[int]] = {}
    for metric, points in read_metrics(traces).items():
        mine = [point for point in points if point["resource"].get("process.pid") == number]
        reported[metric] = [int(point["asInt"]) for point in mine if "asInt" in point]
    allocated = 1 + 2 + 3 + 4 + 5
    assert sum(reported["gpu.cuda.memory.allocations"]) == allocated << 20
    assert sum(reported["gpu.cuda.memory.allocation.calls"]) == allocated
    assert set(reported["gpu.cuda.memory.usage"]) == set(reported["gpu.cuda.memory.live.allocations"]) == {0}
    assert max(reported["gpu.cuda.memory.peak"]) == 5 << 20  # and not what they held together


def test_threads_that_end_give_back_the_kernel_s_memory(watching: Watch, program: Path) -> None:
    """What programs keep of a thread is freed with it."""
    threads = 40_000
    size = watching.source.btf["cuda"].dtype("thread").itemsize
    run(watching, program, "short", 1000)
    before = unreclaimable_bytes()
    pid, _ = run(watching, program, "short", threads)
    assert watching.calls(pid) == {SYNCHRONIZE: threads}
    wait_until(
        lambda: unreclaimable_bytes() - before < threads * size // 4,
        f"a quarter of {threads * size >> 20} MiB is not kept",
    )
    assert state_of(pid) == ""


def unreclaimable_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("SUnreclaim:"))
