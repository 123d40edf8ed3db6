"""A real Jaeger as a child process: it takes OTLP, and reports traces by the API that its own pages use.

Out: its address for OTLP, traces by their ids. `tools/backends.sh jaeger` builds it; nothing here knows
otelgpu.
"""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from tests.backends.programs import (
    CACHE,
    ChildProcess,
    Destination,
    answers,
    get_json,
    missing_program,
    running,
)
from tests.rig.ports import free_ports
from tests.rig.spans import Span, spans_of

PROGRAM: Final = CACHE / "jaeger"


def missing_jaeger() -> str | None:
    """Why there is no Jaeger to run, and what to do; None when there is one."""
    return missing_program("jaeger", PROGRAM, "jaeger/go.mod")


class Jaeger:
    """Traces in memory, OTLP in, its query API out."""

    def __init__(self, folder: Path) -> None:
        self._otlp, self._otlp_grpc, self._http, self._grpc = free_ports(4)
        self.address = f"http://127.0.0.1:{self._otlp}"
        self.grpc_address = f"http://127.0.0.1:{self._otlp_grpc}"
        config = folder / "jaeger.json"  # every JSON text is YAML
        config.write_text(json.dumps(self._configuration(), indent=1))
        self.query = f"http://127.0.0.1:{self._http}"
        self._process = ChildProcess([PROGRAM, "--config", config], folder / "jaeger.log")

    @property
    def destination(self) -> Destination:
        """For a Collector's traces."""
        settings = {"endpoint": self.address, "tls": {"insecure": True}}
        return Destination(signal="traces", exporter="otlphttp/jaeger", settings=settings)

    def _configuration(self) -> dict[str, Any]:
        return {
            "extensions": {
                "jaeger_storage": {"backends": {"memory": {"memory": {"max_traces": 10_000}}}},
                "jaeger_query": {
                    "storage": {"traces": "memory"},
                    "http": {"endpoint": f"127.0.0.1:{self._http}"},
                    "grpc": {"endpoint": f"127.0.0.1:{self._grpc}"},
                },
            },
            "receivers": {
                "otlp": {
                    "protocols": {
                        "http": {"endpoint": f"127.0.0.1:{self._otlp}"},
                        "grpc": {"endpoint": f"127.0.0.1:{self._otlp_grpc}"},
                    }
                }
            },
            "exporters": {"jaeger_storage_exporter": {"trace_storage": "memory"}},
            "service": {
                "extensions": ["jaeger_storage", "jaeger_query"],
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["jaeger_storage_exporter"]}},
                "telemetry": {"metrics": {"level": "none"}},
            },
        }

    def services(self) -> list[str]:
        """Names of the services of which it has spans."""
        found = get_json(f"{self.query}/api/v3/services")
        return sorted(found.get("services", ())) if found else []

    def trace(self, trace_id: str) -> list[Span]:
        """All spans that it has of the trace."""
        found = get_json(self.trace_url(trace_id))
        return [] if found is None else list(spans_of(found["result"]))

    def find(self, service: str, start_s: float, limit: int = 1000) -> list[Span]:
        """All spans of the newest traces in which the service has a part, of those since ``start_s`` (Unix seconds)."""
        asked = {
            "query.service_name": service,
            "query.start_time_min": _rfc3339(start_s),
            "query.start_time_max": _rfc3339(time.time()),
            "query.num_traces": limit,
        }
        found = get_json(f"{self.query}/api/v3/traces?{urlencode(asked)}")
        return [] if found is None else list(spans_of(found["result"]))

    def trace_url(self, trace_id: str) -> str:
        """Of the trace in its query API. Its pages have ``/trace/…``, but the Go module comes without them."""
        return f"{self.query}/api/v3/traces/{trace_id}"

    def wait_until_ready(self) -> None:
        """Return when it answers. Raises `RigError` when it does not come up."""
        self._process.wait_until(lambda: answers(f"{self.query}/api/v3/services"))

    def stop(self) -> None:
        """End it, its traces with it; in good order it would take ten seconds."""
        self._process.kill()


def _rfc3339(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat()


def running_jaeger(folder: Path) -> AbstractContextManager[Jaeger]:
    """A Jaeger until the end of the block."""
    return running(Jaeger(folder))
