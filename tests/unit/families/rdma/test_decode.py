"""Records of family verbs → facts: every field where it belongs, and nothing believed that no table has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.rdma import words
from otelgpu.families.rdma.decode import VerbsDecoder
from otelgpu.families.rdma.facts import (
    Counted,
    EventSource,
    FabricEvent,
    ObjectChanged,
    QueuePairChanged,
    QueuePairCounts,
    QueuePairState,
    RegionChanged,
    TransferSeen,
    VerbsFact,
)
from otelgpu.model.inputs import Batch
from tests.rig.examples import examples
from tests.unit.families.records import btf, record

HEAD = {"time_ns": 70, "duration_ns": 5, "tgid": 100, "tid": 101}
API = {name.removeprefix("API_"): number for name, number in btf("verbs").enumerators("verbs_api").items()}
KINDS = ("queue_pair", "region", "object", "event", "counts", "transfer")


def decoder() -> VerbsDecoder:
    return VerbsDecoder(btf("verbs"))


def only(kind: str, **fields: Any) -> VerbsFact:
    (fact,) = decoder().facts(record("verbs", f"verbs_{kind}", HEAD, **fields))
    return fact


def test_a_queue_pair_that_is_ready_to_receive() -> None:
    fact = only(
        "queue_pair",
        queue_pair=0x10,
        context=0x20,
        send_queue=0x30,
        receive_queue=0x40,
        number=17,
        peer_number=23,
        peer_gid=np.frombuffer(bytes(range(16)), "u1"),
        peer_lid=9,
        api=API["ibv_modify_qp"],
        state=2,
        type=2,
        port=1,
        local_gid_index=3,
        path_mtu=5,
        timeout=14,
        retries=7,
        rnr_retries=6,
        has_route=1,
        device=b"mlx5_0",
    )
    assert fact == QueuePairChanged(
        time_ns=70,
        duration_ns=5,
        tgid=100,
        tid=101,
        queue_pair=0x10,
        number=17,
        state=QueuePairState.READY_TO_RECEIVE,
        call="ibv_modify_qp",
        context=0x20,
        send_queue=0x30,
        receive_queue=0x40,
        device="mlx5_0",
        type="rc",
        port=1,
        local_gid_index=3,
        peer_number=23,
        peer_gid=bytes(range(16)),
        peer_lid=9,
        path_mtu_bytes=4096,
        timeout=14,
        retries=7,
        rnr_retries=6,
    )


@pytest.mark.parametrize(
    "call", ["ibv_create_qp", "mlx5dv_create_qp", "rdma_create_qp", "rdma_create_qp_ex", "create_qp_ex"]
)
def test_every_call_that_makes_a_queue_pair_is_one(call: str) -> None:
    fact = only("queue_pair", api=API[call], queue_pair=1)
    assert isinstance(fact, QueuePairChanged)
    assert fact.made


def test_a_destroyed_one_and_a_call_that_failed() -> None:
    fact = only("queue_pair", api=API["ibv_destroy_qp"], destroyed=1, status=16)
    assert isinstance(fact, QueuePairChanged)
    assert (fact.destroyed, fact.made, fact.error) == (True, False, 16)


def test_without_a_route_there_is_no_gid() -> None:
    fact = only("queue_pair", peer_gid=np.full(16, 7, "u1"), has_route=0)
    assert isinstance(fact, QueuePairChanged)
    assert fact.peer_gid == b""


def test_what_no_table_has_is_unknown() -> None:
    fact = only(
        "queue_pair", state=200, type=77, path_mtu=9, timeout=255, retries=255, device=b"\xff\x01a", api=999
    )
    assert isinstance(fact, QueuePairChanged)
    assert (fact.state, fact.type, fact.path_mtu_bytes) == (QueuePairState.UNKNOWN, "unknown", 0)
    assert (fact.timeout, fact.retries, fact.device, fact.call) == (31, 7, "??a", "unknown")


def test_regions() -> None:
    fact = only("region", region=0x10, bytes=4096, dmabuf=1, device=b"rxe0", api=API["ibv_reg_mr"])
    assert fact == RegionChanged(
        time_ns=70, tgid=100, region=0x10, device="rxe0", bytes=4096, removed=False, dmabuf=True
    )


def test_objects() -> None:
    fact = only("object", object=0x10, context=0x20, detail=512, api=API["ibv_create_cq"], device=b"rxe0")
    assert fact == ObjectChanged(
        time_ns=70,
        tgid=100,
        call="ibv_create_cq",
        object=0x10,
        removed=False,
        device="rxe0",
        context=0x20,
        detail=512,
    )


@pytest.mark.parametrize(
    ("call", "number", "source", "name", "of_port", "failed"),
    [
        ("ibv_get_async_event", 1, EventSource.DEVICE, "qp_fatal", False, True),
        ("ibv_get_async_event", 9, EventSource.DEVICE, "port_active", True, False),
        ("ibv_get_async_event", 10, EventSource.DEVICE, "port_error", True, True),
        ("ibv_get_async_event", 63, EventSource.DEVICE, "unknown(63)", False, False),
        ("ibv_get_async_event", 1 << 31, EventSource.DEVICE, "unknown", False, False),
        ("ibv_get_cq_event", 0, EventSource.COMPLETION, "completion", False, False),
        ("rdma_get_cm_event", 9, EventSource.CONNECTION, "established", False, False),
        ("rdma_get_cm_event", 8, EventSource.CONNECTION, "rejected", False, True),
    ],
)
def test_events(call: str, number: int, source: EventSource, name: str, of_port: bool, failed: bool) -> None:
    fact = only("event", object=0x10, number=1, event=number, api=API[call], device=b"rxe0")
    assert fact == FabricEvent(
        time_ns=70,
        tgid=100,
        source=source,
        event=name,
        device="rxe0",
        object=0x10,
        number=1,
        of_port=of_port,
        failed=failed,
    )


def test_a_call_that_got_no_event_reports_none() -> None:
    batch = record("verbs", "verbs_event", HEAD, status=11, api=API["ibv_get_async_event"])
    assert decoder().facts(batch) == []


def test_transfers() -> None:
    fact = only(
        "transfer", queue_pair=0x10, id=5, bytes=4096, number=17, vendor_error=0x81, status=12, operation=1
    )
    assert fact == TransferSeen(
        time_ns=70,
        duration_ns=5,
        tgid=100,
        tid=101,
        queue_pair=0x10,
        number=17,
        id=5,
        bytes=4096,
        operation="write",
        status="retries_exceeded",
        vendor_error=0x81,
    )


def test_counts_are_one_fact_with_a_column_for_each_counter() -> None:
    dtype = btf("verbs").dtype("verbs_counts")
    rows = np.zeros(2, dtype=dtype)
    rows["head"]["time_ns"], rows["head"]["duration_ns"] = (70, 71), (7, 8)
    rows["key"]["tgid"], rows["key"]["queue_pair"], rows["key"]["number"] = 100, (0x10, 0x20), (17, 18)
    rows["counted"]["work_requests"][:, 1] = 500, 7
    rows["counted"]["bytes"][:, 5] = 9, 0
    rows["counted"]["statuses"][:, 0] = 5, 1 << 63
    rows["counted"]["latencies"][:, 31] = 2, 0
    rows["counted"]["posts"] = 3, 4
    rows["counted"]["vendor_error"] = 0x81, 0
    rows["counted"]["last_error_ns"] = 60, 0
    (fact,) = decoder().facts(Batch(family="verbs", kind="verbs_counts", records=rows))
    assert isinstance(fact, QueuePairCounts)
    assert (fact.time_ns.tolist(), fact.tgid.tolist()) == ([70, 71], [100, 100])
    assert fact.counted_ns.tolist() == [7, 8]
    assert (fact.queue_pair.tolist(), fact.number.tolist()) == ([0x10, 0x20], [17, 18])
    assert (fact.vendor_error.tolist(), fact.last_error_ns.tolist()) == ([0x81, 0], [60, 0])
    reported = {
        each: fact.values[:, place].tolist()
        for place, each in enumerate(fact.counters)
        if fact.values[:, place].any()
    }
    assert reported == {
        Counted("work_requests", "write"): [500, 7],
        Counted("bytes", "receive"): [9, 0],
        Counted("statuses", "success"): [5, 1 << 63],
        Counted("latencies", 31): [2, 0],
        Counted("posts", ""): [3, 4],
    }
    assert len(set(fact.counters)) == fact.values.shape[1]
    assert {"observed_post_ns", "observed_poll_ns", "completions"} <= {each.what for each in fact.counters}


def test_counts_are_of_a_time_that_has_differences() -> None:
    batch = record("verbs", "verbs_counts", HEAD | {"time_ns": (1 << 64) - 1, "duration_ns": 1 << 63})
    (fact,) = decoder().facts(batch)
    assert isinstance(fact, QueuePairCounts)
    assert (fact.time_ns.tolist(), fact.counted_ns.tolist()) == ([(1 << 63) - 1], [(1 << 63) - 1])


def test_other_kinds_and_empty_batches_report_nothing() -> None:
    made = decoder()
    for kind in (*(f"verbs_{each}" for each in KINDS), "verbs_provider"):
        empty = np.zeros(0, dtype=btf("verbs").dtype(kind))
        assert made.facts(Batch(family="verbs", kind=kind, records=empty)) == []
    assert made.facts(record("verbs", "verbs_provider", HEAD)) == []


@examples(60)
@given(st.sampled_from(KINDS), st.binary(min_size=720, max_size=720))
def test_any_bytes_give_facts_of_few_words(kind: str, noise: bytes) -> None:
    dtype = btf("verbs").dtype(f"verbs_{kind}")
    rows = np.frombuffer(noise[: dtype.itemsize], dtype=dtype)
    for fact in decoder().facts(Batch(family="verbs", kind=f"verbs_{kind}", records=rows)):
        for name in ("type", "call", "event", "operation", "status", "device"):
            value = getattr(fact, name, "")
            assert not isinstance(value, str) or (len(value) <= 32 and value.isprintable())


@pytest.mark.parametrize("table", [words.STATUSES, words.DEVICE_EVENTS, words.CONNECTION_EVENTS, words.TYPES])
def test_labels_of_any_number_are_few(table: Any) -> None:
    found = {words.word(table, number) for number in [*range(-300, 5000), 1 << 32]}
    assert len(found) <= words.LARGEST + 3 + len(table)
