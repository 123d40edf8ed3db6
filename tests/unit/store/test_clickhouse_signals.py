"""`otelgpu topology clickhouse://`: of what the Collector stored the same graph is drawn as of its lines in files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("duckdb")
pytest.importorskip("chdb", reason="chdb-core is not installed; make setup does it")

from otelgpu.cli.commands import cli
from otelgpu.store.clickhouse import signals
from tests.rig.clickhouse_server import PASSWORD, Server, serving
from tests.rig.clickhouse_spans import fill_spans, fill_sums
from tests.rig.cluster import SECOND, START, Cluster, metrics_line

pytestmark = pytest.mark.slow

FAULTS = {(2, 1): "xid", (3, 0): "broken", (4, 0): "port", (5, 1): "absent"}
CLUSTER = Cluster(nodes=6, gpus=2, faults=FAULTS, nodes_per_rack=2)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


def filled(server: Server, lines: Iterable[bytes]) -> str:
    stored = list(lines)
    fill_spans(server.engine, "cluster", stored)
    fill_sums(server.engine, "cluster", stored)
    return server.url("cluster")


def drawn(given: str | Path, *options: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["topology", str(given), "--json", *options])
    assert done.exit_code in (0, 3), done.output
    assert PASSWORD not in done.output
    return _sorted(json.loads(done.stdout))


def _sorted(document: dict[str, Any]) -> dict[str, Any]:
    """Who is named by a place in a list is named by what lies there: two stores need not have one order."""
    nodes = document["nodes"]
    for pair in document["queue_pairs"]:
        peer = document["queue_pairs"][pair["peer"]] if pair.get("peer", -1) >= 0 else None
        pair["of"] = _process(nodes, pair)
        pair["with"] = [peer["node"], peer["device"], peer["number"]] if peer else None
    for group in document["communicators"]:
        for member in group["members"]:
            member["process"] = _process(nodes, member)
    for pair in document["queue_pairs"]:
        del pair["process"]
        pair.pop("peer", None)
    for node in nodes:
        for name in ("gpus", "nics", "processes", "affinities"):
            node.get(name, []).sort(key=json.dumps)
    for name in ("nodes", "queue_pairs", "communicators", "calls", "marks"):
        document[name].sort(key=json.dumps)
    return document


def _process(nodes: list[dict[str, Any]], of: dict[str, Any]) -> Any:
    (node,) = (each for each in nodes if each["name"] == of["node"])
    return dict(node["processes"][of["process"]]) if "process" in of else None


def test_the_graph_is_that_of_the_lines(server: Server, tmp_path: Path) -> None:
    url = filled(server, CLUSTER.lines())
    here, there = drawn(CLUSTER.write(tmp_path / "cluster.jsonl")), drawn(url)
    assert {mark["kind"] for mark in there["marks"]} == {"faulty", "missing"}
    assert len(there["queue_pairs"]) == 22
    assert there == here


def errors(values: Iterable[tuple[float, int]]) -> list[bytes]:
    own = {"hw.id": "GPU-1", "hw.type": "gpu", "error.type": "uncorrected"}
    return [
        metrics_line({"host.name": "a"}, {"otelgpu.devices": [("hw.errors", own, value)]}, at_s=at_s)
        for at_s, value in values
    ]


@pytest.mark.parametrize("values", [[(0.0, 2), (1.0, 2), (2.0, 5)], [(0.0, 7), (1.0, 1), (2.0, 3), (3.0, 3)]])
def test_a_counter_grew_by_what_its_points_say(
    server: Server, tmp_path: Path, values: list[tuple[float, int]]
) -> None:
    path = tmp_path / "errors.jsonl"
    path.write_bytes(b"".join(errors(values)))
    url = filled(server, errors(values))
    assert drawn(url)["marks"] == drawn(path)["marks"] != []
    late = ["--from", str(START // SECOND + 1)]
    assert drawn(url, *late)["marks"] == drawn(path, *late)["marks"] != []


def test_without_a_table_of_sums_that_is_said(server: Server) -> None:
    url = filled(server, CLUSTER.lines())
    server.engine.ask("DROP TABLE cluster.otel_metrics_sum")
    found = drawn(url)
    assert any(
        "no metrics are read: there is no table cluster.otel_metrics_sum" in each for each in found["limits"]
    )
    assert len(found["queue_pairs"]) == 22
    assert all("gpus" not in node for node in found["nodes"])


def test_more_requests_than_are_looked_at_are_a_limit(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = filled(server, CLUSTER.lines())
    monkeypatch.setattr(signals, "MOST_REQUESTS", 10)
    found = drawn(url)
    assert "of 80 spans of requests the newest 10 are looked at: --from, --to" in found["limits"]
