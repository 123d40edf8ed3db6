"""An agent that is killed at any moment: the observed service does not notice, and nothing of it stays behind.

``OTELGPU_KILLS`` says how often (20), from two sides at once.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from otelgpu.families.profiles.discover.unwinder import PROGRAM
from otelgpu.kernel.trace_context_map import PINNED_AT
from tests.kernel.observing import OTELGPU, state_of, wait_until
from tests.rig import start_llm_server
from tests.rig.bpf_objects import Kind, list_objects, orphans
from tests.rig.llm_load import LlmLoad

KILLS = int(os.environ.get("OTELGPU_KILLS", "20"))
SIDES = 2
MOMENTS = 4  # of so many kills in a row, one is while the agent detaches
LATEST_S = 1.4  # by then an agent has everything in place, and works
GONE_S = 60.0
MARK = "OTELGPU_TEST_MARK"
UPROBES = Path("/sys/kernel/tracing/uprobe_events")
WAYS = (
    (),
    ("--hold-on-load",),
    ("--families=http,cuda,sched",),
    ("--detail=all",),
    ("--profiles=cpu",),
)


def assert_taken_back(before: set[tuple[Kind, int]]) -> None:
    """Whoever made it has ended: what nobody holds now goes, whatever agents of other tests let go meanwhile."""
    left = orphans(before)
    wait_until(lambda: not left & orphans(before), "the kernel has taken everything back", GONE_S)


def marked(mark: str) -> list[str]:
    """The processes that were started with a mark, and their children."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found.append(f"{entry.name}: {(entry / 'cmdline').read_bytes()!r}")
    return found


