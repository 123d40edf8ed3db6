"""Port readings as metrics: names of the conventions, exact growth, wraps and vanishing counters."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.semconv._incubating.metrics import hw_metrics

from otelgpu.families.base import Instrument
from otelgpu.model.fabric import PortGone, PortReadings, PortSeen, QueuePairReadings
from otelgpu.model.resource import Resource, resource
from otelgpu.signals import fabric_counters
from otelgpu.signals.devices import ERRORS
from otelgpu.signals.fabric_counters import METRICS, ROWS
from otelgpu.signals.fabric_ports import PortMetrics
from otelgpu.signals.metrics import Metrics
from tests.rig.examples import examples
from tests.unit.model.builders import LLM
from tests.unit.sensors.infiniband import SHAPES, Shape

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


class Told:
    """What stands in the metrics after some inputs."""

    def __init__(self, *inputs: Any, processes: dict[int, Resource] | None = None) -> None:
        self.metrics = Metrics(0)
        self.ports = PortMetrics(self.metrics, OWN, (processes or {}).get)
        self.take(*inputs)

    def take(self, *inputs: Any) -> Told:
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


def told_values(shape: Shape) -> dict[str, int]:
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
def test_every_row_tells_what_grew(name: str) -> None:
    row = ROWS[name]
    told = Told(seen(), readings({name: 1}), readings({name: 4}))
    labels: dict[str, Any] = {"rdma.device": "d", "rdma.port": 1, **row.labels}
    expected = 3 if row.metric.instrument is Instrument.COUNTER else 4
    assert told.points(row.metric.name, **labels) == [expected * row.scale]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_what_was_counted_before_the_session_is_not_told(shape: Shape) -> None:
    told = Told(seen(), readings(told_values(shape)))
    found = told.points("hw.network.packets")
    assert found and set(found) == {0}
    told.take(readings({name: value + 1 for name, value in told_values(shape).items()}))
    assert set(told.points("hw.network.packets")) == {1}  # once, though rxe 7 has two counters of them


def test_data_is_counted_in_four_bytes() -> None:
    told = Told(seen(), readings({"port_xmit_data": 10}), readings({"port_xmit_data": 35}))
    assert told.points("hw.network.io", **{"network.io.direction": "transmit"}) == [100]


def test_a_port_is_up_or_down_and_has_a_speed() -> None:
    told = Told(seen(rate_bits_per_s=100_000_000_000))
    assert told.points("hw.network.up", **{"hw.id": "d/1", "hw.type": "network"}) == [1]
    assert told.points("hw.network.bandwidth.limit") == [12_500_000_000]
    assert told.take(seen(state="DOWN")).points("hw.network.up") == [0]
    assert told.take(PortGone(time_ns=2, device="d", port=1)).points("hw.network.up") == []


def test_what_a_port_is_called_changes_for_all_of_its_levels() -> None:
    told = Told(seen(interface="eth0"), seen(interface="eth1"))
    assert told.points("hw.network.up", **{"network.interface.name": "eth0"}) == []
    assert told.points("hw.network.up", **{"network.interface.name": "eth1"}) == [1]


def test_a_counter_that_wraps_round_goes_on() -> None:
    told = Told(seen(), readings({"out_of_sequence": 2**32 - 3}), readings({"out_of_sequence": 4}))
    assert told.points("rdma.port.out_of_sequence") == [7]
    assert +told.ports.counters == {"counter_wrapped": 1}


def test_a_counter_that_is_wider_than_it_should_be_did_not_wrap() -> None:
    told = Told(seen(), readings({"out_of_sequence": 2**33}), readings({"out_of_sequence": 5}))
    assert told.points("rdma.port.out_of_sequence") == [5]
    assert +told.ports.counters == {"counter_restarted": 1}


def test_a_counter_that_falls_began_again_at_zero() -> None:
    told = Told(seen(), readings({"out_of_sequence": 1000}), readings({"out_of_sequence": 4}))
    assert told.points("rdma.port.out_of_sequence") == [4]
    assert +told.ports.counters == {"counter_restarted": 1}


def test_a_counter_that_is_full_is_said_to_be() -> None:
    told = Told(seen(), *(readings({"symbol_error": value}) for value in (65533, 65535, 65535)))
    assert told.points("hw.errors", **{"error.type": "symbol"}) == [2]
    assert +told.ports.counters == {"counter_saturated": 1}
    told.take(readings({"symbol_error": 3}))  # somebody cleared it
    assert told.points("hw.errors", **{"error.type": "symbol"}) == [5]


def test_a_counter_without_a_meaning_is_told_under_its_own_name() -> None:
    told = Told(seen(), readings({"ack_deferred": 5}), readings({"ack_deferred": 9}))
    assert told.points("rdma.port.counter", **{"rdma.counter": "ack_deferred"}) == [4]
    told.take(readings({"ack_deferred": 2}))  # it may be a level: nothing is added
    assert told.points("rdma.port.counter", **{"rdma.counter": "ack_deferred"}) == [4]


def test_a_counter_that_was_away_begins_where_it_is() -> None:
    told = Told(
        seen(), readings({"rcvd_seq_err": 5}), readings({"sent_pkts": 1}), readings({"rcvd_seq_err": 50})
    )
    assert told.points("rdma.port.naks") == [0]


def test_a_device_that_was_away_begins_where_it_is() -> None:
    told = Told(seen(), readings({"rcvd_seq_err": 5}), PortGone(time_ns=2, device="d", port=1))
    told.take(seen(), readings({"rcvd_seq_err": 50}), readings({"rcvd_seq_err": 51}))
    assert told.points("rdma.port.naks") == [1]


def test_a_leap_is_not_believed() -> None:
    told = Told(seen(), readings({"tx_bytes": 1}), readings({"tx_bytes": 2**63}))
    assert told.points("hw.network.io") == [0]
    assert +told.ports.counters == {"implausible": 1}


def test_readings_of_nobodys_port_are_counted() -> None:
    assert +Told(readings({"sent_pkts": 1})).ports.counters == {"port_not_seen": 1}


def test_growth_is_told_once_to_who_asks_for_it() -> None:
    told = Told(seen(), readings({"rcvd_seq_err": 5, "sent_pkts": 1, "strange": 7}))
    assert told.ports.deltas("d", 1) == {}
    told.take(readings({"rcvd_seq_err": 7, "sent_pkts": 1, "strange": 9}), readings({"rcvd_seq_err": 8}))
    assert told.ports.deltas("d", 1) == {"rcvd_seq_err": 3, "strange": 2}
    assert told.ports.deltas("d", 1) == {}
    assert told.ports.deltas("none", 1) == {}


def pair(values: dict[str, int], number: int = 300, tgid: int = 7) -> QueuePairReadings:
    return QueuePairReadings(time_ns=1, device="d", port=1, number=number, tgid=tgid, values=values)


def test_counters_of_a_queue_pair_are_its_process() -> None:
    told = Told(seen(), pair({}), pair({"a": 5}), pair({"a": 9}), pair({"a": 3}), processes={7: LLM})
    labels: dict[str, str | int] = {"rdma.qp.number": 300, "rdma.counter": "a"}
    assert told.points("rdma.qp.counter", **labels) == [7]
    assert told.metrics.value("rdma.qp.counter", LLM) == 7
    told.take(pair({"b": 1}, tgid=0), pair({"b": 3}, tgid=0))
    assert told.metrics.value("rdma.qp.counter", OWN) == 2


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=20))
@examples(40)
def test_the_sum_is_that_of_what_grew(values: list[int]) -> None:
    values = sorted(values)
    told = Told(seen(), *(readings({"tx_bytes": value}) for value in values))
    assert told.points("hw.network.io") == [values[-1] - values[0]]
    assert sum(told.ports.deltas("d", 1).values()) == values[-1] - values[0]


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
    told = Told(seen())
    before = 0.0
    for values in series:
        told.take(readings(values))
        now = told.metrics.value("hw.network.io") + told.metrics.value("rdma.port.counter")
        assert now >= before
        before = now
    told.metrics.read(1)
