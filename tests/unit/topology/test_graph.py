"""Lines of OTLP of whole clusters → the graph: it is what the cluster is, and what is wrong is marked where it is."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.otlp_json.reader import Reader, Skips
from otelgpu.topology import services
from otelgpu.topology.building import build
from otelgpu.topology.findings import STALE_NS
from otelgpu.topology.gathering import BEYOND, Facts, Gathering
from otelgpu.topology.graph import Topology
from tests.rig.cluster import SECOND, START, Cluster, listed, metrics_line, span, spans_line
from tests.rig.examples import examples

HOST = {"host.name": "a"}
DATA = Path(__file__).parent / "data"


def graph(lines: Iterable[bytes | None], facts: Facts | None = None) -> Topology:
    facts, skips = facts or Facts(), Skips()
    Gathering(facts).take(Reader("given", skips), lines)
    return build(facts, rejected=skips.counts)


def edges(found: Topology) -> set[frozenset[tuple[str, str, int]]]:
    pairs = found.queue_pairs
    ends = [(each.node, each.device, each.number) for each in pairs]
    return {frozenset((ends[at], ends[each.peer])) for at, each in enumerate(pairs) if each.peer >= 0}


def marks(found: Topology) -> list[tuple[str, str]]:
    return [(mark.kind, mark.place) for mark in found.marks]


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(nodes=1),
        Cluster(nodes=2, gpus=2, pairs=2),
        Cluster(nodes=16),
        pytest.param(Cluster(nodes=1000), marks=pytest.mark.slow),
    ],
    ids=lambda cluster: f"{cluster.nodes}",
)
def test_the_graph_is_the_cluster(cluster: Cluster) -> None:
    found = graph(cluster.lines())
    assert edges(found) == cluster.edges()
    assert [node.name for node in found.nodes] == [cluster.host(node) for node in range(cluster.nodes)]
    for number, node in enumerate(found.nodes):
        assert node.rack == f"rack-{number // 16:02}"
        assert [gpu.id for gpu in node.gpus] == [cluster.uuid(number, gpu) for gpu in range(cluster.gpus)]
        ranks = {each.rank: each.gpus for each in node.processes if each.rank >= 0}
        assert ranks == {
            number * cluster.gpus + gpu: [cluster.uuid(number, gpu)] for gpu in range(cluster.gpus)
        }
        nearest = {each.gpu: each.nic for each in node.affinities if each.path == "PIX"}
        assert nearest == {cluster.uuid(number, gpu): f"mlx5_{gpu}" for gpu in range(cluster.gpus)}
    (world,) = [each for each in found.communicators if each.id == "world"]
    assert [member.rank for member in world.members] == list(range(cluster.nodes * cluster.gpus))
    assert {member.node for member in world.members} == {node.name for node in found.nodes}
    assert found.marks == []
    assert found.rejected == {}


def test_both_ends_know_each_others_pod() -> None:
    found = graph(Cluster(nodes=3, gpus=1).lines())
    own = {each.node: found.nodes[at].processes[0].pod for at, each in enumerate(found.queue_pairs[::2])}
    assert {(each.node, each.peer_node) for each in found.queue_pairs} == {
        (a, b) for a in own for b in own if a != b
    }
    for each in found.queue_pairs:
        other = next(node for node in found.nodes if node.name == each.peer_node)
        assert each.peer_pod in {process.pod for process in other.processes}


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.data())
@examples(30)
def test_edges_are_those_of_any_cluster_in_any_order_of_lines(
    nodes: int, gpus: int, pairs: int, data: st.DataObject
) -> None:
    cluster = Cluster(nodes=nodes, gpus=gpus, pairs=pairs)
    lines = data.draw(st.permutations(list(cluster.lines())))
    assert edges(graph(lines)) == cluster.edges()


@pytest.mark.parametrize(
    ("fault", "kind", "place"),
    [
        ("xid", "faulty", "gpu:gpu-0002/GPU-00000002-0000-0000-0000-000000000001"),
        ("port", "faulty", "nic:gpu-0002/mlx5_1"),
        ("broken", "faulty", "nic:gpu-0002/mlx5_1"),
    ],
)
def test_a_fault_is_marked_where_it_is_and_nowhere_else(fault: str, kind: str, place: str) -> None:
    found = graph(Cluster(nodes=5, gpus=4, faults={(2, 1): fault}).lines())
    assert marks(found) == [(kind, place)]


def test_a_gpu_and_its_rank_that_are_not_there_are_missing() -> None:
    found = graph(Cluster(nodes=5, gpus=4, faults={(2, 1): "absent"}).lines())
    assert marks(found) == [
        ("missing", "communicator:node2"),
        ("missing", "communicator:world"),
        ("missing", "node:gpu-0002"),
    ]
    assert "rank 9 of 20" in found.marks[1].text


def test_a_job_of_which_one_node_is_in_the_input_lacks_nothing() -> None:
    lines = [line for line in Cluster(nodes=5).lines() if b'"gpu-0002"' in line]
    found = graph(lines)
    assert found.marks == []
    assert "communicator world has 40 ranks, of which 8 are in the input" in found.limits


def test_calls_are_requests_from_one_service_to_another() -> None:
    found = graph(Cluster(nodes=2, gpus=1).lines())
    assert [(each.client, each.server, each.calls, each.errors) for each in found.calls] == [
        ("front", "router", 20, 0),
        ("router", "model", 20, 1),
    ]
    assert found.calls[0].mean_s == pytest.approx(0.01)


def counts_of(found: Topology) -> list[tuple[str, str, int, int, str]]:
    return [(each.client, each.server, each.calls, each.errors, each.source) for each in found.calls]


def test_the_collectors_service_graph_counts_where_there_are_no_spans() -> None:
    pair = {"client": "front", "server": "router"}
    counts = [("traces_service_graph_request_total", pair, 70)]
    counts += [("traces_service_graph_request_failed_total", pair, 3)]
    found = graph([metrics_line(HOST, {"traces_service_graph": counts})])
    assert counts_of(found) == [("front", "router", 70, 3, "servicegraph")]


def test_what_a_collector_of_the_service_graph_wrote_is_what_was_sent_to_it() -> None:
    """Seven requests through three services, of which one failed in the last: two series of one pair, told by turns."""
    lines = (DATA / "servicegraph.jsonl").read_bytes().splitlines()
    assert len(lines) > 2
    found = graph(lines)
    assert counts_of(found) == [
        ("front", "router", 7, 0, "servicegraph"),
        ("router", 'model "x"\\y', 7, 1, "servicegraph"),
        ("user", "front", 7, 0, "servicegraph"),
    ]
    assert [round(each.mean_s, 6) for each in found.calls] == [0.015, 0.008, 0.03]
    assert found.rejected == {}


def test_durations_leave_room_for_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MOST_SERIES", 20)
    found = services.Services(0)
    for name in (services.SECONDS, services.REQUESTS):
        for at in range(30):
            found.take_sample(name, {"client": f"c{at}", "server": "s"}, 1, at_ns=START, source="given")
    assert (len(found.calls()), found.beyond) == (10, 40)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", -1.0, 1e300])
def test_a_count_that_is_none_is_rejected(value: float | str) -> None:
    pair = listed({"client": "front", "server": "router"})
    point = {"attributes": pair, "timeUnixNano": str(START), "asDouble": value}
    metric = {"name": "traces_service_graph_request_total", "sum": {"dataPoints": [point]}}
    times = {"attributes": pair, "timeUnixNano": str(START), "sum": value, "count": 1}
    histogram = {"name": "traces_service_graph_request_server", "histogram": {"dataPoints": [times]}}
    scope = {"scope": {"name": "traces_service_graph"}, "metrics": [metric, histogram]}
    line = json.dumps({"resourceMetrics": [{"resource": {}, "scopeMetrics": [scope]}]}).encode()
    found = graph([line])
    assert (found.calls, found.rejected) == ([], {"metrics_unreadable": 2})


def gpu(uuid: str = "GPU-1", **more: Any) -> dict[str, Any]:
    return {"hw.id": uuid, "hw.type": "gpu", "hw.state": "ok"} | {
        key.replace("_", "."): value for key, value in more.items()
    }


def test_errors_are_marked_by_how_they_end() -> None:
    errors = [
        ("hw.errors", gpu(error_type="corrected"), 3),
        ("hw.errors", gpu(error_type="uncorrected"), 1),
        ("hw.errors", gpu(error_type="pcie_replay"), 0),
    ]
    found = graph([metrics_line(HOST, {"otelgpu.devices": errors})])
    assert [(mark.kind, mark.text) for mark in found.marks] == [
        ("faulty", "1 error of kind uncorrected"),
        ("notice", "3 errors of kind corrected"),
    ]


def test_what_a_counter_stood_at_before_the_time_is_not_counted() -> None:
    lines = [
        metrics_line(HOST, {"otelgpu.devices": [("hw.errors", gpu(error_type="uncorrected"), 5)]}, at_s=at)
        for at in (0, 10, 20)
    ]
    assert graph(lines, Facts(begin_ns=START + 5 * SECOND)).marks == []
    assert [mark.text for mark in graph(lines).marks] == ["5 errors of kind uncorrected"]


def test_a_gpu_that_is_not_read_any_more_is_missing() -> None:
    lines = [
        metrics_line(HOST, {"otelgpu.devices": [("hw.status", gpu(uuid), 1)]}, at_s=at)
        for uuid, at in (("GPU-1", 0), ("GPU-2", 0), ("GPU-2", 1 + STALE_NS / SECOND))
    ]
    assert marks(graph(lines)) == [("missing", "gpu:a/GPU-1")]


def test_a_port_that_was_never_up_is_no_fault() -> None:
    port = {"hw.id": "mlx5_0/1", "hw.type": "network", "rdma.device": "mlx5_0", "rdma.port": 1}
    found = graph([metrics_line(HOST, {"otelgpu.fabric": [("hw.network.up", port, 0)]})])
    assert found.marks == []
    assert found.nodes[0].nics[0].ports[0].up is False


def test_an_xid_of_a_program_is_a_notice() -> None:
    error = {"hw.id": "GPU-1", "otelgpu.hw.error.class": "application", "otelgpu.hw.error.code": 31}
    line = spans_line(HOST, {"otelgpu.hardware": [span("Xid 31", error, failed=True)]})
    assert marks(graph([line])) == [("notice", "node:a")]


def test_only_the_time_that_is_asked_for_counts() -> None:
    lines = list(Cluster(nodes=2, gpus=1).lines())
    assert graph(lines, Facts(begin_ns=START + 60 * SECOND)).queue_pairs == []
    assert graph(lines, Facts(end_ns=START)).queue_pairs == []
    assert len(graph(lines, Facts(begin_ns=START, end_ns=START + SECOND)).queue_pairs) == 4


def test_a_rack_is_what_the_given_attribute_says() -> None:
    facts = Facts()
    facts.owners.rack_attribute = "room"
    line = metrics_line(HOST | {"room": "cellar"}, {"otelgpu.devices": [("hw.status", gpu(), 1)]})
    assert graph([line], facts).nodes[0].rack == "cellar"


def test_what_cannot_be_read_is_counted_and_costs_nothing_else() -> None:
    lines = list(Cluster(nodes=2, gpus=1).lines())
    number = lines[1].replace(b'"asInt":"1"', b'"asInt":"one"')
    found = graph([lines[0], b'{"resourceSpans":[{', None, number, *lines[1:]])
    assert edges(found) == Cluster(nodes=2, gpus=1).edges()
    assert found.rejected == {"lines_unreadable": 1, "lines_cut": 1, "metrics_unreadable": 2}


@given(st.data())
@examples(50)
def test_lines_that_are_cut_or_damaged_never_raise(data: st.DataObject) -> None:
    lines = list(Cluster(nodes=2, gpus=1, faults={(0, 0): "xid"}).lines())
    place = data.draw(st.integers(0, len(lines) - 1))
    line = bytearray(lines[place])
    for _ in range(data.draw(st.integers(1, 4))):
        line[data.draw(st.integers(0, len(line) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(line)))
    json.dumps({"marks": marks(graph([*lines[:place], bytes(line[:cut]), *lines[place + 1 :]]))})


VALUES = st.one_of(st.text(max_size=8), st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans())
KEYS = st.sampled_from(
    [
        *(
            "hw.id",
            "hw.type",
            "hw.name",
            "hw.state",
            "error.type",
            "rdma.device",
            "rdma.port",
            "rdma.qp.number",
        ),
        *("rdma.peer.qp.number", "rdma.gid", "rdma.peer.gid", "client", "server", "cuda.device.index"),
        *("otelgpu.hw.pci_path", "otelgpu.hw.numa_node", "otelgpu.gpu.peer", "nccl.rank"),
        *("nccl.communicator.hash", "nccl.communicator.ranks", "rdma.connection.identity"),
        *("host.name", "process.pid", "otelgpu.job.rank", "k8s.pod.name", "service.name"),
    ]
)
ATTRIBUTES = st.dictionaries(KEYS, VALUES, max_size=8)
METRICS = st.sampled_from(
    [
        *("hw.status", "hw.errors", "hw.network.up", "rdma.qp.status", "otelgpu.hw.location"),
        *("otelgpu.gpu.nvlink.links", "otelgpu.gpu.process.device", "otelgpu.gpu.process.memory.usage"),
        *("traces_service_graph_request_total", "hw.network.bandwidth.limit"),
    ]
)


@given(ATTRIBUTES, st.lists(st.tuples(METRICS, ATTRIBUTES, st.integers(-1, 2)), max_size=6), ATTRIBUTES)
@examples(100)
def test_attributes_of_any_value_never_raise(resource: Any, points: Any, of_span: Any) -> None:
    scopes = ("otelgpu.rdma", "otelgpu.nccl", "otelgpu.hardware", "mine")
    names = {"otelgpu.rdma": "RDMA connect"}
    lines = [
        metrics_line(resource, {"otelgpu.devices": points}),
        spans_line(resource, {each: [span(names.get(each, "x"), of_span, kind=2)] for each in scopes}),
    ]
    graph([line.replace(b"NaN", b'"NaN"').replace(b"Infinity", b'"Infinity"') for line in lines])


def test_a_number_of_ranks_without_end_costs_no_memory() -> None:
    call = {"nccl.communicator.hash": "c", "nccl.rank": 0, "nccl.communicator.ranks": 2**62}
    found = graph([spans_line(HOST, {"otelgpu.nccl": [span("ncclAllReduce", call)]})])
    assert found.communicators[0].ranks == 2**62
    assert found.marks == []


def test_more_hosts_than_are_drawn_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otelgpu.topology.owners.MOST_NODES", 3)
    found = graph(Cluster(nodes=5, gpus=1).lines())
    assert len(found.nodes) == 3
    assert found.rejected[BEYOND] > 0


@pytest.mark.slow
def test_eight_thousand_gpus_take_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(Cluster(nodes=1000).lines())
    begun = time.process_time()
    found = graph(lines)
    took = time.process_time() - begun
    with capsys.disabled():
        print(f"\n8,000 GPUs, {sum(map(len, lines)) >> 20} MiB of lines: {took:.1f} s of CPU")
    assert len(found.nodes) == 1000
    assert took < 60  # on a crowded machine; it is some four