@contextlib.contextmanager
def agent(mark: str, temporary: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """otelgpu, to be killed; at the latest at the end of the block."""
    variables = {MARK: mark, "TMPDIR": str(temporary), "OTELGPU_PUBLISH_CONTEXT": "true"}
    with subprocess.Popen(
        [OTELGPU, *arguments], env=os.environ | variables, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def kill_at_some_moment(number: int, pid: int, folder: Path) -> str:
    """One agent: killed while it starts, attaches, works or detaches; which it was."""
    draw = random.Random(number)
    mark, temporary = uuid.uuid4().hex, folder / str(number)
    temporary.mkdir()
    command = ["attach", *WAYS[number // MOMENTS % len(WAYS)], "--export=file:/dev/null", f"-p{pid}"]
    with agent(mark, temporary, *command) as process:
        if number % MOMENTS == 0:
            assert process.stderr is not None
            assert any("observing" in line for line in process.stderr)
            process.send_signal(signal.SIGTERM)
            time.sleep(draw.uniform(0, 0.2))
            moment = "while it detached"
        else:
            time.sleep(draw.uniform(0.02, LATEST_S))
            moment = "while it started or worked"
        process.kill()
        process.wait()
    wait_until(lambda: not marked(mark), "what it had started has ended", GONE_S)
    assert list(temporary.iterdir()) == []
    return moment


@pytest.mark.timeout(300)
def test_whenever_an_agent_is_killed_the_service_goes_on_and_nothing_stays_behind(tmp_path: Path) -> None:
    before, probes = list_objects(), UPROBES.read_text() if UPROBES.exists() else ""
    with start_llm_server() as server, LlmLoad(server) as load:
        with ThreadPoolExecutor(SIDES) as pool:
            killed = Counter(pool.map(lambda n: kill_at_some_moment(n, server.pid, tmp_path), range(KILLS)))
        assert_taken_back(before)
        assert state_of(server.pid) in "SR" and state_of(server.worker_pid) in "SR"
        answered = len(load.seconds)
        wait_until(lambda: len(load.seconds) > answered + 20, "it serves on")
    print(f"killed {dict(killed)}; {len(load.seconds)} requests were answered meanwhile")
    assert load.failures == []
    assert not PINNED_AT.exists()
    assert probes == (UPROBES.read_text() if UPROBES.exists() else "")


# A library whose unwind table takes a tenth of a second and more to make: 32 MB of instructions, of which each two put
# back what they keep.
LONG_TABLE = """
function: ret
.section .eh_frame, "a", @progbits
cie: .long cie_end - cie - 4, 0
.byte 1; .asciz "zR"; .byte 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1
.balign 8
cie_end: .long fde_end - cie_end - 4, . + 4 - cie - 4, function - ., 1
.byte 0; .fill 16000000, 2, 0x0b0a
.balign 8
fde_end:
.section .note.GNU-stack, "", @progbits
"""
MAPS_AND_WORKS = """
import ctypes, select, sys
ctypes.CDLL(sys.argv[1])
print("mapped", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    pass
"""


def filters_of(pid: int) -> int:
    """How many filters of system calls a process is under."""
    found = re.search(r"^Seccomp_filters:\t(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def stop_unwinder_of(pid: int) -> int:
    """The program that makes unwind tables for a process, stopped in the middle of one: its number."""
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                for child in map(int, children.read_text().split()):
                    is_shut = filters_of(child) > filters_of(pid)  # the last that it does before it reads
                    if is_shut and os.readlink(f"/proc/{child}/exe") == str(PROGRAM):
                        os.kill(child, signal.SIGSTOP)
                        if state_of(child) == "T":
                            return child
    raise AssertionError(f"process {pid} has made no unwind table that took long enough")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("long_table") / "long_table.so"
    subprocess.run(
        ["gcc", "-shared", "-x", "assembler", "-o", made, "-"], input=LONG_TABLE.encode(), check=True
    )
    yield made
    made.unlink()


@pytest.mark.alone(
    reason="its agent picks every Python of the machine, holds it at what it maps, and profiles it"
)
def test_an_agent_that_is_killed_while_it_profiles_leaves_no_helper_behind(
    tmp_path: Path, library: Path
) -> None:
    """The program that makes unwind tables is in a session of its own, and stopped: it is the kernel that ends it."""
    before, probes = list_objects(), UPROBES.read_text() if UPROBES.exists() else ""
    temporary, mark = tmp_path / "temporary", uuid.uuid4().hex
    temporary.mkdir()
    program = [sys.executable, "-c", MAPS_AND_WORKS, str(library)]
    command = ("--executable=python*", "--profiles=cpu", "--hold-on-load", "--export=file:/dev/null")
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as observed:
        assert observed.stdin is not None and observed.stdout is not None
        assert observed.stdout.readline() == b"mapped\n"
        with agent(mark, temporary, "agent", *command) as process:
            unwinder = stop_unwinder_of(process.pid)
            wait_until(lambda: len(marked(mark)) >= 3, "those that undo what it does have been started")
            process.kill()
            process.wait()
        try:
            wait_until(lambda: state_of(unwinder) in "Z", "what made a table has ended", GONE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(unwinder, signal.SIGKILL)
        wait_until(lambda: not marked(mark), "nothing else runs", GONE_S)
        assert_taken_back(before)
        assert state_of(observed.pid) in "RS"
        observed.stdin.close()
        assert observed.wait(20) == 0
    assert list(temporary.iterdir()) == []
    assert not PINNED_AT.exists()
    assert probes == (UPROBES.read_text() if UPROBES.exists() else "")


LIVES_ON = """
import pathlib, sys, time
print("started", flush=True)
time.sleep(float(sys.argv[2]))
pathlib.Path(sys.argv[1]).write_text("done")
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """For a socket's path, of which the kernel takes 107 bytes: those of ``tmp_path`` may be too many."""
    with tempfile.TemporaryDirectory(prefix="killed-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("source", ["uprobe", "inject"])
def test_the_program_of_a_killed_run_lives_on(tmp_path: Path, temporary: Path, source: str) -> None:
    before = list_objects()
    done, mark = tmp_path / "done", uuid.uuid4().hex
    program = [sys.executable, "-c", LIVES_ON, str(done), "1.5"]
    command = ["run", f"--source={source}", "--export=file:/dev/null", "--", *program]
    with (tmp_path / "said").open("w+") as said:
        variables = {MARK: mark, "TMPDIR": str(temporary)}
        process = subprocess.Popen([OTELGPU, *command], env=os.environ | variables, stdout=said)
        wait_until(lambda: "started" in (tmp_path / "said").read_text(), "the program runs")
        process.kill()
        process.wait()
    wait_until(done.exists, "the program has come to its own end")
    wait_until(lambda: not marked(mark), "nothing else runs", GONE_S)
    assert_taken_back(before)
    assert list(temporary.iterdir()) == []


def test_a_program_that_a_killed_run_had_not_let_go_is_not_started(tmp_path: Path) -> None:
    """It waits for its probes in a process of ours, which ends with the one that would have let it go."""
    mark, started = uuid.uuid4().hex, tmp_path / "started"
    with agent(mark, tmp_path, "run", "--export=file:/dev/null", "--", "touch", str(started)) as process:
        wait_until(lambda: len(marked(mark)) > 1, "it has forked")
        process.kill()
        process.wait()
    wait_until(lambda: not marked(mark), "nobody waits for it", GONE_S)
    assert not started.exists()
