"""The compiled programs of tests/fakes/programs: one for each way that CUDA gets into a process.

In: a kind and counts. Out: running programs, and what they say they did. All reach the device of the fake
libcuda.so.1, through the fake runtime where they have one, as real programs do.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from tests.rig.fakes import ROOT, build_fakes

ProgramKind = Literal[
    "shared",  # linked to libcudart.so.12
    "ptsz",  # the same, compiled for the per-thread default stream
    "static",  # libcudart_static.a in the executable
    "static_library",  # the same in a library, without which the executable knows no CUDA
    "stripped",  # static, and no symbols: only what it calls in libcuda is to be seen
    "late",  # opens libcudart.so.12 while it runs
    "two_copies",  # opens a second one after it, under a name with a hash
    "driver",  # libcuda only: kernels by name from modules, as Triton
    "driver_by_address",  # the same, launching by what cuGetProcAddress gave
    "graph",  # captures a graph of kernels and launches it
    "ctypes",  # Python: every function by dlsym
    "fork_exec",  # a child executes another program of CUDA
]
PROGRAM_KINDS: Final[tuple[ProgramKind, ...]] = get_args(ProgramKind)
_SECOND_COPY: Final = "libcudart-d0da41ae.so.11.0"
_BUILT: Final[dict[ProgramKind, str]] = {
    "two_copies": "program_late",
    "driver_by_address": "program_driver",
    "graph": "program_shared",
    "fork_exec": "program_static",
}
_PYTHON: Final = ROOT / "tests" / "fakes" / "programs" / "by_ctypes.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTruth:
    """What one process says of itself: calls by function, launches by kernel, bytes, a graph's numbers.

    `driver_calls` is of the fake libcuda: all calls into it, those of the runtime included.
    """

    pid: int
    calls: Mapping[str, int]
    kernels: Mapping[str, int]
    bytes: Mapping[str, int]
    graph: Mapping[str, int]
    driver_calls: Mapping[str, int]


def program_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with the fakes to be found, the runtime reaching the driver, no delays."""
    inherited = os.environ.get("LD_LIBRARY_PATH")
    return {
        **os.environ,
        "LD_LIBRARY_PATH": f"{build_fakes()}:{inherited}" if inherited else str(build_fakes()),
        "FAKE_CUDART_DRIVER": "libcuda.so.1",
        "FAKE_CUDART_KERNEL_US": "0",
        **(env or {}),
    }


def program_path(kind: ProgramKind) -> Path:
    """The file that is executed: for `ctypes` the Python that runs here."""
    return Path(sys.executable) if kind == "ctypes" else build_fakes() / _BUILT.get(kind, f"program_{kind}")


def second_copy() -> Path:
    """The runtime once more, under a name with a hash as a wheel's repair makes it, of an older CUDA."""
    return build_fakes() / _SECOND_COPY


def program_command(kind: ProgramKind, *options: str) -> list[str]:
    """The command line; `options` are those of the program's source, such as ``--launches=23``."""
    built = build_fakes()
    extra: dict[ProgramKind, list[str]] = {
        "late": [f"--libraries={built / 'libcudart.so.12'}"],
        "two_copies": [f"--libraries={built / 'libcudart.so.12'},{second_copy()}"],
        "driver_by_address": ["--by-address=1"],
        "graph": ["--nodes=17", "--graph-launches=13"],
        "fork_exec": [f"--exec={built / 'program_shared'}"],
        "ctypes": [str(_PYTHON), f"--library={built / 'libcudart.so.12'}"],
    }
    return [str(program_path(kind)), *extra.get(kind, []), *options]


def _parse(stdout: str, ledger: Path | None, stderr: str, exit_code: int) -> list[ProgramTruth]:
    driver: dict[int, dict[str, int]] = {}
    if ledger is not None and ledger.exists():
        driver = {said["pid"]: said["calls"] for said in map(json.loads, ledger.read_text().splitlines())}
    lines = [json.loads(line) for line in stdout.splitlines() if line.startswith('{"pid"')]
    if exit_code or not lines:
        raise RuntimeError(f"the program gave no result (exit code {exit_code}):\n{stdout}{stderr}")
    return [ProgramTruth(**line, driver_calls=driver.get(line["pid"], {})) for line in lines]


