"""Xids, SXids and falling ports: what they are called, where their spans stand, what is counted."""

from __future__ import annotations

from typing import Any

import pytest

from otelgpu.engine.metrics import Metrics
from otelgpu.families.rdma import hardware_errors
from otelgpu.families.rdma.hardware_errors import HardwareErrors, pci_address
from otelgpu.families.rdma.xids import ACTIONS, XIDS
from otelgpu.model.context import NO_SPAN, Context
from otelgpu.model.devices import DeviceSeen
from otelgpu.model.fabric import HardwareError, PortGone
from otelgpu.model.resource import Resource
from otelgpu.model.spans import SpanColumns
from tests.unit.families.rdma.test_ports import OWN, seen
from tests.unit.model.builders import LLM, Row, read_out

UUID = "GPU-5fd4f087-86f3-4b5c-ab5c-cf9e1a2b3c40"
GPU = DeviceSeen(time_ns=1, uuid=UUID, index=3, minor=3, model="H200", pci_bus_id="00000000:CB:00.0")
OFFSET = 10**18


def xid(code: int = 79, time_ns: int = 50, **fields: Any) -> HardwareError:
    given_fields: dict[str, Any] = {
        "kind": "xid",
        "pci_bus_id": "0000:cb:00",
        "message": "GPU has fallen off the bus.",
    }
    return HardwareError(code=code, time_ns=time_ns, **given_fields | fields)


class Reported:
    """Errors of a session with one known process, 7."""

    def __init__(self, *inputs: Any, context: Context | None = None) -> None:
        self.metrics = Metrics(0)
        self.asked: list[tuple[int, int]] = []
        processes: dict[int, Resource] = {7: LLM}

        def context_of(tgid: int, time_ns: int) -> Context | None:
            self.asked.append((tgid, time_ns))
            return context

        self.errors = HardwareErrors(self.metrics, OWN, processes.get, seed=1, context_of=context_of)
        for item in inputs:
            self.errors.take(item)

    def spans(self, now_ns: int = 100) -> list[SpanColumns]:
        return self.errors.report(now_ns, OFFSET, final=False)

    def only(self) -> tuple[SpanColumns, Row]:
        (columns,) = self.spans()
        (span,) = read_out([columns])
        return columns, span


def test_an_xid_is_a_span_without_duration_in_a_trace_of_its_own() -> None:
    columns, span = Reported(GPU, xid()).only()
    assert columns.resource == OWN
    assert columns.start_unix_ns.tolist() == columns.end_unix_ns.tolist() == [OFFSET + 50]
    assert not columns.parent_span_id.any()
    assert columns.trace_id.any() and columns.span_id.any()
    assert columns.status.tolist() == [2]
    assert span.name == "Xid 79"
    assert dict(span.attributes) == {
        "hw.id": UUID,
        "hw.name": "gpu3",
        "hw.type": "gpu",
        "error.type": "xid-79",
        "otelgpu.hw.error.code": 79,
        "otelgpu.hw.error.name": "GPU_HAS_FALLEN_OFF_THE_BUS",
        "otelgpu.hw.error.class": "bus",
        "otelgpu.hw.error.action": "RESTART_BM",
        "otelgpu.hw.error.hint": "restart the whole machine",
        "otelgpu.hw.error.message": "GPU has fallen off the bus.",
        "otelgpu.hw.pci_bus_id": "0000:cb:00",
    }


def test_it_stands_in_the_trace_that_the_process_worked_under() -> None:
    reported = Reported(GPU, xid(tgid=7, process="python"), context=Context(b"t" * 16, b"s" * 8, 1))
    columns, span = reported.only()
    assert reported.asked == [(7, 50)]
    assert columns.resource == LLM
    assert columns.trace_id.tobytes() == b"t" * 16
    assert columns.parent_span_id.tobytes() == b"s" * 8
    assert dict(span.attributes)["process.pid"] == 7


@pytest.mark.parametrize(
    "context",
    [None, Context(b"t" * 16, NO_SPAN, 1), Context(b"t" * 16, b"s" * 8, 0)],
    ids=["none", "no span", "unsampled"],
)
def test_without_a_sampled_span_it_has_its_own_trace(context: Context | None) -> None:
    columns, _ = Reported(xid(tgid=7), context=context).only()
    assert columns.resource == LLM
    assert columns.trace_id.tobytes() != b"t" * 16
    assert not columns.parent_span_id.any()
    assert columns.flags.tolist() == [1]


def test_errors_are_counted_by_code_and_device() -> None:
    reported = Reported(GPU, xid(), xid(), xid(48), xid(pci_bus_id="0000:01:00"))
    assert reported.metrics.value("hw.errors", OWN, **{"hw.id": UUID, "error.type": "xid-79"}) == 2
    assert reported.metrics.value("hw.errors", OWN, **{"hw.id": UUID, "error.type": "xid-48"}) == 1
    assert reported.metrics.value("hw.errors", OWN, **{"hw.id": "0000:01:00", "hw.type": "gpu"}) == 1


def test_an_unknown_code_is_said_to_be_unknown() -> None:
    reported = Reported(xid(999))
    _, span = reported.only()
    assert dict(span.attributes)["otelgpu.hw.error.name"] == "unknown"
    assert +reported.errors.counters == {"xid_unknown": 1}


