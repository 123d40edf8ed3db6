"""What the backends have in common: where they lie once built, a child process with a log, JSON by HTTP.

Nothing here knows otelgpu.
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar

from tests.rig import RigError

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "otelgpu", "backends")
READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.05
_HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where a Collector sends one signal: one of its exporters, by its name, and its settings."""

    signal: Literal["traces", "metrics"]
    exporter: str
    settings: Mapping[str, Any]


def missing_program(name: str, program: Path, recipe: str) -> str | None:
    """Why there is no such program to run, and what to do; None when there is one.

    ``recipe`` is the file in this folder that it is built from: one that was built from another does not count.
    """
    if not program.exists():
        return f"no {name} at {program}: run `tools/backends.sh {name}`"
    built_from = CACHE / recipe.replace("/", ".")
    if not built_from.exists() or not filecmp.cmp(_HERE / recipe, built_from, shallow=False):
        return f"the {name} at {program} was built from another {recipe}: run `tools/backends.sh {name}`"
    return None


def get_json(url: str) -> Any:
    """What is there, or None where there is nothing (404)."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def answers(url: str) -> bool:
    """Whether a GET succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except OSError:
        return False


class Backend(Protocol):
    """A program that was started when this was made."""

    def wait_until_ready(self) -> None:
        """Return when it answers. Raises `RigError` when it does not come up."""

    def stop(self) -> None:
        """End it."""


_B = TypeVar("_B", bound=Backend)


@contextlib.contextmanager
def running(backend: _B) -> Iterator[_B]:
    """The backend once it answers, until the end of the block."""
    try:
        backend.wait_until_ready()
        yield backend
    finally:
        backend.stop()


class ChildProcess:
    """A program that runs, and a file of what it prints. Ctrl-C in a terminal does not reach it.

    ``environment`` takes the place of this process's.
    """

    def __init__(
        self, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._name, self._log = Path(command[0]).name, log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def said(self) -> str:
        """What it printed so far."""
        return self._log.read_text(errors="replace")

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Return when it is. Raises `RigError`, and it is stopped, when it ends instead or takes too long."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RigError(f"{self._name} did not get ready:\n{self.said()[-3000:]}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End it as an operator does. May be repeated."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once. May be repeated."""
        self._process.kill()
        self._process.wait()
