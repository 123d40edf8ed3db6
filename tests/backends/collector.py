"""A real OpenTelemetry Collector as a child process: what it received, by its files and by its own counters.

In: where it sends what it gets. Out: its addresses, its files as opentelemetry-proto messages, what it counted, its
CPU time and memory. `tools/backends.sh otelcol` builds it; nothing here knows otelgpu.
"""

from __future__ import annotations

import contextlib
import json
import re
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar

from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tests.backends.programs import CACHE, ChildProcess, Destination, missing_program
from tests.rig.ports import free_ports

PROGRAM: Final = CACHE / "otelcol"
MEMORY_LIMIT_MIB: Final = 512
_PROFILES: Final = "profiles"
_SIGNALS: Final = ("traces", "metrics", "logs", _PROFILES)
_PROFILES_GATE: Final = "--feature-gates=service.profilesSupport"
_READY: Final = "Everything is ready"
_SAMPLE: Final = re.compile(r"^(\w+)(?:\{.*\})? (\S+)$", re.MULTILINE)


class _Message(Protocol):
    def MergeFromString(self, serialized: bytes) -> int: ...


_M = TypeVar("_M", bound=_Message)


def missing_collector() -> str | None:
    """Why there is no Collector to run, and what to do; None when there is one."""
    return missing_program("otelcol", PROGRAM, "ocb.yaml")


def counted_at(port: int, name: str) -> int:
    """A counter of the Collector that reports its own metrics at this port, summed over its series."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        samples = _SAMPLE.findall(answer.read().decode())
    wanted = {f"otelcol_{name}", f"otelcol_{name}_total"}
    return int(sum(float(value) for key, value in samples if key in wanted))


class Collector:
    """OTLP over gRPC and HTTP in; ``file``: appended to files in ``folder``; ``nop``: thrown away.

    It sends to the destinations ``to`` as well. It can be stopped and started again at the same addresses.
    """

    def __init__(
        self, folder: Path, exporter: Literal["file", "nop"] = "file", to: Sequence[Destination] = ()
    ) -> None:
        self._grpc, self._http, self._telemetry = free_ports(3)
        self.addresses = {
            "grpc": f"http://127.0.0.1:{self._grpc}",
            "http/protobuf": f"http://127.0.0.1:{self._http}",
        }
        self._folder = folder
        self._log = folder / "otelcol.log"
        self._config = folder / "otelcol.json"  # every JSON text is YAML
        self._config.write_text(json.dumps(self._configuration(exporter, to), indent=1))
        self._process: ChildProcess | None = None

    def _configuration(self, exporter: Literal["file", "nop"], to: Sequence[Destination]) -> dict[str, Any]:
        kept = {signal: f"file/{signal}" if exporter == "file" else "nop" for signal in _SIGNALS}
        exporters: dict[str, Any] = {"nop": {}}
        if exporter == "file":
            exporters = {
                name: {
                    "path": str(self._folder / signal),
                    "format": "proto",
                    "append": True,
                    "flush_interval": "10ms",
                }
                for signal, name in kept.items()
            }
        # No batch processor: an answer says what became of the spans, and not that they were put in a queue.
        pipelines = {
            signal: {
                "receivers": ["otlp"],
                "processors": ["memory_limiter"],
                "exporters": [kept[signal], *(each.exporter for each in to if each.signal == signal)],
            }
            for signal in _SIGNALS
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
            "exporters": exporters | {each.exporter: dict(each.settings) for each in to},
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
        """Return when it takes data. Raises `RigError` when it does not come up."""
        self._process = process = ChildProcess([PROGRAM, _PROFILES_GATE, "--config", self._config], self._log)
        process.wait_until(lambda: _READY in process.said())

    def stop(self) -> None:
        """End it as an operator does; what it has accepted is in its files, and sent, then. May be repeated."""
        if self._process is not None:
            self._process.stop()
        self._process = None

    def counted(self, name: str) -> int:
        """One of its own counters since it started, summed over its series: ``receiver_accepted_spans``."""
        return counted_at(self._telemetry, name)

    def traces(self) -> TracesData:
        """All spans in its file so far."""
        return self._stored("traces", TracesData)

    def metrics(self) -> MetricsData:
        """All metrics in its file so far."""
        return self._stored("metrics", MetricsData)

    def logs(self) -> LogsData:
        """All log records in its file so far."""
        return self._stored("logs", LogsData)

    def profiles(self) -> list[ProfilesData]:
        """All profiles in its file so far, by message: each has a dictionary of its own."""
        found = []
        for content in self._contents(_PROFILES):
            message = ProfilesData()
            message.MergeFromString(content)
            found.append(message)
        return found

    def _stored(self, signal: str, kind: Callable[[], _M]) -> _M:
        found = kind()
        for content in self._contents(signal):
            found.MergeFromString(content)
        return found

    def _contents(self, signal: str) -> Iterator[bytes]:
        """Messages, each after its length in four bytes; the last one may not be complete yet."""
        path = self._folder / signal
        content = path.read_bytes() if path.exists() else b""
        at = 0
        while at + 4 <= len(content):
            end = at + 4 + int.from_bytes(content[at : at + 4], "big")
            if end > len(content):
                break
            yield content[at + 4 : end]
            at = end


@contextlib.contextmanager
def running_collector(
    folder: Path, exporter: Literal["file", "nop"] = "file", to: Sequence[Destination] = ()
) -> Iterator[Collector]:
    """A Collector until the end of the block."""
    collector = Collector(folder, exporter, to)
    collector.start()
    try:
        yield collector
    finally:
        collector.stop()
