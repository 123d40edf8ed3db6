"""A real Prometheus as a child process: metrics by OTLP in, PromQL out.

`tools/backends.sh prometheus` builds it; nothing here knows otelgpu.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
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
from tests.rig.ports import free_port

PROGRAM: Final = CACHE / "prometheus"
_EXEMPLARS: Final = "exemplar-storage"


def missing_prometheus() -> str | None:
    """Why there is no Prometheus to run, and what to do; None when there is one."""
    return missing_program("prometheus", PROGRAM, "prometheus/go.mod")


class Prometheus:
    """Without a configuration it scrapes nothing. It takes samples of the last ten years, as recorded sessions have."""

    def __init__(
        self, folder: Path, configuration: str = "{}", features: Sequence[str] = (_EXEMPLARS,)
    ) -> None:
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        config = folder / "prometheus.yml"
        config.write_text(configuration)
        command: list[str | Path] = [
            PROGRAM,
            f"--config.file={config}",
            f"--web.listen-address=127.0.0.1:{port}",
            f"--storage.tsdb.path={folder / 'prometheus'}",
            "--storage.tsdb.retention.time=10y",
            "--web.enable-otlp-receiver",
            "--web.enable-remote-write-receiver",
            f"--enable-feature={','.join(features)}",
        ]
        self._process = ChildProcess(command, folder / "prometheus.log")

    @property
    def destination(self) -> Destination:
        """For a Collector's metrics."""
        settings = {"endpoint": f"{self.address}/api/v1/otlp", "tls": {"insecure": True}}
        return Destination(signal="metrics", exporter="otlphttp/prometheus", settings=settings)

    def query(self, expression: str, at_s: float) -> list[tuple[dict[str, str], float]]:
        """What PromQL says of that moment (Unix seconds): the labels and the value of each series."""
        found = self._ask("query", query=expression, time=at_s)
        return [(one["metric"], float(one["value"][1])) for one in found["result"]]

    def exemplars(self, expression: str, start_s: float, end_s: float) -> list[dict[str, Any]]:
        """The exemplars of the series that an expression names: labels, value, timestamp."""
        found = self._ask("query_exemplars", query=expression, start=start_s, end=end_s)
        return [one for series in found for one in series["exemplars"]]

    def rules(self) -> list[dict[str, Any]]:
        """Every rule, with its health and the alerts that it has raised."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def _ask(self, what: str, **parameters: Any) -> Any:
        return get_json(f"{self.address}/api/v1/{what}?{urlencode(parameters)}")["data"]

    def wait_until_ready(self) -> None:
        """Return when it answers. Raises `RigError` when it does not come up."""
        self._process.wait_until(lambda: answers(f"{self.address}/-/ready"))

    def stop(self) -> None:
        """End it; nothing reads its files again."""
        self._process.kill()


def running_prometheus(
    folder: Path, configuration: str = "{}", features: Sequence[str] = (_EXEMPLARS,)
) -> AbstractContextManager[Prometheus]:
    """A Prometheus until the end of the block; ``configuration`` is YAML, ``features`` are to be enabled."""
    return running(Prometheus(folder, configuration, features))