def test_what_asks_for_nothing_is_no_failure() -> None:
    columns, _ = Reported(xid(63)).only()
    assert columns.status.tolist() == [0]


def test_a_switch_says_itself_whether_it_is_fatal() -> None:
    error = xid(20034, kind="sxid", pci_bus_id="0000:c1:00.0", message="Fatal, Link 30 LTSSM Fault Up")
    reported = Reported(GPU, error)
    _, span = reported.only()
    assert (span.name, dict(span.attributes)["otelgpu.hw.error.class"]) == ("SXid 20034", "fatal")
    labels = {"hw.id": "0000:c1:00.0", "hw.type": "network", "error.type": "sxid-20034"}
    assert reported.metrics.value("hw.errors", OWN, **labels) == 1


def test_a_port_that_goes_down_is_an_error_and_one_that_comes_up_is_not() -> None:
    reported = Reported(seen(), seen(), seen(time_ns=2, state="DOWN"), seen(time_ns=3))
    (columns,) = reported.spans()
    down, up = read_out([columns])
    assert (down.name, up.name) == ("RDMA port DOWN", "RDMA port ACTIVE")
    assert columns.status.tolist() == [2, 0]
    assert dict(down.attributes)["rdma.port.state.before"] == "ACTIVE"
    assert reported.metrics.value("hw.errors", OWN, **{"error.type": "port_down", "rdma.device": "d"}) == 1


def test_a_port_that_is_slower_than_it_was_is_an_error() -> None:
    reported = Reported(seen(rate_bits_per_s=10**11), seen(time_ns=2, rate_bits_per_s=25 * 10**9))
    _, span = reported.only()
    assert span.name == "RDMA port slower"
    assert dict(span.attributes)["rdma.port.rate.before"] == 10**11
    assert reported.metrics.value("hw.errors", OWN, **{"error.type": "port_rate_downgrade"}) == 1


def test_a_device_that_comes_back_is_compared_with_nothing() -> None:
    reported = Reported(
        seen(rate_bits_per_s=10**11), PortGone(time_ns=2, device="d", port=1), seen(state="DOWN")
    )
    assert reported.spans() == []


def test_an_error_is_reported_when_its_time_has_come() -> None:
    reported = Reported(xid(time_ns=200))
    assert reported.spans(100) == []
    assert len(reported.spans(200)) == 1
    assert reported.spans(300) == []
    reported.errors.take(xid(time_ns=900))
    assert len(reported.errors.report(300, OFFSET, final=True)) == 1


def test_a_flood_is_counted_in_full_and_reported_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_errors, "PENDING", 3)
    reported = Reported(*(xid() for _ in range(5)))
    assert len(reported.spans()[0]) == 3
    assert reported.metrics.value("hw.errors") == 5
    assert +reported.errors.counters == {"errors_not_reported": 2}


def test_ids_differ_and_are_the_same_each_time() -> None:
    first, again = Reported(xid(), xid()), Reported(xid(), xid())
    (columns,), (same,) = first.spans(), again.spans()
    assert len({bytes(row) for row in columns.span_id}) == len({bytes(row) for row in columns.trace_id}) == 2
    assert columns.span_id.tolist() == same.span_id.tolist()
    first.errors.take(xid())
    assert bytes(first.spans()[0].span_id[0]) not in {bytes(row) for row in columns.span_id}


def test_the_catalogue_is_whole() -> None:
    assert {known.action for known in XIDS.values()} <= ACTIONS.keys()
    # Of NVIDIA's catalogue: those that a reader is most likely to meet, by code, mnemonic and immediate action.
    for code, name, action in (
        (13, "GR_EXCEPTION", "RESTART_APP"),
        (41, "CE2_ERROR", "RESTART_APP"),
        (48, "GPU_ECC_DBE", "WORKFLOW_XID_48"),
        (72, "CE5_ERROR", "RESTART_APP"),
        (77, "CE8_ERROR", "RESTART_APP"),
        (79, "GPU_HAS_FALLEN_OFF_THE_BUS", "RESTART_BM"),
        (89, "NVDEC4_ERROR", "RESTART_APP"),
        (94, "CONTAINED_ERROR", "RESTART_APP"),
        (98, "NVDEC7_ERROR", "RESTART_APP"),
        (105, "NVJPG7_ERROR", "RESTART_APP"),
        (119, "GSP_RPC_TIMEOUT", "RESET_GPU"),
        (135, "CE19_ERROR", "RESTART_APP"),
        (150, "NVLINK_MSE_ERROR", "WORKFLOW_NVLINK5_ERR"),
    ):
        assert (XIDS[code].name, XIDS[code].action) == (name, action)


@pytest.mark.parametrize("text", ["0000:cb:00", "0000:cb:00.0", "00000000:CB:00.0"])
def test_every_form_of_an_address_is_one_address(text: str) -> None:
    assert pci_address(text) == (0, 0xCB, 0)


@pytest.mark.parametrize("text", ["", "cb", "x:y:z", "0:1:2:3"])
def test_what_is_no_address_is_none(text: str) -> None:
    assert pci_address(text) is None
