"""The example engine with continuous batching, started as a user would, driven, and stopped with SIGTERM."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rig.fakes import ROOT, build_fakes, fake_cudart_path
from tests.rig.llm_server import RigError, stop, wait_for_address, wait_for_health

POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineServer:
    """A service that answers: its API process (the `prefix` before it, if there is one) and its engine's."""

    url: str
    process: subprocess.Popen[bytes]
    pid: int
    engine_pid: int
    folder: Path

    def requests(self, count: int, timeout_s: float = 10) -> list[dict[str, Any]]:
        """What the API process says of each request, once there are `count`. Raises `RigError`."""
        deadline = time.monotonic() + timeout_s
        while len(lines := self._lines("api.jsonl")) < count:
            if time.monotonic() > deadline:
                raise RigError(f"{len(lines)} of {count} requests in the truth file after {timeout_s} s")
            time.sleep(POLL_S)
        return lines

    def steps(self) -> list[dict[str, Any]]:
        """What the engine says of each step so far."""
        return self._lines("engine.jsonl")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        # The text after the last newline is a line that is being written.
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]


@contextlib.contextmanager
def start_engine_server(
    *options: str,
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    start_timeout_s: float = 30,
) -> Iterator[EngineServer]:
    """Start `examples/engine` with options such as ``--scheduling=async``, and stop it at the end.

    It runs with the fake libcudart unless `env` sets LLM_CUDART. SIGTERM must end it with exit code 0.
    Raises `RigError` with its output when it does not start, or does not stop as it should.
    """
    build_fakes()
    with tempfile.TemporaryDirectory(prefix="otelgpu-engine-") as name:
        folder = Path(name)
        output_path = folder / "output.txt"
        environment = {**os.environ, "LLM_CUDART": str(fake_cudart_path()), **(env or {})}
        command = [
            sys.executable,
            str(ROOT / "examples" / "engine"),
            "--port=0",
            f"--truth={folder}",
            *options,
        ]
        with output_path.open("wb") as output:
            process = subprocess.Popen(
                [*prefix, *command], env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            deadline = time.monotonic() + start_timeout_s
            url = wait_for_address(process, output_path, deadline)
            health = wait_for_health(process, url, output_path, deadline)
            yield EngineServer(
                url=url, process=process, pid=health["pid"], engine_pid=health["engine_pid"], folder=folder
            )
            stop(process, output_path)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
