"""Metrics of OTLP JSON lines files, as plain mappings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.rig.spans import attributes_of


class Reported(NamedTuple):
    """A metric of a resource as one line has it; ``resource`` by key, its ``points`` as they were written."""

    metric: dict[str, Any]
    resource: dict[str, Any]
    points: list[dict[str, Any]]


def metrics_reported(path: Path) -> Iterator[Reported]:
    """In the file's order: what is reported of a metric last is how the session ended."""
    with path.open() as lines:
        for line in lines:
            if not line.startswith('{"resourceMetrics"'):
                continue
            for resource in json.loads(line)["resourceMetrics"]:
                described = attributes_of(resource["resource"])
                for metric in (metric for scope in resource["scopeMetrics"] for metric in scope["metrics"]):
                    kind = next(kind for kind in ("sum", "gauge", "histogram") if kind in metric)
                    yield Reported(metric, described, metric[kind]["dataPoints"])
