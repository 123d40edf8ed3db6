"""A real Collector with files of collector-config/, started as their head comments say.

In: a file, or several, and settings (environment variables). Out: its addresses, what it counted, and what commands
the files report users to type. Nothing here knows otelgpu.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import yaml

from tests.backends.collector import PROGRAM, counted_at
from tests.backends.programs import POLL_S, ChildProcess, answers
from tests.rig import ROOT
from tests.rig.ports import free_ports

FOLDER: Final = ROOT / "collector-config"
PROFILES_GATE: Final = "--feature-gates=service.profilesSupport"
_VALIDATE_TIMEOUT_S: Final = 60
_ARRIVAL_TIMEOUT_S: Final = 30.0
_COMMAND: Final = re.compile(r"^#   (.+)$", re.MULTILINE)
_PATHS: Final = {
    "traces": "/v1/traces",
    "metrics": "/v1/metrics",
    "logs": "/v1/logs",
    "profiles": "/v1development/profiles",
}


class _Message(Protocol):
    def SerializeToString(self) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What a file's head comment reports users to type: variables, options, and the files, as in ``FOLDER``."""

    settings: Mapping[str, str]
    options: tuple[str, ...]
    files: tuple[str, ...]


def config_files() -> list[str]:
    """All of them, as in ``FOLDER``."""
    return sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.yaml"))


def signals_of(file: str) -> set[str]:
    """Of the pipelines that a file has."""
    pipelines = yaml.safe_load((FOLDER / file).read_text())["service"]["pipelines"]
    return {name.partition("/")[0] for name in pipelines}


def command_of(file: str) -> Command:
    """The command in its head comment. Raises `ValueError` where there is not exactly one."""
    lines = [line.strip() for line in _COMMAND.findall((FOLDER / file).read_text())]
    words = shlex.split(" ".join(line.removesuffix("\\") for line in lines))
    if words.count("otelcol-contrib") != 1:
        raise ValueError(f"{file}: its head comment has no command, or several: {lines}")
    at = words.index("otelcol-contrib")
    rest = words[at + 1 :]
    options = [word for word in rest if word.startswith("--") and word != "--config"]
    files = [word for before, word in itertools.pairwise(rest) if before == "--config"]
    settings = dict(word.split("=", 1) for word in words[:at])
    return Command(settings=settings, options=tuple(options), files=tuple(files))


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Return when it holds. Raises AssertionError, with ``what``, when that takes too long."""
    deadline = time.monotonic() + _ARRIVAL_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(POLL_S)


def _command(verb: Sequence[str], files: Sequence[str], options: Sequence[str]) -> list[str | Path]:
    configs = [part for file in files for part in ("--config", FOLDER / file)]
    return [PROGRAM, *verb, *options, *configs]


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Nothing of this process's but where programs are."""
    return {"PATH": os.environ["PATH"], **settings}


def validate(
    files: Sequence[str], options: Sequence[str] = (), settings: Mapping[str, str] | None = None
) -> str:
    """What ``otelcol validate`` says against these files; nothing when they are right."""
    done = subprocess.run(
        _command(["validate"], files, options),
        env=_environment(settings or {}),
        capture_output=True,
        text=True,
        timeout=_VALIDATE_TIMEOUT_S,
        check=False,
    )
    said = done.stdout + done.stderr
    return said or (f"exit status {done.returncode}" if done.returncode else "")


class ConfiguredCollector:
    """On free ports of the loopback interface, its queues in ``folder``; it can be stopped and started again."""

    def __init__(
        self, folder: Path, files: Sequence[str], options: Sequence[str], settings: Mapping[str, str]
    ) -> None:
        self._grpc, self._http, self._health, self._telemetry = free_ports(4)
        self.storage = folder / "queues"
        self._log = folder / "otelcol.log"
        self._command = _command([], files, options)
        self._environment = _environment(
            {
                "COLLECTOR_LISTEN": "127.0.0.1",
                "COLLECTOR_GRPC_PORT": str(self._grpc),
                "COLLECTOR_HTTP_PORT": str(self._http),
                "COLLECTOR_HEALTH": f"127.0.0.1:{self._health}",
                "COLLECTOR_METRICS_PORT": str(self._telemetry),
                "COLLECTOR_STORAGE": str(self.storage),
                **settings,
            }
        )
        self._process: ChildProcess | None = None

    @property
    def grpc(self) -> str:
        return f"http://127.0.0.1:{self._grpc}"

    @property
    def process(self) -> ChildProcess:
        """That runs."""
        assert self._process is not None, "the Collector is not running"
        return self._process

    def start(self, prefix: Sequence[str] = ()) -> None:
        """Return when it says that it is well. ``prefix``: the command that is to start it."""
        self._process = ChildProcess([*prefix, *self._command], self._log, self._environment)
        self._process.wait_until(lambda: answers(f"http://127.0.0.1:{self._health}/"))

    def stop(self) -> None:
        """As an operator does. May be repeated."""
        if self._process is not None:
            self._process.stop()

    def send(self, signal: str, message: _Message | bytes) -> int:
        """One request of OTLP over HTTP; the status of the answer."""
        body = message if isinstance(message, bytes) else message.SerializeToString()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._http}{_PATHS[signal]}",
            data=body,
            headers={"Content-Type": "application/x-protobuf"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def counted(self, name: str) -> int:
        """One of its own counters since it started, summed over its series: ``receiver_accepted_spans``."""
        return counted_at(self._telemetry, name)

    def drained(self) -> bool:
        """Whether nothing is left in a queue or on its way."""
        return not self.counted("exporter_queue_size") and not self.counted("exporter_in_flight_requests")


@contextlib.contextmanager
def configured_collector(
    folder: Path, files: Sequence[str], *options: str, prefix: Sequence[str] = (), **settings: Any
) -> Iterator[ConfiguredCollector]:
    """A Collector until the end of the block. ``prefix``: the command that is to start it."""
    collector = ConfiguredCollector(
        folder, files, options, {name: str(value) for name, value in settings.items()}
    )
    try:
        collector.start(prefix)
        yield collector
    finally:
        collector.stop()
