"""What runs while something is measured: the observed load, otelgpu itself, other tracers."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.rig import ROOT, cuda_include_flags, fake_cudart_path

BUILD = ROOT / "build" / "bench"
SOURCE = Path(__file__).with_name("load.c")
READY_TIMEOUT_S = 60
# A device that takes no time, so that what is measured is the call and the probe on it.
FAST_DEVICE = {"FAKE_CUDART_KERNEL_US": "0", "FAKE_CUDART_COPY_GB_PER_S": "1000000"}


class BenchError(RuntimeError):
    """Something that was to be measured did not run; the message says what it printed."""


@functools.cache
def build_load() -> Path:
    """Build load.c with a copy of the fake libcudart of its own, so that nobody else's probes are on it."""
    BUILD.mkdir(parents=True, exist_ok=True)
    library, program = BUILD / "libcudart.so.12", BUILD / "load"
    for target, source in ((library, fake_cudart_path()), (program, SOURCE)):
        if target.exists() and target.stat().st_mtime > source.stat().st_mtime:
            continue
        if target is library:
            shutil.copyfile(source, target)
            continue
        command = ["gcc", "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-pthread", *cuda_include_flags()]
        command += ["-o", str(target), str(source), str(library), "-Wl,-rpath,$ORIGIN", "-ldl"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise BenchError(f"gcc failed on {source}:\n{made.stderr}")
    return program


class Load:
    """A running load that obeys commands; :meth:`ask` gives its answer."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [build_load()],
            env={**os.environ, **FAST_DEVICE, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self._process.pid
        self.ask("hello")

    def ask(self, command: str) -> Any:
        self.begin(command)
        return self.answer()

    def begin(self, command: str) -> None:
        """Without waiting for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"the load ended with exit code {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=30)


@contextlib.contextmanager
def running_load(env: Mapping[str, str] | None = None) -> Iterator[Load]:
    """A load until the end of the block; ``env`` is added to this process's environment."""
    load = Load(env)
    try:
        yield load
    finally:
        load.close()


def otelgpu(*arguments: str) -> list[str]:
    """The command line of this checkout's otelgpu."""
    return [str(Path(sys.executable).with_name("otelgpu")), *arguments]


@contextlib.contextmanager
def observer(
    command: Sequence[str], ready: str, *, settle_s: float = 0.5, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a tracer until the end of the block; it is up when ``ready`` appears in what it prints.

    It is ended by SIGINT. The kernel takes probes off a little after their owner has ended: hence the pauses.
    """
    with tempfile.NamedTemporaryFile(prefix="otelgpu-bench-") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_for(process, Path(output.name), ready)
            time.sleep(settle_s)
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            time.sleep(settle_s)


def _wait_for(process: subprocess.Popen[bytes], output: Path, ready: str) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if ready in output.read_text(errors="replace"):
            return
        time.sleep(0.02)
    raise BenchError(f"{process.args!r} did not get ready:\n{output.read_text(errors='replace')[-2000:]}")


def attached(pid: int, *options: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """``otelgpu attach -p pid``, up and running. Its spans go to /dev/null."""
    command = otelgpu("attach", "-p", str(pid), "--quiet", "--export", "file:/dev/null", *options)
    return observer(command, "observing")


@contextlib.contextmanager
def at_once(
    observers: Mapping[str, contextlib.AbstractContextManager[object]],
) -> Iterator[dict[str, str]]:
    """Several of them, begun and ended side by side, as each compiles and settles: name → why it is not up."""
    with ThreadPoolExecutor(len(observers)) as pool:
        entering = {name: pool.submit(each.__enter__) for name, each in observers.items()}
        try:
            absent: dict[str, str] = {}
            for name, entered in entering.items():
                try:
                    entered.result()
                except (BenchError, OSError) as error:
                    absent[name] = str(error).splitlines()[0]
            yield absent
        finally:
            up = [name for name, entered in entering.items() if entered.exception() is None]
            list(pool.map(lambda name: observers[name].__exit__(None, None, None), up))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, its children's not included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident set: now, and its peak."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return tuple(int(status[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))  # type: ignore[return-value]
