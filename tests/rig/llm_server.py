"""The example LLM server, started as a user would and stopped with SIGTERM."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.rig.fakes import ROOT, build_fakes, fake_cudart_path

STOP_TIMEOUT_S = 20
POLL_S = 0.01


class RigError(RuntimeError):
    """A program under observation did not do what the rig needs; the message holds its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmServer:
    """A server that answers.

    `process` is what was started (the `prefix` if there is one), `pid` gunicorn's master, `worker_pid` one of
    its workers (the only one by default). `output_path` collects stdout and stderr.
    """

    url: str
    process: subprocess.Popen[bytes]
    pid: int
    worker_pid: int
    truth_path: Path
    output_path: Path

    def connect(self, timeout_s: float = 30) -> http.client.HTTPConnection:
        """A new keep-alive connection to it."""
        address = urlsplit(self.url)
        assert address.hostname is not None
        return http.client.HTTPConnection(address.hostname, address.port, timeout=timeout_s)

    def truth(self, count: int, timeout_s: float = 10) -> list[dict[str, Any]]:
        """The truth file's lines, once there are `count`: a line follows the response's last byte.

        Raises `RigError` when they do not come.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            # The text after the last newline is a line that is being written.
            lines = self.truth_path.read_text().split("\n")[:-1] if self.truth_path.exists() else []
            if len(lines) >= count:
                return [json.loads(line) for line in lines]
            if time.monotonic() > deadline:
                raise RigError(f"{len(lines)} of {count} lines in the truth file after {timeout_s} s")
            time.sleep(POLL_S)

    def output(self) -> str:
        """What it printed so far."""
        return self.output_path.read_text(errors="replace")


def wait_for_address(process: subprocess.Popen[bytes], output: Path, deadline: float) -> str:
    while time.monotonic() < deadline:
        text = output.read_text(errors="replace")
        if found := re.search(r"^listening on (http://\S+)$", text, re.MULTILINE):
            return found[1]
        if process.poll() is not None:
            break
        time.sleep(POLL_S)
    raise RigError(f"the server did not start (exit code {process.poll()}):\n{output.read_text()}")


def wait_for_health(
    process: subprocess.Popen[bytes], url: str, output: Path, deadline: float
) -> dict[str, Any]:
    address = urlsplit(url)
    assert address.hostname is not None
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=5)
        try:
            connection.request("GET", "/health", headers={"Connection": "close"})
            health: dict[str, Any] = json.loads(connection.getresponse().read())
            return health
        except (OSError, http.client.HTTPException):
            time.sleep(POLL_S)
        finally:
            connection.close()
    raise RigError(f"the server does not answer (exit code {process.poll()}):\n{output.read_text()}")


@contextlib.contextmanager
def start_llm_server(
    port: int = 0,
    workers: int = 1,
    threads: int = 10,
    env: Mapping[str, str] | None = None,
    *,
    prefix: Sequence[str] = (),
    start_timeout_s: float = 30,
) -> Iterator[LlmServer]:
    """Start the server, wait until /health answers, and stop it at the end.

    It runs with the fake libcudart unless `env` sets LLM_CUDART, and writes its truth file. `prefix` is a
    command that runs it, such as `("otelgpu", "run", "--")`. SIGTERM must end it with exit code 0.
    Raises `RigError` with its output when it does not start, or does not stop as it should.
    """
    build_fakes()
    with tempfile.TemporaryDirectory(prefix="otelgpu-llm-server-") as folder:
        truth_path, output_path = Path(folder, "truth.jsonl"), Path(folder, "output.txt")
        environment = {
            **os.environ,
            "LLM_CUDART": str(fake_cudart_path()),
            "LLM_TRUTH": str(truth_path),
            **(env or {}),
        }
        command = [sys.executable, str(ROOT / "examples" / "llm_server"), f"--port={port}"]
        command += [f"--workers={workers}", f"--threads={threads}"]
        with output_path.open("wb") as output:
            process = subprocess.Popen(
                [*prefix, *command], env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            deadline = time.monotonic() + start_timeout_s
            url = wait_for_address(process, output_path, deadline)
            health = wait_for_health(process, url, output_path, deadline)
            yield LlmServer(
                url=url,
                process=process,
                pid=health["parent_pid"],
                worker_pid=health["pid"],
                truth_path=truth_path,
                output_path=output_path,
            )
            stop(process, output_path)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def stop(process: subprocess.Popen[bytes], output: Path) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        exit_code = process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise RigError(f"still runs {STOP_TIMEOUT_S} s after SIGTERM:\n{output.read_text()}") from None
    if exit_code != 0:
        raise RigError(f"exit code {exit_code} after SIGTERM:\n{output.read_text()}")