def run_program(
    kind: ProgramKind,
    *options: str,
    prefix: Sequence[str] = (),
    ledger: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60,
) -> list[ProgramTruth]:
    """Run a program to its end: what each of its processes said, in order of ending.

    `prefix` is a command that runs it. `ledger` is a file for the driver's own count. Raises `RuntimeError`
    when the program failed.
    """
    counted = {"FAKE_CUDA_LEDGER": str(ledger)} if ledger else {}
    done = subprocess.run(
        [*prefix, *program_command(kind, *options)],
        env=program_environment({**counted, **(env or {})}),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return _parse(done.stdout, ledger, done.stderr, done.returncode)


@dataclass(frozen=True, slots=True)
class Program:
    """A program that waits before its first call: `pid` can be attached to."""

    process: subprocess.Popen[str]
    pid: int
    ledger: Path | None

    def finish(self, timeout_s: float = 60) -> list[ProgramTruth]:
        """Let it make its calls, and give what it said."""
        stdout, stderr = self.process.communicate("go\n", timeout=timeout_s)
        return _parse(stdout, self.ledger, stderr, self.process.returncode)


@contextlib.contextmanager
def start_program(
    kind: ProgramKind,
    *options: str,
    prefix: Sequence[str] = (),
    ledger: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Program]:
    """Start a program and leave it waiting before its first call; as `run_program` otherwise."""
    counted = {"FAKE_CUDA_LEDGER": str(ledger)} if ledger else {}
    process = subprocess.Popen(
        [*prefix, *program_command(kind, *options, "--wait=1")],
        env=program_environment({**counted, **(env or {})}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        word, _, pid = process.stderr.readline().partition(" ")
        if word != "ready":
            raise RuntimeError(f"{kind} did not start: {word} {pid}{process.stderr.read()}")
        yield Program(process, int(pid), ledger)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


# -- The program that allocates and frees at random ----------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What is allocated of one memory on one device."""

    bytes: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The account of the program of memory.c at a time when it was inside no call.

    `live` by device and memory (the enumerators of `enum cuda_memory` in small letters), `used_bytes` by
    device as the driver has it; the others since its start: bytes by memory, calls and failed calls by function.
    """

    number: int
    time_ns: int
    operations: int
    live: Mapping[tuple[int, str], Live]
    used_bytes: Mapping[int, int]
    allocated_bytes: Mapping[str, int]
    freed_bytes: Mapping[str, int]
    calls: Counter[str]
    failures: Counter[str]


def _checkpoint(line: str) -> Checkpoint:
    said = json.loads(line)
    live: dict[tuple[int, str], Live] = {}
    for place, numbers in said["live"].items():
        device, memory = place.split("/")
        live[int(device), memory] = Live(**numbers)
    return Checkpoint(
        number=said["checkpoint"],
        time_ns=said["time_ns"],
        operations=said["operations"],
        live=live,
        used_bytes={int(device): used for device, used in said["used_bytes"].items()},
        allocated_bytes=said["allocated_bytes"],
        freed_bytes=said["freed_bytes"],
        calls=Counter(said["calls"]),
        failures=Counter(said["failures"]),
    )


def memory_command(
    *, operations: int = 10_000, seed: int = 1, threads: int = 1, checkpoint: int = 1000, resets: bool = False
) -> list[str]:
    """The command line of the program of memory.c, whose options these are."""
    return [
        str(build_fakes() / "program_memory"),
        f"--operations={operations}",
        f"--seed={seed}",
        f"--threads={threads}",
        f"--checkpoint={checkpoint}",
        f"--resets={int(resets)}",
    ]


class SteppedProgram:
    """A program that waits: before its first call, then after each checkpoint, which is a line of JSON."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*command, "--wait=1", "--step=1"],
            env=program_environment(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        word, _, pid = self.process.stderr.readline().partition(" ")
        if word != "ready":
            raise RuntimeError(f"{command[0]} did not start: {word} {pid}")
        self.pid = int(pid)

    def next_line(self) -> str | None:
        """Let it go on to its next checkpoint, where it waits; None: it has ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(timeout=10)
            return None
        return line

    def close(self) -> int:
        """End it if it still runs; its exit code."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        return self.process.returncode


class MemoryProgram(SteppedProgram):
    """The program of memory.c."""

    def next_checkpoint(self) -> Checkpoint | None:
        """See :meth:`next_line`."""
        line = self.next_line()
        return _checkpoint(line) if line is not None else None


def run_memory_program(command: Sequence[str], env: Mapping[str, str] | None = None) -> list[Checkpoint]:
    """Run `memory_command` to its end: all its checkpoints, the last with nothing live.

    Raises `RuntimeError` when it failed.
    """
    done = subprocess.run(
        command, env=program_environment(env), capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed ({done.returncode}):\n{done.stdout[-500:]}{done.stderr}")
    return [_checkpoint(line) for line in done.stdout.splitlines() if line.startswith('{"checkpoint"')]
