"""`run` as a user sees it: the program's own exit code, signals, and nothing left behind in the kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.observing import (
    OTELGPU,
    cuda_calls,
    held_programs,
    interrupted_at_terminal,
    living_programs,
    probed,
    read_spans,
    run_otelgpu,
    said_at_start,
    state_of,
    wait_until,
)
from tests.rig import fake_cudart_path, run_cuda_client

pytestmark = pytest.mark.long

NOWHERE = "--export=file:/dev/null"


@pytest.mark.parametrize(("program", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)])
def test_the_exit_code_is_the_program_s_own(program: str, code: int) -> None:
    done = run_otelgpu("run", NOWHERE, "--", "sh", "-c", program)
    assert done.returncode == code
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("./no-such-program", 127, "No such file or directory"),
        ("no-such-program", 127, "No such file or directory"),
        ("./plain", 126, "Permission denied"),
        ("./nonsense", 126, "Exec format error"),
        (".", 126, "Permission denied"),
    ],
)
def test_a_program_that_cannot_start_is_reported_in_one_line(
    tmp_path: Path, program: str, code: int, words: str
) -> None:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    (tmp_path / "nonsense").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "nonsense").chmod(0o755)
    done = run_otelgpu("run", NOWHERE, "--", program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"otelgpu: cannot start {program}: {words}\n"


def test_output_input_and_arguments_are_the_program_s_own() -> None:
    program = "import sys; sys.stderr.write('E'); print(sys.argv[1:], sys.stdin.read()); sys.exit(3)"
    arguments = ["--export", "-x", "two words", "--"]
    plain = [sys.executable, "-c", program, *arguments]
    done = run_otelgpu("run", NOWHERE, "--quiet", "--", *plain, input="typed")
    alone = subprocess.run(plain, input="typed", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (alone.returncode, alone.stdout, alone.stderr)


def test_signal_dispositions_and_descriptors_are_those_without_otelgpu() -> None:
    show = ["sh", "-c", "grep -E '^Sig(Ign|Blk|Cgt)' /proc/self/status; ls -1 /proc/self/fd | wc -l"]
    assert run_otelgpu("run", NOWHERE, "--quiet", "--", *show).stdout == (
        subprocess.run(show, capture_output=True, text=True, check=True).stdout
    )


@contextmanager
def started(*command: str, **options: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [OTELGPU, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


# Says its number, counts the signals that reach it, and takes a moment to end.
PATIENT = """
import ctypes, os, signal, sys, time
library = ctypes.CDLL(sys.argv[1])
reported = []
signal.signal(signal.SIGINT, lambda number, frame: reported.append(number))
signal.signal(signal.SIGTERM, lambda number, frame: reported.append(number))
print(os.getpid(), flush=True)
while not reported:
    time.sleep(0.01)
time.sleep(0.5)
for _ in range(13):
    library.cudaDeviceSynchronize()
print(reported, flush=True)
sys.exit(5)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_and_the_program_s_end_is_still_seen(
    tmp_path: Path, number: signal.Signals
) -> None:
    traces = tmp_path / "traces.jsonl"
    command = ("run", f"--export=file:{traces}", "--", sys.executable, "-c", PATIENT, str(fake_cudart_path()))
    with started(*command, start_new_session=True) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        programs = held_programs(agent.pid)
        assert living_programs(programs) == programs
        agent.send_signal(number)
        stdout, stderr = agent.communicate(timeout=20)
    assert stdout == f"[{int(number)}]\n"
    assert agent.returncode == 5
    assert "Traceback" not in stderr
    assert cuda_calls(read_spans(traces))["cudaDeviceSynchronize"] == 13
    wait_until(lambda: not living_programs(programs), "the probes are gone")


def test_ctrl_c_at_a_terminal_reaches_the_program_once(tmp_path: Path) -> None:
    traces, output = tmp_path / "traces.jsonl", tmp_path / "output.txt"
    command = [OTELGPU, "run", f"--export=file:{traces}", "--", sys.executable, "-c", PATIENT]
    # Standard input is elsewhere, as in `otelgpu run … < prompts`: the terminal is still the terminal.
    code = interrupted_at_terminal([*command, str(fake_cudart_path())], output, stdin="/dev/null")
    said = output.read_text()
    assert code == 5, said
    assert "[2]\n" in said  # and not [2, 2]
    assert cuda_calls(read_spans(traces))["cudaDeviceSynchronize"] == 13


