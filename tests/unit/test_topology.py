"""``otelgpu topology`` as a command: files in, a tree, a document or a page out, and what it says where it cannot."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from otelgpu.cli import topology as command
from otelgpu.cli import topology_inputs
from otelgpu.cli.commands import cli
from otelgpu.cli.topology_inputs import read
from tests.rig.cluster import Cluster, metrics_line
from tests.rig.jobs.shape import Shape
from tests.rig.jobs.simulation import HEALTHY, simulate
from tests.rig.jobs.table import write
from tests.unit.store.otlp_spans import job

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[2J"


def topology(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["topology", *map(str, words)])


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    faults = {(2, 1): "xid", (4, 0): "port"}
    return Cluster(nodes=6, gpus=2, faults=faults, nodes_per_rack=2).write(tmp_path / "cluster.jsonl")


def test_what_is_marked_is_open_and_the_rest_is_a_line(faulty: Path) -> None:
    result = topology(faulty)
    assert result.exit_code == 3
    assert "faulty: Xid 79: GPU has fallen off the bus. [Xid 79]" in result.output
    assert "next: reset the GPU, or restart the node" in result.output
    assert "gpu-0005: 2 GPUs, 2 NICs, 2 ranks" in result.output
    assert "gpu-0004 mlx5_0" not in result.output  # a queue pair of a node that is closed


def test_a_node_that_is_named_is_shown_whole(faulty: Path) -> None:
    output = topology(faulty, "--node", "gpu-0003").output
    assert "job-0-worker-3-1 ↔ gpu-0004 mlx5_1 (job-0-worker-4-1): 1 queue pair, communicator world" in output
    assert "PIX mlx5_1" in output


def test_racks_with_nothing_marked_are_one_line(tmp_path: Path) -> None:
    lines = Cluster(nodes=40, gpus=1, nodes_per_rack=2).write(tmp_path / "cluster.jsonl")
    result = topology(lines)
    assert result.exit_code == 0
    assert (
        "rack-00 … rack-19: 20 racks with nothing marked, 40 nodes, 40 GPUs, 40 NICs, 40 ranks"
        in result.output
    )
    assert "Nothing is marked." in result.output


def test_the_document_has_all(faulty: Path) -> None:
    document = json.loads(topology(faulty, "--json").output)
    assert [len(document[name]) for name in ("nodes", "queue_pairs", "communicators", "marks")] == [
        6,
        24,
        7,
        2,
    ]
    assert document["nodes"][0]["affinities"][0]["path"] == "PIX"


def test_names_cannot_steer_a_terminal_nor_end_a_script(tmp_path: Path) -> None:
    lines, page = tmp_path / "given.jsonl", tmp_path / "page.html"
    own = {"hw.id": HOSTILE, "hw.type": "gpu", "hw.name": HOSTILE, "hw.state": "failed"}
    lines.write_bytes(metrics_line({"host.name": HOSTILE}, {"otelgpu.devices": [("hw.status", own, 1)]}))
    result = topology(lines, "-o", page)
    assert result.exit_code == 3
    assert "\x1b" not in result.output
    assert b"</script><img" not in page.read_bytes()


def test_tables_have_hosts_ranks_and_communicators(tmp_path: Path) -> None:
    shape = Shape(steps=12, replicas=8, tensor=2, ranks_per_host=4)
    write(tmp_path / "ops.parquet", simulate(HEALTHY, 3, shape))
    document = json.loads(topology(tmp_path / "ops.parquet", "--json").output)
    ranks = {(node["name"], each.get("rank")) for node in document["nodes"] for each in node["processes"]}
    assert ranks == {(f"host-{rank // 4}", rank) for rank in range(16)}
    members = {
        each["id"]: [member["rank"] for member in each["members"]] for each in document["communicators"]
    }
    assert members["data 0"] == list(range(0, 16, 2))
    assert members["tensor 3"] == [6, 7]


def test_a_verdict_on_ranks_marks_their_host(tmp_path: Path) -> None:
    simulated = simulate("a host's ranks", 3, Shape(steps=120, replicas=32, ranks_per_host=8))
    assert simulated.fault is not None
    write(tmp_path / "ops.parquet", simulated)
    result = topology(tmp_path / "ops.parquet", "--json")
    assert result.exit_code == 3
    slow = [mark for mark in json.loads(result.output)["marks"] if mark["kind"] == "slow"]
    hosts = {f"node:host-{rank // 8}" for rank in simulated.fault.ranks}
    assert {mark["place"] for mark in slow} == hosts
    assert slow[0]["source"].startswith("diagnose ranks: slow_")


def test_a_verdict_on_a_rank_marks_its_gpu(tmp_path: Path) -> None:
    simulated = simulate("slow compute", 3, Shape(steps=120, replicas=32, ranks_per_host=8))
    assert simulated.fault is not None
    (slow,) = simulated.fault.ranks
    write(tmp_path / "ops.parquet", simulated, name="job-0")
    lines = b"".join(Cluster(nodes=4).lines()).replace(b"gpu-000", b"host-")
    (tmp_path / "cluster.jsonl").write_bytes(lines)
    document = json.loads(topology(tmp_path, "--json").output)
    marks = [mark["place"] for mark in document["marks"] if mark["kind"] == "slow"]
    assert marks == [f"gpu:host-{slow // 8}/{Cluster(nodes=4).uuid(slow // 8, slow % 8)}"]


def test_ranks_of_spans_and_of_tables_are_the_same(tmp_path: Path) -> None:
    lines = tmp_path / "ranks.jsonl"
    lines.write_bytes(b"".join(rank.line() for rank in job(ranks=4)))
    document = json.loads(topology(lines, "--json").output)
    ranks = [(node["name"], each["rank"]) for node in document["nodes"] for each in node["processes"]]
    assert ranks == [("host-0", 0), ("host-0", 1), ("host-1", 2), ("host-1", 3)]


def test_this_host_is_shown_without_an_input() -> None:
    result = topology()
    assert result.exit_code == 0
    assert result.output.startswith("1 node")


def test_what_changes_is_said_while_it_follows(faulty: Path) -> None:
    result = topology(faulty, "--follow", "-d", "0s", "--json")
    assert result.exit_code == 3
    news = [json.loads(line) for line in result.output.splitlines()]
    assert [(each["state"], each["call"]["client"]) for each in news[:2]] == [
        ("began", "front"),
        ("began", "router"),
    ]
    assert [(each["state"], each["mark"]["place"]) for each in news[2:]] == [
        ("began", "gpu:gpu-0002/GPU-00000002-0000-0000-0000-000000000001"),
        ("began", "nic:gpu-0004/mlx5_0"),
    ]


def test_while_it_follows_files_that_stand_still_are_not_read_again(
    faulty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    monkeypatch.setattr(command, "read", lambda *given: looks.append(given) or read(*given))
    topology(faulty, "--follow", "--every", "1s", "-d", "1500ms")
    assert len(looks) == 1
    monkeypatch.setattr(command, "version_of", lambda inputs: None)
    topology(faulty, "--follow", "--every", "1s", "-d", "1500ms")
    assert len(looks) > 2


def test_an_input_without_a_host_says_so(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text('{"resourceSpans":[]}\n')
    result = topology(tmp_path / "none.jsonl")
    assert "the input names no host" in str(result.exception)


def test_a_host_that_does_nothing_is_shown_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        topology_inputs, "observe_everything", lambda config, **_: _write_nothing(config.export)
    )
    result = topology("--observe", "3s")
    assert result.exit_code == 0
    assert f"── {socket.gethostname()}" in result.output
    assert "limit: no queue pair, communicator or call was seen within 3 s" in result.output


def _write_nothing(destinations: tuple[str, ...]) -> None:
    """What an agent leaves that saw nothing."""
    Path(destinations[0].removeprefix("file:")).write_text('{"resourceSpans":[]}\n')
