"""A real Jaeger as a child process: it takes OTLP, and tells traces by the API that its own pages use.

Out: its address for OTLP, traces by their ids as OTLP JSON. `make backends` builds it; nothing here knows otelgpu.
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.backends.collector import CACHE, READY_TIMEOUT_S, free_ports
from tests.rig import RigError

MODULE: Final = Path(__file__).with_name("jaeger") / "go.mod"
PROGRAM: Final = CACHE / "jaeger"
POLL_S: Final = 0.05


def missing_jaeger() -> str | None:
    """Why there is no Jaeger to run, and what to do; None when there is one."""
    if not PROGRAM.exists():
        return f"no Jaeger at {PROGRAM}: run `make backends`"
    built_from = CACHE / "jaeger.go.mod"
    if not built_from.exists() or not filecmp.cmp(MODULE, built_from, shallow=False):
        return f"the Jaeger at {PROGRAM} was built from another {MODULE.name}: run `make backends`"
    return None


class Jaeger:
    """Traces in memory, OTLP over HTTP in, its query API out."""

    def __init__(self, folder: Path) -> None:
        self._otlp, self._query, self._query_grpc = free_ports(3)
        self.address = f"http://127.0.0.1:{self._otlp}"
        config = folder / "jaeger.json"  # every JSON text is YAML
        config.write_text(json.dumps(self._configuration(), indent=1))
        self._log = folder / "jaeger.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [PROGRAM, "--config", config], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def _configuration(self) -> dict[str, Any]:
        return {
            "extensions": {
                "jaeger_storage": {"backends": {"memory": {"memory": {"max_traces": 10_000}}}},
                "jaeger_query": {
                    "storage": {"traces": "memory"},
                    "http": {"endpoint": f"127.0.0.1:{self._query}"},
                    "grpc": {"endpoint": f"127.0.0.1:{self._query_grpc}"},
                },
            },
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{self._otlp}"}}}},
            "exporters": {"jaeger_storage_exporter": {"trace_storage": "memory"}},
            "service": {
                "extensions": ["jaeger_storage", "jaeger_query"],
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["jaeger_storage_exporter"]}},
                "telemetry": {"metrics": {"level": "none"}},
            },
        }

    def services(self) -> list[str]:
        """Names of the services of which it has spans."""
        found = self._get("/api/v3/services")
        return sorted(found.get("services", ())) if found else []

    def trace(self, trace_id: str) -> dict[str, Any] | None:
        """The trace as ``{"resourceSpans": […]}``; None where it has none of that id."""
        found = self._get(f"/api/v3/traces/{trace_id}")
        return None if found is None else found["result"]

    def _get(self, path: str) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._query}{path}", timeout=10) as answer:
                told: dict[str, Any] = json.loads(answer.read())
                return told
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def wait_until_ready(self) -> None:
        """Return when it answers. Raises `RigError` when it does not come up."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            with contextlib.suppress(urllib.error.URLError):
                self.services()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RigError(f"did not get ready:\n{self._log.read_text(errors='replace')[-3000:]}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End it, its traces with it; in good order it would take ten seconds."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def running_jaeger(folder: Path) -> Iterator[Jaeger]:
    """A Jaeger until the end of the block."""
    jaeger = Jaeger(folder)
    try:
        jaeger.wait_until_ready()
        yield jaeger
    finally:
        jaeger.stop()
