"""A real OpenTelemetry Collector as a child process: what it received, by its files and by its own counters.

In: which of its two exporters to use. Out: its addresses, its files as opentelemetry-proto messages, what it
counted, its CPU time and memory. `make backends` builds it; nothing here knows otelgpu.
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tests.rig import RigError

MANIFEST = Path(__file__).with_name("ocb.yaml")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "otelgpu", "backends")
PROGRAM = CACHE / "otelcol"

READY_TIMEOUT_S = 30.0
MEMORY_LIMIT_MIB = 512
_READY = "Everything is ready"
_SAMPLE = re.compile(r"^(\w+)(?:\{.*\})? (\S+)$", re.MULTILINE)


class CollectorError(RigError):
    """The Collector did not do its part; the message says what it printed."""


class _Message(Protocol):
    def MergeFromString(self, serialized: bytes) -> int: ...


_M = TypeVar("_M", bound=_Message)


def missing_collector() -> str | None:
    """Why there is no Collector to run, and what to do; None when there is one."""
    if not PROGRAM.exists():
        return f"no Collector at {PROGRAM}: run `make backends`"
    built_from = CACHE / MANIFEST.name
    if not built_from.exists() or not filecmp.cmp(MANIFEST, built_from, shallow=False):
        return f"the Collector at {PROGRAM} was built from another {MANIFEST.name}: run `make backends`"
    return None


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on; all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Collector:
    """OTLP over gRPC and HTTP in; ``file``: appended to files in ``folder``; ``nop``: thrown away.

    It can be stopped and started again at the same addresses.
    """

    def __init__(self, folder: Path, exporter: Literal["file", "nop"] = "file") -> None:
        self._grpc, self._http, self._telemetry = free_ports(3)
        self.addresses = {
            "grpc": f"http://127.0.0.1:{self._grpc}",
            "http/protobuf": f"http://127.0.0.1:{self._http}",
        }
        self._folder = folder
        self._log = folder / "otelcol.log"
        self._config = folder / "otelcol.json"  # every JSON text is YAML
        self._config.write_text(json.dumps(self._configuration(exporter), indent=1))
        self._process: subprocess.Popen[bytes] | None = None

    def _configuration(self, exporter: Literal["file", "nop"]) -> dict[str, Any]:
        exporters: dict[str, Any] = {"nop": {}}
        if exporter == "file":
            exporters = {
                f"file/{signal}": {
                    "path": str(self._folder / signal),
                    "format": "proto",
                    "append": True,
                    "flush_interval": "10ms",
                }
                for signal in ("traces", "metrics")
            }
        # No batch processor: an answer says what became of the spans, and not that they were put in a queue.
        pipelines = {
            signal: {
                "receivers": ["otlp"],
                "processors": ["memory_limiter"],
                "exporters": [f"file/{signal}" if exporter == "file" else "nop"],
            }
            for signal in ("traces", "metrics")
        }
        prometheus = {"host": "127.0.0.1", "port": self._telemetry}
        return {
            "receivers": {
                "otlp": {
                    "protocols": {
                        "grpc": {"endpoint": f"127.0.0.1:{self._grpc}"},
                        "http": {"endpoint": f"127.0.0.1:{self._http}"},
                    }
                }
            },
            "processors": {
                "memory_limiter": {"check_interval": "100ms", "limit_mib": MEMORY_LIMIT_MIB},
            },
            "exporters": exporters,
            "service": {
                "telemetry": {"metrics": {"readers": [{"pull": {"exporter": {"prometheus": prometheus}}}]}},
                "pipelines": pipelines,
            },
        }

    @property
    def pid(self) -> int:
        """Of the running Collector."""
        assert self._process is not None, "the Collector is not running"
        return self._process.pid

    def start(self) -> None:
        """Return when it takes data. Raises :class:`CollectorError` when it does not come up."""
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [PROGRAM, "--config", self._config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + READY_TIMEOUT_S
        while _READY not in self._log.read_text(errors="replace"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise CollectorError(f"did not get ready:\n{self._log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it as an operator does; what it has accepted is in its files then. May be repeated."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def counted(self, name: str) -> int:
        """One of its own counters since it started, summed over its series: ``receiver_accepted_spans``."""
        url = f"http://127.0.0.1:{self._telemetry}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            samples = _SAMPLE.findall(answer.read().decode())
        wanted = {f"otelcol_{name}", f"otelcol_{name}_total"}
        return int(sum(float(value) for key, value in samples if key in wanted))

    def traces(self) -> TracesData:
        """All spans in its file so far."""
        return self._stored("traces", TracesData)

    def metrics(self) -> MetricsData:
        """All metrics in its file so far."""
        return self._stored("metrics", MetricsData)

    def _stored(self, signal: str, kind: Callable[[], _M]) -> _M:
        """Messages, each after its length in four bytes; the last one may not be complete yet."""
        found = kind()
        path = self._folder / signal
        content = path.read_bytes() if path.exists() else b""
        at = 0
        while at + 4 <= len(content):
            end = at + 4 + int.from_bytes(content[at : at + 4], "big")
            if end > len(content):
                break
            found.MergeFromString(content[at + 4 : end])
            at = end
        return found


@contextlib.contextmanager
def running_collector(folder: Path, exporter: Literal["file", "nop"] = "file") -> Iterator[Collector]:
    """A Collector until the end of the block."""
    collector = Collector(folder, exporter)
    collector.start()
    try:
        yield collector
    finally:
        collector.stop()
