"""The compiled client of examples/cuda_client: makes an exact number of CUDA calls and says how many."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from tests.rig.fakes import build_fakes, fake_cudart_path

if TYPE_CHECKING:
    from typing_extensions import Unpack

LaunchStyle = Literal["stub", "handle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaClientResult:
    """What the client said of itself.

    `calls`: function → count. `failures`: function → result code → count. `times` (with `times=True`): each
    call with its CLOCK_MONOTONIC start in ns, in order per thread. `opened_ns`: when the library was open.
    """

    pid: int
    library: str
    opened_ns: int
    start_ns: int
    end_ns: int
    calls: Mapping[str, int]
    failures: Mapping[str, Mapping[int, int]]
    times: Sequence[tuple[str, int]]
    exit_code: int
    stderr: str


def _parse(stdout: str, stderr: str, exit_code: int) -> CudaClientResult:
    # Programs that run the client (`prefix`) may print more.
    line = next((line for line in stdout.splitlines() if line.startswith('{"pid"')), None)
    if line is None:
        raise RuntimeError(f"cuda_client gave no result (exit code {exit_code}):\n{stdout}{stderr}")
    said = json.loads(line)
    return CudaClientResult(
        pid=said["pid"],
        library=said["library"],
        opened_ns=said["opened_ns"],
        start_ns=said["start_ns"],
        end_ns=said["end_ns"],
        calls=said["calls"],
        failures={
            function: {int(code): count for code, count in codes.items()}
            for function, codes in said["failures"].items()
        },
        times=[(function, time_ns) for function, time_ns in said.get("times", ())],
        exit_code=exit_code,
        stderr=stderr,
    )


class CudaClientOptions(TypedDict, total=False):
    """How to run the client.

    Each of `functions` (`("all",)`: of all that can be repeated; default cudaLaunchKernel) is called `calls`
    times (23) by all `threads` (1) together, with `sleep_us` between rounds. `late_ms`: take the variant that
    opens the library itself, so much later. `library`: another one than the fake. `times`: say when each
    call began. `linger_ms`: stay so long after the last. `env` is added to this process's environment.
    `suffix` is added to the executable's name (`own_suffix`).
    """

    calls: int
    functions: Sequence[str]
    threads: int
    sleep_us: int
    launch: LaunchStyle
    late_ms: int | None
    library: Path | None
    linger_ms: int
    times: bool
    exit_code: int
    env: Mapping[str, str]
    suffix: str


def own_suffix() -> str:
    """An end of names that no other test has, running now beside this one: what an agent can pick a client by."""
    return f"_{os.getpid()}"


def _program(options: CudaClientOptions) -> Path:
    program = build_fakes() / ("cuda_client" if options.get("late_ms") is None else "cuda_client_late")
    if not (suffix := options.get("suffix")):
        return program
    link = program.with_name(program.name + suffix)
    if not link.exists():
        link.hardlink_to(program)
        atexit.register(link.unlink, missing_ok=True)
    return link


def _command(options: CudaClientOptions) -> list[str]:
    late_ms, library = options.get("late_ms"), options.get("library")
    command = [
        str(_program(options)),
        f"--calls={options.get('calls', 23)}",
        f"--functions={','.join(options.get('functions', ('cudaLaunchKernel',)))}",
        f"--threads={options.get('threads', 1)}",
        f"--sleep-us={options.get('sleep_us', 0)}",
        f"--launch={options.get('launch', 'stub')}",
        f"--linger-ms={options.get('linger_ms', 0)}",
        f"--exit-code={options.get('exit_code', 0)}",
    ]
    if late_ms is not None:
        command += [f"--late-ms={late_ms}", f"--library={library or fake_cudart_path()}"]
    elif library is not None and library.name != "libcudart.so.12":
        raise ValueError(f"cuda_client is linked to libcudart.so.12, not {library.name}: use late_ms")
    if options.get("times"):
        command.append("--times")
    return command


def _environment(options: CudaClientOptions) -> dict[str, str]:
    environment = {**os.environ, **options.get("env", {})}
    library = options.get("library")
    if library is not None:  # goes before the program's RUNPATH
        environment["LD_LIBRARY_PATH"] = str(library.resolve().parent)
    return environment


def run_cuda_client(
    *, prefix: Sequence[str] = (), timeout_s: float = 60, **options: Unpack[CudaClientOptions]
) -> CudaClientResult:
    """Run the client to its end; options as `CudaClientOptions` says.

    `prefix` is a command that runs it, such as `("otelgpu", "run", "--")`. Raises `RuntimeError` when it gave
    no result.
    """
    done = subprocess.run(
        [*prefix, *_command(options)],
        env=_environment(options),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return _parse(done.stdout, done.stderr, done.returncode)


@dataclass(frozen=True, slots=True)
class CudaClient:
    """A client that is up and waits to be reported to begin: `pid` can be attached to."""

    process: subprocess.Popen[str]
    pid: int

    def begin(self) -> None:
        """Let it make its calls, and do not wait for them."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def finish(self, timeout_s: float = 60) -> CudaClientResult:
        """Let it make its calls, and give what it said."""
        stdout, stderr = self.process.communicate("go\n", timeout=timeout_s)
        return _parse(stdout, stderr, self.process.returncode)


@contextlib.contextmanager
def start_cuda_client(
    *, prefix: Sequence[str] = (), **options: Unpack[CudaClientOptions]
) -> Iterator[CudaClient]:
    """Start the client and leave it waiting before its first call; options as `CudaClientOptions` says.

    `prefix` is a command that runs it. `CudaClient.pid` is the client's own number, as it knows it.
    """
    process = subprocess.Popen(
        [*prefix, *_command(options), "--wait"],
        env=_environment(options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        word, _, pid = process.stderr.readline().partition(" ")
        if word != "ready":
            raise RuntimeError(f"cuda_client did not start: {word} {pid}{process.stderr.read()}")
        yield CudaClient(process, int(pid))
    finally:
        if process.poll() is None:
            process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        process.wait()
