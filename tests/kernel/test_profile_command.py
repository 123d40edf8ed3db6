"""`profile` as a user sees it: files of what ran, exit codes, an early end, and nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otelgpu.model.profiles import ProfileColumns
from otelgpu.render.format import read_profiles
from tests.kernel.observing import (
    OTELGPU,
    held_programs,
    living_programs,
    run_otelgpu,
)
from tests.rig.bpf_objects import held_by, list_objects
from tests.rig.cgroup import in_cgroup, own_cgroup, remove_cgroup

pytestmark = pytest.mark.long

SPIN = """
import sys, threading, time
def busy_function():
    total = 0
    for number in range(20000):
        total += number * number
def sleepy_function():
    time.sleep(0.005)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    busy_function()
    sleepy_function()
"""


@contextmanager
def spinning(seconds: float = 60) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", SPIN, str(seconds)])
    try:
        time.sleep(0.3)
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until_attached(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    while "profiling" not in (line := process.stderr.readline()):
        assert line, "it ended"


def profiles_of(path: Path) -> list[ProfileColumns]:
    return list(read_profiles(path.name, path.read_bytes()))


def functions(batches: list[ProfileColumns], kind: str) -> set[str]:
    return {f.name for batch in batches if batch.sample_type.type == kind for f in batch.functions}


def test_a_running_process_is_profiled_and_left_as_it_was(tmp_path: Path) -> None:
    out, folded = tmp_path / "out.html", tmp_path / "out.folded"
    with spinning() as process:
        done = run_otelgpu(
            *("profile", "-p", str(process.pid), "-t", "python,cpu,offcpu", "-d", "1"),
            *("-o", str(out), "-o", str(folded)),
        )
        assert done.returncode == 0, done.stderr
        assert process.poll() is None
    assert "written to" in done.stderr
    assert done.stdout == ""
    assert "busy_function" in folded.read_text()
    assert "busy_function" in out.read_text()


def test_what_ran_and_what_waited_are_reported_by_python_function() -> None:
    with spinning() as process:
        done = run_otelgpu("profile", "-p", str(process.pid), "-t", "cpu,offcpu", "-d", "1.5")
    assert done.returncode == 0, done.stderr
    cpu, off_cpu = done.stdout.split("off_cpu:")
    assert "busy_function" in cpu
    assert "sleepy_function" not in cpu.split("share")[1].splitlines()[1]
    assert "sleepy_function" in off_cpu


def test_a_program_is_profiled_to_its_end_and_its_exit_code_is_given(tmp_path: Path) -> None:
    out = tmp_path / "out.pb.gz"
    done = run_otelgpu(
        *("profile", "-t", "cpu", "-o", str(out), "--"), *(sys.executable, "-c", SPIN + "sys.exit(7)", "1.5")
    )
    assert done.returncode == 7, done.stderr
    assert "busy_function" in functions(profiles_of(out), "cpu")


def test_a_container_is_profiled_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    out = tmp_path / "out.folded"
    identity = uuid.uuid4().hex * 2
    with own_cgroup() as folder, spinning() as outside:
        inside = folder / f"docker-{identity}.scope"
        inside.mkdir()
        process = subprocess.Popen(
            [*in_cgroup(inside), sys.executable, "-c", SPIN.replace("busy", "inner"), "60"]
        )
        try:
            time.sleep(0.3)
            done = run_otelgpu(
                *("profile", "--container", identity[:12], "-t", "cpu", "-d", "1.5", "-o", str(out))
            )
        finally:
            process.kill()
            process.wait()
            remove_cgroup(inside)
        assert outside.poll() is None
    assert done.returncode == 0, done.stderr
    assert "inner_function" in out.read_text()
    assert "busy_function" not in out.read_text()


def test_a_program_outlives_its_profile() -> None:
    began = time.monotonic()
    done = run_otelgpu("profile", "-t", "cpu", "-d", "0.5", "--", "sleep", "2.5")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began > 2.5


def test_interrupted_it_writes_what_there_is_and_succeeds(tmp_path: Path) -> None:
    out = tmp_path / "out.folded"
    with spinning() as process:
        profiler = subprocess.Popen(
            [OTELGPU, "profile", "-p", str(process.pid), "-t", "cpu", "-d", "60", "-o", str(out)],
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until_attached(profiler)
        time.sleep(1)
        profiler.send_signal(signal.SIGINT)
        _, said = profiler.communicate(timeout=20)
    assert profiler.returncode == 0, said
    assert "busy_function" in out.read_text()


def test_the_delay_goes_by_unobserved() -> None:
    began = time.monotonic()
    with spinning() as process:
        profiler = subprocess.Popen(
            [
                OTELGPU,
                "profile",
                "-p",
                str(process.pid),
                "-t",
                "cpu",
                "-d",
                "0.5",
                "--delay",
                "1.2",
                "--quiet",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(0.9)
        assert held_by(profiler.pid) == set()
        profiler.communicate(timeout=20)
    assert profiler.returncode == 0
    assert time.monotonic() - began > 1.7


def test_it_ends_when_the_process_has_ended() -> None:
    with spinning(1.5) as process:
        began = time.monotonic()
        done = run_otelgpu("profile", "-p", str(process.pid), "-t", "cpu", "-d", "50")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 20


def test_nothing_is_left_in_the_kernel() -> None:
    with spinning() as process:
        profiler = subprocess.Popen(
            [OTELGPU, "profile", "-p", str(process.pid), "-t", "all", "-d", "1", "--quiet"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until_attached(profiler)
        held = held_by(profiler.pid)
        programs = held_programs(profiler.pid)
        profiler.communicate(timeout=40)
        assert profiler.returncode == 0
        assert held
        assert programs
        deadline = time.monotonic() + 10
        while (held & list_objects() or living_programs(programs)) and time.monotonic() < deadline:
            time.sleep(0.1)  # the kernel frees what had been in use a moment later
        assert held & list_objects() == set()
        assert process.poll() is None
