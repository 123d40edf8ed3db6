"""Prometheus' text of a Collector → nodes and devices; what is none is counted, and nothing raises."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from otelgpu.otlp_json.reader import Reader, Skips
from otelgpu.topology import exposed_devices as module
from otelgpu.topology.building import build
from otelgpu.topology.exposed_devices import exposed_devices
from otelgpu.topology.gathering import Facts, Gathering
from otelgpu.topology.graph import FAULTY, Topology
from tests.rig.cluster import START, Cluster
from tests.rig.examples import examples

SHOWN = (Path(__file__).parent / "data" / "devices.txt").read_bytes()
"""Of gateway.yaml and backends/prometheus-scrape.yaml with RESOURCE_LABELS=true, which were sent CLUSTER's lines."""
CLUSTER = Cluster(nodes=2, gpus=2)


def graph(text: bytes, rack: str = "") -> Topology:
    facts, skips = Facts(), Skips()
    facts.owners.rack_attribute = rack
    exposed = exposed_devices(text, skips, "given", START, rack)
    Gathering(facts).take(Reader("given", skips), exposed.lines)
    return build(facts, rejected=skips.counts)


def test_nodes_and_devices_are_those_of_the_agents_lines() -> None:
    facts = Facts()
    Gathering(facts).take(Reader(), CLUSTER.lines())
    sent = [
        replace(
            node, processes=[each for each in node.processes if each.rank >= 0]
        )  # not: services, of spans
        for node in build(facts).nodes
    ]
    found = graph(SHOWN)
    assert found.nodes == sent
    assert (found.marks, found.rejected) == ([], {})


def test_queue_pairs_lead_where_they_lead() -> None:
    pairs = graph(SHOWN).queue_pairs
    ends = [(each.node, each.device, each.number) for each in pairs]
    assert {frozenset((ends[at], ends[each.peer])) for at, each in enumerate(pairs)} == CLUSTER.edges()


def test_a_rack_is_that_of_the_attribute_that_is_named() -> None:
    text = SHOWN.replace(b"k8s_node_label_topology_kubernetes_io_rack", b"our_row")
    assert [node.rack for node in graph(text).nodes] == ["", ""]
    assert [node.rack for node in graph(text, "our.row").nodes] == ["rack-00", "rack-00"]


@pytest.mark.parametrize("order", [("ready_to_send", "error"), ("error", "ready_to_send")])
def test_of_a_queue_pair_in_several_states_the_worst_counts(order: tuple[str, str]) -> None:
    """The exporter has a state for minutes after it was left."""
    pair = 'rdma_qp_status{host_name="a",rdma_device="mlx5_0",rdma_qp_number="7",rdma_qp_state="%s"} 1\n'
    ((mark,),) = [graph("".join(pair % state for state in order).encode()).marks]
    assert (mark.kind, mark.place) == (FAULTY, "nic:a/mlx5_0")


def test_series_that_name_no_host_are_counted_and_make_no_node() -> None:
    text = SHOWN.replace(b'host_name="gpu-0001",', b"")
    exposed = exposed_devices(text, Skips(), "given", START)
    assert exposed.ownerless == SHOWN.count(b'host_name="gpu-0001"')
    assert [node.name for node in graph(text).nodes] == ["gpu-0000"]


@pytest.mark.parametrize(
    "rest",
    [
        " 1",
        '{host_name="a"',
        '{host_name="a"}',
        '{host_name="a"} x',
        "{host_name} 1",
        '{host_name="a"} NaN',
        '{host_name="a"} +Inf',
    ],
)
def test_a_sample_that_is_none_is_rejected_and_the_next_is_taken(rest: str) -> None:
    good = 'hw_status{host_name="a",hw_id="GPU-1",hw_type="gpu",hw_state="ok"} 1\n'
    found = graph(f"hw_status{rest}\n{good}".encode())
    assert [gpu.id for node in found.nodes for gpu in node.gpus] == ["GPU-1"]
    assert found.rejected == {"metrics_unreadable": 1}


def test_what_is_beyond_the_bound_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SAMPLES", 5)
    there = len(module._LINE.findall(b"\n" + SHOWN))
    assert exposed_devices(SHOWN, Skips(), "given", START).beyond == there - 5 > 0


texts = st.text(st.characters(codec="utf-8", exclude_characters='\\"\n'), max_size=40)
labels = st.dictionaries(
    st.sampled_from(["host_name", "hw_id", "hw_type", "hw_name", "rdma_device", "rdma_port", "rdma_qp_number",
                     "process_pid", "otelgpu_job_rank", "otelgpu_hw_numa_node", "hw_state", "otel_scope_name"]),
    texts | st.sampled_from(["gpu", "network", "7", "-1", "1e9", "9" * 30]),
)  # fmt: skip
names = st.sampled_from([name.decode() for name in module._METRICS])
numbers = st.floats() | st.integers()


@given(st.lists(st.tuples(names, labels, numbers), max_size=8))
@examples(200)
def test_whatever_the_labels_say_nothing_raises(samples: list[tuple[str, dict[str, str], float]]) -> None:
    lines = (
        name + "{" + ",".join(f'{key}="{value}"' for key, value in sorted(some.items())) + f"}} {number}\n"
        for name, some, number in samples
    )
    found = graph("".join(lines).encode())
    hosts = {some["host_name"] for _, some, _ in samples if some.get("host_name")}
    assert {node.name for node in found.nodes} <= hosts
