"""A real Zipkin as a child process: spans by a Collector's exporter in, its query API and its pages out.

`tools/backends.sh zipkin` fetches it; it needs Java. Nothing here knows otelgpu.
"""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from tests.backends.programs import (
    CACHE,
    ChildProcess,
    Destination,
    answers,
    get_json,
    missing_program,
    running,
)
from tests.rig.ports import free_port

PROGRAM: Final = CACHE / "zipkin.jar"
# It runs for a minute: quick to start is better than quick.
_JAVA: Final = ("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def missing_zipkin() -> str | None:
    """Why there is no Zipkin to run, and what to do; None when there is one."""
    if shutil.which("java") is None:
        return "no java: install Java 17 or later (Debian: default-jre-headless)"
    return missing_program("zipkin", PROGRAM, "zipkin/SHA256SUMS")


class Zipkin:
    """Traces in memory."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        listens = {"port": port, "ip": "127.0.0.1", "protocols[0]": "http"}
        options = [f"--armeria.ports[0].{name}={value}" for name, value in listens.items()]
        self._process = ChildProcess([*_JAVA, "-jar", PROGRAM, *options], folder / "zipkin.log")

    @property
    def destination(self) -> Destination:
        """For a Collector's traces."""
        settings = {"endpoint": f"{self.address}/api/v2/spans"}
        return Destination(signal="traces", exporter="zipkin", settings=settings)

    def services(self) -> list[str]:
        """Names of the services of which it has spans."""
        return sorted(get_json(f"{self.address}/api/v2/services"))

    def trace(self, trace_id: str) -> list[dict[str, Any]] | None:
        """The trace's spans in its own form; None where it has none of that id."""
        found: list[dict[str, Any]] | None = get_json(f"{self.address}/api/v2/trace/{trace_id}")
        return found

    def page(self, trace_id: str) -> str:
        """The address of the trace's page."""
        return f"{self.address}/zipkin/traces/{trace_id}"

    def wait_until_ready(self) -> None:
        """Return when it answers. Raises `RigError` when it does not come up."""
        self._process.wait_until(lambda: answers(f"{self.address}/health"))

    def stop(self) -> None:
        """End it, its traces with it."""
        self._process.kill()


def running_zipkin(folder: Path) -> AbstractContextManager[Zipkin]:
    """A Zipkin until the end of the block."""
    return running(Zipkin(folder))
