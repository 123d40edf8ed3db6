"""docs/operations.md: its rules ask for what there is, and its words about reloads are the code's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from otelgpu.cli.reload import LIVE
from otelgpu.config import Config
from otelgpu.engine.losses import LOSSES
from otelgpu.engine.metric import Instrument
from otelgpu.engine.self_telemetry import SELF_METRICS
from otelgpu.export.prometheus import metric_name

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
PARTS = ("_bucket", "_sum", "_count")  # of a histogram


def rules() -> list[dict[str, Any]]:
    found = re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    (group,) = yaml.safe_load(found[1])["groups"]
    listed: list[dict[str, Any]] = group["rules"]
    return listed


def labels_of_series() -> dict[str, set[str]]:
    """Name in /metrics → its labels."""
    reported = [(LOSSES, ("otelgpu.family", "otelgpu.reason")), *SELF_METRICS]
    found: dict[str, set[str]] = {"up": set()}
    for metric, keys in reported:
        name = metric_name(metric.name, metric.unit, counter=metric.instrument is Instrument.COUNTER)
        labels = {key.replace(".", "_") for key in keys}
        parts = [name + part for part in PARTS] if metric.instrument is Instrument.HISTOGRAM else [name]
        found |= dict.fromkeys(parts, labels | {"le"})
    return found


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_a_rule_asks_for_series_and_labels_that_there_are(rule: dict[str, Any]) -> None:
    series, expression = labels_of_series(), rule["expr"]
    groups = re.findall(r"by \(([^)]*)\)", expression)
    selectors = re.findall(r"\{([^}]*)\}", expression)
    rest = re.sub(r"by \([^)]*\)|\{[^}]*\}", "", expression)
    names = set(re.findall(r"\b(?:up|otel\w+|process_\w+)\b", rest))
    asked = {key for text in selectors for key in re.findall(r"(\w+)\s*[!=]", text)}
    asked |= {key for text in groups for key in re.findall(r"\w+", text)}
    assert names, "nothing is asked for"
    assert names <= set(series)
    assert asked <= {"job", "instance"}.union(*(series[name] for name in names))
    assert rule["annotations"]["summary"]


def test_every_setting_is_either_live_or_named_nowhere_as_such() -> None:
    listed = re.search(r"<!-- generated: reloaded settings -->(.*?)<!-- end -->", TEXT, re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"`(\w+)`", listed[1])) == LIVE
    assert set(Config.__struct_fields__) >= LIVE


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_every_path_is_described(path: str) -> None:
    assert f"| `{path}` |" in TEXT
