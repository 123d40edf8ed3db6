"""tools/dashboards and deploy/prometheus ask for what is exported: each series and label, by Prometheus' names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from otelgpu.engine import description_tables
from otelgpu.engine.metric import Instrument
from otelgpu.engine.prometheus_names import metric_name
from tools.dashboards import DASHBOARDS
from tools.dashboards.grafana import Panel, Query
from tools.signal_tables import all_measures

ALERTS = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "alerts.yaml"
PARTS = ("_bucket", "_sum", "_count")  # of a histogram
HARDWARE = ("hw.", "rdma.port.", "otelgpu.gpu.")
HARDWARE_KEYS = ("hw.", "rdma.", "network.", "otelgpu.gpu.", "error.type")
PROMETHEUS_OWN = {"job", "instance", "le"}
# Series that no otelgpu exports: what a scrape says of itself, and what a rule records.
OTHERS = {
    "up": set[str](),
    "nccl_rank:nccl_arrival_lateness_seconds:mean10m": {"nccl_communicator_hash", "nccl_rank"},
    "job_rank:otelgpu_training_step_own_time_seconds:max": {
        "otelgpu_job_id",
        "otelgpu_job_rank",
        "otelgpu_step_kind",
    },
}

EXPRESSIONS = [
    pytest.param(query.expression, id=f"{board.uid}-{panel.title}-{position}")
    for board in DASHBOARDS
    for row in board.rows
    for panel in row.panels
    if isinstance(panel, Panel)
    for position, query in enumerate(panel.queries)
]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


RULES = [pytest.param(rule["expr"], id=rule.get("alert", "recorded")) for rule in rules()]


def label(key: str) -> str:
    return key.replace(".", "_")


def labels_of_series() -> dict[str, set[str]]:
    """Name in Prometheus → its labels. What identifies hardware is described, and in no table of a metric."""
    described = (owned.descriptions.attributes for owned in description_tables.described())
    of_hardware = {
        label(key) for attributes in described for key in attributes if key.startswith(HARDWARE_KEYS)
    }
    found = dict(OTHERS)
    for metric, keys, _ in all_measures():
        name = metric_name(metric.name, metric.unit, metric.instrument)
        parts = [name + part for part in PARTS] if metric.instrument is Instrument.HISTOGRAM else [name]
        for part in parts:
            found.setdefault(part, set()).update(map(label, keys))
            found[part] |= of_hardware if metric.name.startswith(HARDWARE) else set()
    return found


SERIES = labels_of_series()


def names_in(expression: str) -> set[str]:
    """Of the series that it asks for."""
    rest = re.sub(r'"[^"]*"|\[[^\]]*\]|\b(?:by|on|group_left) ?\([^)]*\)|\{[^}]*\}', " ", expression)
    functions = re.findall(r"([a-z_]+) ?\(", rest)
    words = set(re.findall(r"[a-zA-Z_:][\w:]*", rest))
    return words - {
        *functions,
        "by",
        "on",
        "or",
        "and",
        "unless",
        "offset",
        "sum",
        "max",
        "count",
        "quantile",
        "e6",
        "m",
    }


def labels_in(expression: str) -> Iterator[str]:
    for inside in re.findall(r"\b(?:by|on) ?\(([^)]*)\)", expression):
        yield from re.findall(r"\w+", inside)
    for inside in re.findall(r"\{([^}]*)\}", expression):
        yield from re.findall(r"(\w+)\s*[!=]", re.sub(r'"[^"]*"', '""', inside))


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *RULES])
def test_an_expression_asks_for_series_and_labels_that_there_are(expression: str) -> None:
    names = names_in(expression)
    assert names, "nothing is asked for"
    assert names <= set(SERIES)
    assert set(labels_in(expression)) <= PROMETHEUS_OWN.union(*(SERIES[name] for name in names))


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: str(board.uid))
def test_the_services_to_choose_from_are_those_of_series_that_there_are(board: Any) -> None:
    asked = re.findall(r"[a-z]\w+", re.sub(r"__name__", "", board.jobs))
    assert asked
    assert set(asked) <= set(SERIES)


def test_a_misspelt_name_and_a_misspelt_label_are_found() -> None:
    assert names_in("sum by (job) (rate(hw_power_wats[5m]))") - set(SERIES) == {"hw_power_wats"}
    assert "nccl_rnk" in set(labels_in("sum by (nccl_rnk) (nccl_calls_total)")) - SERIES["nccl_calls_total"]


@pytest.mark.parametrize(
    "rule", [rule for rule in rules() if "alert" in rule], ids=lambda rule: str(rule["alert"])
)
def test_an_alert_says_what_happened_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert all(len(rule["annotations"][part]) > 20 for part in ("summary", "runbook"))


def legend_labels(queries: Iterable[Query]) -> Iterator[tuple[str, str]]:
    for query in queries:
        for name in re.findall(r"\{\{(\w+)\}\}", query.legend):
            yield query.expression, name


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: str(board.uid))
def test_a_legend_names_labels_that_the_result_has(board: Any) -> None:
    panels = [panel for row in board.rows for panel in row.panels if isinstance(panel, Panel)]
    for expression, name in legend_labels(query for panel in panels for query in panel.queries):
        grouped = re.search(r"by \(([^)]*)\)", expression)
        has = (
            set(re.findall(r"\w+", grouped[1]))
            if grouped
            else PROMETHEUS_OWN.union(*(SERIES[series] for series in names_in(expression) & set(SERIES)))
        )
        assert name in has, expression
