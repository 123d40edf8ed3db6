"""Counters of trouble in the metrics of OTLP become evidence of their host, by what they grew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from otelgpu.store import open_inputs
from otelgpu.store.readers.otlp_counters import TROUBLE
from otelgpu.store.tables import RANK_OF_HOST
from tests.unit.store.otlp_spans import START


def line(
    at_s: int, value: Any, *, name: str = "rdma.port.retries", temporality: int = 2, **labels: str
) -> str:
    point = {
        "attributes": [{"key": key, "value": {"stringValue": text}} for key, text in labels.items()],
        "timeUnixNano": str(START + at_s * 1_000_000_000),
        ("asDouble" if isinstance(value, float) else "asInt"): value,
    }
    metric = {"name": name, "sum": {"dataPoints": [point], "aggregationTemporality": temporality}}
    resource = {"attributes": [{"key": "host.name", "value": {"stringValue": "node-1"}}]}
    scopes = [{"scope": {"name": "otelgpu.fabric"}, "metrics": [metric]}]
    return json.dumps({"resourceMetrics": [{"resource": resource, "scopeMetrics": scopes}]}) + "\n"


def evidence(folder: Path, *lines: str) -> tuple[list[tuple[Any, ...]], dict[str, int]]:
    (folder / "a.jsonl").write_text("".join(lines))
    with open_inputs([str(folder)]) as store:
        columns = f"rank, host, round(t0 - {START * 1e-9}), round(t1 - {START * 1e-9}), name, value, text"
        return store.connection.sql(f"SELECT {columns} FROM evidence ORDER BY t0").fetchall(), dict(
            store.rejected
        )


def test_each_growth_is_evidence_of_its_time(tmp_path: Path) -> None:
    found, rejected = evidence(tmp_path, *(line(10 * at, value) for at, value in enumerate(("7", 7, 12, 20))))
    retries = TROUBLE["rdma.port.retries"]
    assert found == [
        (RANK_OF_HOST, "node-1", 10, 20, "rdma.port.retries", 5, retries),
        (RANK_OF_HOST, "node-1", 20, 30, "rdma.port.retries", 8, retries),
    ]
    assert not rejected


def test_series_are_counted_each_by_itself_and_named_by_their_attributes(tmp_path: Path) -> None:
    name = "otelgpu.gpu.throttle.time"
    points = [(0, 1.0, "power"), (0, 50.0, "thermal"), (10, 1.5, "power"), (10, 50.0, "thermal")]
    labels = {"hw.id": "GPU-1"}
    made = (line(at, value, name=name, **labels, reason=reason) for at, value, reason in points)
    ((*_, value, text),), _ = evidence(tmp_path, *made)
    assert (value, text) == (0.5, f"{TROUBLE[name]} (GPU-1, power)")


def test_what_begins_anew_or_comes_twice_says_nothing(tmp_path: Path) -> None:
    values = [(0, 100), (10, 100), (10, 100), (0, 90), (20, 3), (30, 5)]
    found, _ = evidence(tmp_path, *(line(at, value) for at, value in values))
    assert [(each[2], each[5]) for each in found] == [(20, 2)]


def test_other_metrics_deltas_and_errors_that_are_spans_are_passed_over(tmp_path: Path) -> None:
    others: list[dict[str, Any]] = [
        {"name": "rdma.port.requests"},
        {"temporality": 1},
        {"name": "hw.errors", "error.type": "xid-79"},
    ]
    assert evidence(tmp_path, *(line(at, at, **each) for each in others for at in (0, 10))) == ([], {})


def test_a_metric_that_cannot_be_read_is_counted(tmp_path: Path) -> None:
    assert evidence(tmp_path, line(0, "x"), line(0, 1), line(10, 2))[1] == {"metrics_unreadable": 1}