def test_a_second_signal_ends_otelgpu_at_once() -> None:
    stubborn = (
        "import os, signal, time; signal.signal(15, signal.SIG_IGN)\n"
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    with started("run", NOWHERE, "--", sys.executable, "-c", stubborn, start_new_session=True) as agent:
        assert agent.stdout is not None
        program = int(agent.stdout.readline())
        programs = held_programs(agent.pid)
        agent.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert agent.poll() is None  # it waits for the program, which may take its time
        began = time.monotonic()
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(20) == 128 + signal.SIGTERM
        assert time.monotonic() - began < 2
        assert state_of(program) == "S"  # the program is not harmed
        os.kill(program, signal.SIGKILL)
        wait_until(lambda: not living_programs(programs), "the probes are gone")


def test_a_killed_agent_leaves_nothing_behind_and_the_program_runs_on() -> None:
    program = (
        "import ctypes, os, sys; library = ctypes.CDLL(sys.argv[1]); print(os.getpid(), flush=True)\n"
        "for line in sys.stdin:\n"
        "    pointer = ctypes.c_void_p()\n"
        "    status = [library.cudaMalloc(ctypes.byref(pointer), 4096) for _ in range(int(line))]\n"
        "    print(sum(status), bool(pointer), flush=True)\n"
    )
    command = ("run", NOWHERE, "--", sys.executable, "-c", program, str(fake_cudart_path()))
    with started(*command, stdin=subprocess.PIPE) as agent:
        assert agent.stdout is not None and agent.stdin is not None
        pid = int(agent.stdout.readline())
        programs = held_programs(agent.pid)
        agent.stdin.write("1000\n")
        agent.stdin.flush()
        assert agent.stdout.readline() == "0 True\n"
        agent.kill()
        agent.wait()
        agent.stdin.write("20000\n")  # while the kernel takes the probes off
        agent.stdin.flush()
        assert agent.stdout.readline() == "0 True\n"
        wait_until(lambda: not living_programs(programs), "the probes are gone")
        agent.stdin.write("1\n")
        agent.stdin.flush()
        assert agent.stdout.readline() == "0 True\n"
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: state_of(pid) == "", "the program ends")


def test_attach_ends_after_its_duration_and_detaches(tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    program = (
        "import ctypes, sys, time; library = ctypes.CDLL(sys.argv[1])\n"
        "print(library.cudaDeviceSynchronize(), flush=True)\n"
        "while True: library.cudaDeviceSynchronize(); time.sleep(0.01)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(fake_cudart_path())], stdout=subprocess.PIPE, text=True
    ) as observed:
        assert observed.stdout is not None
        observed.stdout.readline()
        done = run_otelgpu("attach", "-p", str(observed.pid), "--duration=1", f"--export=file:{traces}")
        assert (done.returncode, observed.poll()) == (0, None)
        observed.kill()
    assert cuda_calls(read_spans(traces))["cudaDeviceSynchronize"] > 10


def test_a_process_that_is_gone_is_reported_in_one_line() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    done = run_otelgpu("attach", NOWHERE, "-p", str(process.pid))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"otelgpu: there is no process {process.pid}\n"


def test_attach_ends_with_the_last_process_and_its_children() -> None:
    leaves_a_child = ["sh", "-c", "sleep 60 & echo $!; exec sleep 60"]
    with (
        subprocess.Popen(leaves_a_child, stdout=subprocess.PIPE, text=True) as observed,
        subprocess.Popen(["sleep", "60"]) as other,
    ):
        assert observed.stdout is not None
        child = int(observed.stdout.readline())
        with started("attach", NOWHERE, "-p", f"{observed.pid},{other.pid}") as agent:
            assert "observing" in said_at_start(agent)
            for process in (other, observed):
                process.kill()
                process.wait()
            with pytest.raises(subprocess.TimeoutExpired):
                agent.wait(1.5)
            os.kill(child, signal.SIGKILL)
            assert "Traceback" not in agent.communicate(timeout=20)[1]
            assert agent.returncode == 0


def test_two_sessions_side_by_side_both_see_everything(tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer.jsonl", tmp_path / "inner.jsonl"
    prefix = [OTELGPU, "run", "--quiet", f"--export=file:{outer}", "--"]
    prefix += [OTELGPU, "run", "--quiet", f"--export=file:{inner}", "--"]
    # LD_LIBRARY_PATH leads both to the library before the client starts.
    said = run_cuda_client(prefix=prefix, calls=31, functions=("all",), library=fake_cudart_path())
    assert cuda_calls(read_spans(outer)) == cuda_calls(read_spans(inner)) == probed(dict(said.calls))
