"""Port readings as metrics: names of the conventions, exact growth, wraps and vanishing counters."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.semconv._incubating.metrics import hw_metrics

from otelgpu.engine.hardware_names import ERRORS
from otelgpu.engine.metric import Instrument
from otelgpu.engine.metrics import Metrics
from otelgpu.families.rdma import port_counters as fabric_counters
from otelgpu.families.rdma.port_counters import METRICS, ROWS
from otelgpu.families.rdma.ports import PortMetrics
from otelgpu.model.fabric import PortGone, PortReadings, PortSeen, QueuePairReadings
from otelgpu.model.resource import Resource, resource
from tests.rig.examples import examples
from tests.unit.families.rdma.poll.infiniband import SHAPES, Shape
from tests.unit.model.builders import LLM

OWN = resource({"service.name": "otelgpu"})


def seen(**fields: Any) -> PortSeen:
    known: dict[str, Any] = {
        "time_ns": 1,
        "device": "d",
        "port": 1,
        "state": "ACTIVE",
        "link_layer": "Ethernet",
    }
    return PortSeen(**known | fields)


def readings(values: dict[str, int], device: str = "d") -> PortReadings:
    return PortReadings(time_ns=1, device=device, port=1, values=values)


class Reported:
    """What stands in the metrics after some inputs."""

    def __init__(self, *inputs: Any, processes: dict[int, Resource] | None = None) -> None:
        self.metrics = Metrics(0)
        self.ports = PortMetrics(self.metrics, OWN, (processes or {}).get)
        self.take(*inputs)

    def take(self, *inputs: Any) -> Reported:
        for item in inputs:
            self.ports.take(item)
        return self

    def points(self, name: str, **labels: str | int) -> list[int]:
        """Values of the data points that have these labels."""
        data, _ = self.metrics.read(10)
        found = []
        for metric in (m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics):
            for point in metric.sum.data_points if metric.name == name else ():
                own = {a.key: a.value.string_value or a.value.int_value for a in point.attributes}
                if labels.items() <= own.items():
                    found.append(point.as_int)
        return found


def reported_values(shape: Shape) -> dict[str, int]:
    values = {**shape.counters, **shape.hw_counters}
    return {name: int(value) for name, value in values.items() if name != "lifespan"}


def test_shared_names_are_those_of_the_conventions() -> None:
    for metric, made in (
        (fabric_counters.IO, hw_metrics.create_hw_network_io),
        (fabric_counters.PACKETS, hw_metrics.create_hw_network_packets),
        (fabric_counters.UP, hw_metrics.create_hw_network_up),
        (fabric_counters.BANDWIDTH, hw_metrics.create_hw_network_bandwidth_limit),
    ):

        class Meter:
            def _take(self, name: str, description: str, unit: str) -> tuple[str, str, str]:
                return name, unit, description

            create_counter = create_up_down_counter = _take

        found: Any = made(Meter())  # type: ignore[arg-type]
        assert found == (metric.name, metric.unit, metric.description)


def test_no_two_metrics_have_one_name() -> None:
    names = [metric.name for metric in (*METRICS, ERRORS)]
    assert len(names) == len(set(names))


def test_no_two_counters_of_one_driver_feed_one_series() -> None:
    for shape in SHAPES.values():
        fed = [
            (row.metric.name, tuple(sorted(row.labels.items())))
            for name in shape.hw_counters
            if (row := ROWS.get(name)) is not None
        ]
        assert len(fed) == len(set(fed)), shape.device


@pytest.mark.parametrize("name", sorted(ROWS))
def test_every_row_reports_what_grew(name: str) -> None:
    row = ROWS[name]
    reported = Reported(seen(), readings({name: 1}), readings({name: 4}))
    labels: dict[str, Any] = {"rdma.device": "d", "rdma.port": 1, **row.labels}
    expected = 3 if row.metric.instrument is Instrument.COUNTER else 4
    assert reported.points(row.metric.name, **labels) == [expected * row.scale]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_what_was_counted_before_the_session_is_not_reported(shape: Shape) -> None:
    reported = Reported(seen(), readings(reported_values(shape)))
    found = reported.points("hw.network.packets")
    assert found and set(found) == {0}
    reported.take(readings({name: value + 1 for name, value in reported_values(shape).items()}))
    assert set(reported.points("hw.network.packets")) == {1}  # once, though rxe 7 has two counters of them


def test_data_is_counted_in_four_bytes() -> None:
    reported = Reported(seen(), readings({"port_xmit_data": 10}), readings({"port_xmit_data": 35}))
    assert reported.points("hw.network.io", **{"network.io.direction": "transmit"}) == [100]


def test_a_port_is_up_or_down_and_has_a_speed() -> None:
    reported = Reported(seen(rate_bits_per_s=100_000_000_000))
    assert reported.points("hw.network.up", **{"hw.id": "d/1", "hw.type": "network"}) == [1]
    assert reported.points("hw.network.bandwidth.limit") == [12_500_000_000]
    assert reported.take(seen(state="DOWN")).points("hw.network.up") == [0]
    assert reported.take(PortGone(time_ns=2, device="d", port=1)).points("hw.network.up") == []


def test_what_a_port_is_called_changes_for_all_of_its_levels() -> None:
    reported = Reported(seen(interface="eth0"), seen(interface="eth1"))
    assert reported.points("hw.network.up", **{"network.interface.name": "eth0"}) == []
    assert reported.points("hw.network.up", **{"network.interface.name": "eth1"}) == [1]


def test_a_counter_that_wraps_round_goes_on() -> None:
    reported = Reported(seen(), readings({"out_of_sequence": 2**32 - 3}), readings({"out_of_sequence": 4}))
    assert reported.points("rdma.port.out_of_sequence") == [7]
    assert +reported.ports.counters == {"counter_wrapped": 1}


def test_a_counter_that_is_wider_than_it_should_be_did_not_wrap() -> None:
    reported = Reported(seen(), readings({"out_of_sequence": 2**33}), readings({"out_of_sequence": 5}))
    assert reported.points("rdma.port.out_of_sequence") == [5]
    assert +reported.ports.counters == {"counter_restarted": 1}


def test_a_counter_that_falls_began_again_at_zero() -> None:
    reported = Reported(seen(), readings({"out_of_sequence": 1000}), readings({"out_of_sequence": 4}))
    assert reported.points("rdma.port.out_of_sequence") == [4]
    assert +reported.ports.counters == {"counter_restarted": 1}


def test_a_counter_that_is_full_is_said_to_be() -> None:
    reported = Reported(seen(), *(readings({"symbol_error": value}) for value in (65533, 65535, 65535)))
    assert reported.points("hw.errors", **{"error.type": "symbol"}) == [2]
    assert +reported.ports.counters == {"counter_saturated": 1}
    reported.take(readings({"symbol_error": 3}))  # somebody cleared it
    assert reported.points("hw.errors", **{"error.type": "symbol"}) == [5]


def test_a_counter_without_a_meaning_is_reported_under_its_own_name() -> None:
    reported = Reported(seen(), readings({"ack_deferred": 5}), readings({"ack_deferred": 9}))
    assert reported.points("rdma.port.counter", **{"rdma.counter": "ack_deferred"}) == [4]
    reported.take(readings({"ack_deferred": 2}))  # it may be a level: nothing is added
    assert reported.points("rdma.port.counter", **{"rdma.counter": "ack_deferred"}) == [4]


def test_a_counter_that_was_away_begins_where_it_is() -> None:
    reported = Reported(
        seen(), readings({"rcvd_seq_err": 5}), readings({"sent_pkts": 1}), readings({"rcvd_seq_err": 50})
    )
    assert reported.points("rdma.port.naks") == [0]


def test_a_device_that_was_away_begins_where_it_is() -> None:
    reported = Reported(seen(), readings({"rcvd_seq_err": 5}), PortGone(time_ns=2, device="d", port=1))
    reported.take(seen(), readings({"rcvd_seq_err": 50}), readings({"rcvd_seq_err": 51}))
    assert reported.points("rdma.port.naks") == [1]


def test_a_leap_is_not_believed() -> None:
    reported = Reported(seen(), readings({"tx_bytes": 1}), readings({"tx_bytes": 2**63}))
    assert reported.points("hw.network.io") == [0]
    assert +reported.ports.counters == {"implausible": 1}


def test_readings_of_nobodys_port_are_counted() -> None:
    assert +Reported(readings({"sent_pkts": 1})).ports.counters == {"port_not_seen": 1}


def test_growth_is_reported_once_to_who_asks_for_it() -> None:
    reported = Reported(seen(), readings({"rcvd_seq_err": 5, "sent_pkts": 1, "strange": 7}))
    assert reported.ports.deltas("d", 1) == {}
    reported.take(readings({"rcvd_seq_err": 7, "sent_pkts": 1, "strange": 9}), readings({"rcvd_seq_err": 8}))
    assert reported.ports.deltas("d", 1) == {"rcvd_seq_err": 3, "strange": 2}
    assert reported.ports.deltas("d", 1) == {}
    assert reported.ports.deltas("none", 1) == {}


def pair(values: dict[str, int], number: int = 300, tgid: int = 7) -> QueuePairReadings:
    return QueuePairReadings(time_ns=1, device="d", port=1, number=number, tgid=tgid, values=values)


def test_counters_of_a_queue_pair_are_its_process() -> None:
    reported = Reported(seen(), pair({}), pair({"a": 5}), pair({"a": 9}), pair({"a": 3}), processes={7: LLM})
    labels: dict[str, str | int] = {"rdma.qp.number": 300, "rdma.counter": "a"}
    assert reported.points("rdma.qp.counter", **labels) == [7]
    assert reported.metrics.value("rdma.qp.counter", LLM) == 7
    reported.take(pair({"b": 1}, tgid=0), pair({"b": 3}, tgid=0))
    assert reported.metrics.value("rdma.qp.counter", OWN) == 2


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=20))
@examples(40)
def test_the_sum_is_that_of_what_grew(values: list[int]) -> None:
    values = sorted(values)
    reported = Reported(seen(), *(readings({"tx_bytes": value}) for value in values))
    assert reported.points("hw.network.io") == [values[-1] - values[0]]
    assert sum(reported.ports.deltas("d", 1).values()) == values[-1] - values[0]


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["symbol_error", "out_of_sequence", "tx_bytes", "active_qps", "x"]),
            st.integers(0, 2**64 - 1),
        ),
        max_size=6,
    )
)
@examples(40)
def test_whatever_is_read_no_sum_falls(series: list[dict[str, int]]) -> None:
    reported = Reported(seen())
    before = 0.0
    for values in series:
        reported.take(readings(values))
        now = reported.metrics.value("hw.network.io") + reported.metrics.value("rdma.port.counter")
        assert now >= before
        before = now
    reported.metrics.read(1)


def test_where_a_port_is_stands_and_moves_with_it() -> None:
    reported = Reported(seen(pci_path="pci0000:17/0000:17:01.0", numa_node=1))
    assert reported.points("otelgpu.hw.location", **{"otelgpu.hw.numa_node": 1, "hw.id": "d/1"}) == [1]
    reported.take(seen(pci_path="pci0000:18/0000:18:01.0"))
    assert reported.points("otelgpu.hw.location") == [1]
    assert reported.points("otelgpu.hw.location", **{"otelgpu.hw.pci_path": "pci0000:18/0000:18:01.0"}) == [1]


def test_of_a_port_that_is_on_no_pci_bus_nothing_is_said() -> None:
    assert Reported(seen()).points("otelgpu.hw.location") == []
