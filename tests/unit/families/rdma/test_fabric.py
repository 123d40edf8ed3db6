"""RDMA of a session: one trace from both ends, exact sums, bounded series, nothing made up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otelgpu.engine.metrics import Metrics
from otelgpu.families.rdma import metrics as queue_pair_metrics
from otelgpu.families.rdma import names as qp
from otelgpu.families.rdma.counts import MOST
from otelgpu.families.rdma.fabric import session as fabric_session
from otelgpu.families.rdma.fabric.session import IDENTITY_NS, WAIT_NS, FabricSession
from otelgpu.families.rdma.facts import (
    EventSource,
    FabricEvent,
    ObjectChanged,
    QueuePairCounts,
    RegionChanged,
    TransferSeen,
    VerbsFact,
)
from otelgpu.model.communicators import CommunicatorSeen
from otelgpu.model.fabric import PortReadings, QueuePairReadings
from otelgpu.model.resource import Resource, resource
from otelgpu.model.spans import SpanColumns, StatusCode, Text
from tests.unit.families.rdma.queue_pair_facts import MS, SECOND, Caller, counts, port, together

OWN = resource({"service.name": "otelgpu"})
OFFSET_NS = 1_700_000_000 * SECOND


def process(tgid: int) -> Resource:
    return resource({"service.name": f"rank{tgid}", "k8s.pod.name": f"pod{tgid}"})


class Host:
    """A session, and what came out of it: spans as dictionaries, metrics by name and labels."""

    def __init__(self, *ports: Any, seed: int = 1) -> None:
        self.metrics = Metrics(0)
        self.session = FabricSession(self.metrics, process, process, OWN, seed=seed)
        for each in ports or (port(),):
            self.session.learn(each)

    def take(self, *facts: VerbsFact) -> Host:
        self.session.take(facts)
        return self

    def report(self, now_ns: int = 0, *, final: bool = False) -> list[dict[str, Any]]:
        return [row for each in self.session.report(now_ns, OFFSET_NS, final) for row in rows(each)]

    def points(self, metric: str, owner: Resource | None = None) -> dict[tuple[Any, ...], float]:
        """Values by the labels' values, in the order of their keys; histograms: how many."""
        table = self.metrics._tables.get((owner or process(100), metric))
        if table is None:
            return {}
        histogram = metric in (qp.LATENCY.name, qp.CONNECTING.name)
        return {
            tuple(value for _, value in labels): series.count if histogram else series.total
            for labels, series in table.series.items()
        }


def rows(batch: SpanColumns) -> list[dict[str, Any]]:
    found = []
    for row in range(len(batch)):
        attributes = {
            each.key: each.values.table[each.values.codes[row]]
            if isinstance(each.values, Text)
            else each.values[row].item()
            for each in batch.attributes
            if each.present is None or each.present[row]
        }
        links = []
        if batch.links is not None:
            links = [
                batch.links.span_id[place].tobytes() for place in np.flatnonzero(batch.links.span == row)
            ]
        message = batch.status_message
        found.append(
            {
                "name": batch.name.table[batch.name.codes[row]],
                "trace": batch.trace_id[row].tobytes(),
                "id": batch.span_id[row].tobytes(),
                "parent": batch.parent_span_id[row].tobytes(),
                "start": int(batch.start_unix_ns[row]) - OFFSET_NS,
                "end": int(batch.end_unix_ns[row]) - OFFSET_NS,
                "failed": batch.status[row] == StatusCode.ERROR,
                "message": message.table[message.codes[row]] if message is not None else "",
                "links": links,
                "owner": batch.resource,
                **attributes,
            }
        )
    return found


def only(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (one,) = [each for each in found if each["name"] == name]
    return one


LATER = WAIT_NS + SECOND
ROOT = bytes(8)


# -- Connections -----------------------------------------------------------------------------------------


def test_a_connection_is_a_span_from_init_to_ready_to_send() -> None:
    caller = Caller()
    made, init, receive, ready = caller.connect()
    span = only(Host().take(made, init, receive, ready).report(LATER), "RDMA connect")
    assert (span["start"], span["end"]) == (init.time_ns, ready.time_ns + ready.duration_ns)
    assert (span["parent"], span["failed"]) == (ROOT, False)
    assert (span["rdma.device"], span["rdma.port"], span["rdma.qp.type"]) == ("rxe0", 1, "rc")
    assert (span["rdma.qp.number"], span["rdma.peer.qp.number"]) == (17, 23)
    assert (span["rdma.gid"], span["rdma.peer.gid"]) == ("fe80::1", "fe80::2")
    assert (span["rdma.path_mtu"], span["rdma.retries"]) == (1024, 7)
    assert span["rdma.ack_timeout"] == pytest.approx(4.096e-6 * 2**14)
    assert (span["rdma.connection.identity"], span["rdma.connect.begin"]) == ("ends", "init")


def test_both_ends_derive_the_same_trace_and_link_to_each_other() -> None:
    """Two agents that know nothing of each other."""
    here = Host(port(address="fe80::1"), seed=1)
    there = Host(port("mlx5_3", address="fe80::2", index=3), seed=2)
    server = Caller(tgid=7, number=23, address=0x2000, device="mlx5_3")
    facts = [server.make(), server.init(), server.receive(17, "fe80::1", local_gid_index=3), server.ready()]
    one = only(here.take(*Caller().connect(23, "fe80::2")).report(LATER), "RDMA connect")
    other = only(there.take(*facts).report(LATER), "RDMA connect")
    assert one["trace"] == other["trace"]
    assert one["id"] != other["id"]
    assert (one["links"], other["links"]) == ([other["id"]], [one["id"]])


def test_another_connection_has_another_trace() -> None:
    one, other = Caller(), Caller(number=18, address=0x2000)
    found = Host().take(*one.connect(), *other.connect()).report(LATER)
    assert len({each["trace"] for each in found}) == 2


def test_both_ends_on_one_host_know_each_others_pod() -> None:
    one = Caller(tgid=100, number=17)
    other = Caller(tgid=200, number=23, address=0x2000)
    host = Host(port(address="fe80::1"))
    host.take(*one.connect(23, "fe80::1"), *other.connect(17, "fe80::1"))
    found = {each["rdma.qp.number"]: each for each in host.report(20 * MS)}
    assert found[17]["rdma.peer.k8s.pod.name"] == "pod200"
    assert found[23]["rdma.peer.service.name"] == "rank100"
    assert found[23]["rdma.peer.process.pid"] == 100
    assert (found[17]["owner"], found[23]["owner"]) == (process(100), process(200))


def test_a_peer_elsewhere_has_no_pod() -> None:
    span = only(Host().take(*Caller().connect()).report(LATER), "RDMA connect")
    assert not [key for key in span if key.startswith("rdma.peer.k8s")]


def test_a_connection_waits_for_what_is_known_of_its_port() -> None:
    host = Host(port("other0"))
    host.take(*Caller().connect())
    assert not host.report(2 * SECOND)
    host.session.learn(port())
    assert only(host.report(2 * SECOND), "RDMA connect")["rdma.connection.identity"] == "ends"


def test_but_not_for_ever() -> None:
    host = Host(port("other0"))
    span = only(host.take(*Caller().connect()).report(LATER), "RDMA connect")
    assert span["rdma.connection.identity"] == "local"
    assert "rdma.gid" not in span
    assert not span["links"]


def test_a_datagram_queue_pair_has_no_other_end() -> None:
    caller = Caller(fields={"type": "ud"})
    facts = [caller.make(), caller.init(), caller.receive(0, ""), caller.ready()]
    span = only(Host().take(*facts).report(20 * MS), "RDMA connect")
    assert span["rdma.connection.identity"] == "local"


def test_a_connection_that_failed_says_so() -> None:
    caller = Caller()
    host = Host().take(caller.make(), caller.init(), caller.receive(error=110), caller.destroy())
    found = host.report(LATER)
    span = only(found, "RDMA connect")
    assert (span["failed"], span["message"]) == (True, "errno 110")
    assert len(found) == 1


def test_a_queue_pair_that_never_tried_is_counted_and_not_reported() -> None:
    caller = Caller()
    host = Host().take(caller.make(), caller.init(), caller.destroy())
    assert not host.report(LATER)
    assert host.session.counters["never_connected"] == 1


def test_who_connected_and_who_accepted_is_reported_where_a_manager_did_it() -> None:
    caller = Caller()
    made, *rest = caller.connect()
    by = ObjectChanged(time_ns=5, tgid=100, call="rdma_connect", object=0x1000, removed=False)
    span = only(Host().take(made, by, *rest).report(LATER), "RDMA connect")
    assert span["rdma.role"] == "client"


# -- Lives -----------------------------------------------------------------------------------------------


def used(caller: Caller, **more: Any) -> QueuePairCounts:
    given: dict[str, Any] = {
        "work_requests": {"write": 500, "receive": 20},
        "bytes": {"write": 2_048_000, "receive": 80_000},
        "posts": 510,
        "signalled": 5,
        "completions": 5,
        "statuses": {"success": 5},
        "latencies": {14: 5},
        "latency_sum_ns": 100_000,
        "observed_post_ns": 3600 * SECOND,
        "observed_poll_ns": 3600 * SECOND,
    }
    return caller.counted(**given | more)


def test_a_queue_pairs_life_has_its_totals_below_the_connection() -> None:
    caller = Caller()
    host = Host().take(*caller.connect())
    connect = only(host.report(LATER), "RDMA connect")
    host.take(used(caller), destroyed := caller.destroy())
    life = only(host.report(LATER), "RDMA queue pair")
    assert (life["trace"], life["parent"]) == (connect["trace"], connect["id"])
    assert (life["start"], life["end"]) == (connect["end"], destroyed.time_ns)
    assert (life["rdma.total.work_requests"], life["rdma.total.bytes"]) == (500, 2_048_000)
    assert (life["rdma.total.completions"], life["rdma.total.failures"]) == (5, 0)
    assert not life["failed"]
    assert "rdma.observed.post_ratio" not in life


def test_completions_that_failed_make_it_an_error_and_flushed_ones_do_not() -> None:
    caller = Caller()
    flushed = used(caller, statuses={"success": 5, "flushed": 9})
    host = Host().take(*caller.connect(), flushed, caller.destroy())
    assert not only(host.report(LATER), "RDMA queue pair")["failed"]
    caller = Caller()
    broken = used(caller, statuses={"success": 5, "flushed": 9, "retries_exceeded": 1}, vendor_error=0x81)
    host = Host().take(*caller.connect(), broken, caller.destroy())
    life = only(host.report(LATER), "RDMA queue pair")
    assert (life["failed"], life["message"]) == (True, "retries_exceeded")
    assert (life["rdma.vendor_error"], life["rdma.total.failures"]) == (0x81, 10)


def test_counts_that_come_after_the_end_are_in_the_totals() -> None:
    caller = Caller()
    host = Host().take(*caller.connect(), caller.destroy())
    host.report(caller.now_ns + 100 * MS)
    host.take(used(caller))
    assert only(host.report(LATER), "RDMA queue pair")["rdma.total.work_requests"] == 500


def test_one_that_was_there_before_is_a_root_and_marked() -> None:
    caller = Caller()
    host = Host().take(used(caller), caller.destroy())
    life = only(host.report(LATER), "RDMA queue pair")
    assert (life["parent"], life["rdma.qp.late"]) == (ROOT, True)
    assert life["rdma.total.bytes"] == 2_048_000


def test_one_that_is_open_when_the_session_ends_is_reported_so_far() -> None:
    caller = Caller()
    found = Host().take(*caller.connect(), used(caller)).report(2 * SECOND, final=True)
    life = only(found, "RDMA queue pair")
    assert (life["rdma.qp.open"], life["end"]) == (True, 2 * SECOND)
    assert life["parent"] == only(found, "RDMA connect")["id"]


def test_a_process_that_ends_is_reported_with_its_own_resource() -> None:
    caller = Caller()
    host = Host().take(*caller.connect(), used(caller))
    host.session.forget_process(100, SECOND)
    found = host.report(SECOND)
    assert [each["name"] for each in found] == ["RDMA connect", "RDMA queue pair"]
    assert {each["owner"] for each in found} == {process(100)}
    assert only(found, "RDMA queue pair")["end"] == SECOND
    assert not host.report(LATER, final=True)
    assert not host.points("rdma.queue_pairs")


def test_a_queue_pair_that_connects_again_has_a_trace_of_its_own() -> None:
    caller, host = Caller(), Host()
    first = only(host.take(*caller.connect()).report(LATER), "RDMA connect")
    again = [caller.reset(), caller.init(), caller.receive(), caller.ready()]
    second = only(host.take(*again).report(2 * LATER), "RDMA connect")
    assert first["trace"] != second["trace"]


# -- Events and transfers --------------------------------------------------------------------------------


def event(**fields: Any) -> FabricEvent:
    given: dict[str, Any] = {"time_ns": 50 * MS, "tgid": 100, "source": EventSource.DEVICE, "device": "rxe0"}
    return FabricEvent(**given | {"event": "qp_fatal", "failed": True, "object": 0x1000} | fields)


def transfer(**fields: Any) -> TransferSeen:
    given: dict[str, Any] = {
        "time_ns": 50 * MS,
        "duration_ns": 9,
        "tgid": 100,
        "tid": 101,
        "queue_pair": 0x1000,
    }
    reported: dict[str, Any] = {
        "number": 17,
        "id": 0xAB,
        "bytes": 4096,
        "operation": "write",
        "status": "success",
    }
    return TransferSeen(**given | reported | fields)


def test_an_event_of_a_queue_pair_stands_below_its_connection() -> None:
    host = Host().take(*Caller().connect(), event())
    found = host.report(LATER)
    span, connect = only(found, "RDMA event qp_fatal"), only(found, "RDMA connect")
    assert (span["trace"], span["parent"]) == (connect["trace"], connect["id"])
    assert (span["start"], span["end"], span["failed"]) == (50 * MS, 50 * MS, True)
    assert host.points("rdma.events") == {("rxe0", "qp_fatal", "device"): 1}


def test_an_event_of_a_port_stands_below_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_session, "PORT_SPANS", 2)
    callers = [Caller(number=number, address=number) for number in (17, 18, 19)]
    host = Host().take(*(fact for each in callers for fact in each.connect()))
    host.report(LATER)
    host.take(event(event="port_error", object=0, number=1, of_port=True))
    assert [each["rdma.qp.number"] for each in host.report(LATER)] == [17, 18]
    assert host.session.counters["events_not_reported"] == 1
    host.take(event(event="port_error", object=0, number=2, of_port=True))
    assert not host.report(LATER)
    assert sum(host.points("rdma.events").values()) == 2


def test_a_work_request_waits_for_its_connections_span() -> None:
    host = Host(port("other0")).take(*Caller().connect(), transfer(status="remote_access_error"))
    assert not host.report(50 * MS)
    found = host.report(LATER)
    span, connect = only(found, "RDMA write"), only(found, "RDMA connect")
    assert (span["trace"], span["parent"]) == (connect["trace"], connect["id"])
    assert (span["start"], span["end"]) == (50 * MS, 50 * MS + 9)
    assert (span["rdma.transfer.size"], span["rdma.work_request.id"]) == (4096, "0xab")
    assert (span["failed"], span["message"]) == (True, "remote_access_error")


def test_a_work_request_of_no_known_connection_is_counted() -> None:
    host = Host().take(transfer())
    assert not host.report(LATER)
    assert host.session.counters["transfers_not_reported"] == 1


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_session, "PENDING", 1)
    host = Host().take(*Caller().connect(), transfer(), transfer())
    assert host.session.counters["transfers_not_reported"] == 1
    assert len(host.report(LATER)) == 2


# -- Metrics ---------------------------------------------------------------------------------------------

LABELS = ("rxe0", 1, 17, "rc")


def test_what_was_counted_is_reported_exactly() -> None:
    caller = Caller()
    host = Host().take(*caller.connect(), used(caller))
    caller.now_ns += SECOND
    twice = {"work_requests": {"write": 501, "receive": 20}, "bytes": {"write": 2_048_100, "receive": 80_000}}
    host.take(used(caller, **twice, statuses={"success": 6}, completions=6))
    host.report(LATER)
    labels = ("rxe0", "write", 1, 17, "rc")
    assert host.points("rdma.qp.work_requests")[labels] == 501
    assert host.points("rdma.qp.io")[labels] == 2_048_100
    assert host.points("rdma.qp.posts") == {LABELS: 510}
    assert host.points("rdma.qp.completions") == {(*LABELS, "success"): 6}
    assert host.points("rdma.qp.post.errors") == {}
    assert host.points("rdma.qp.completion.latency") == {LABELS: 5}


def test_counts_that_come_before_what_they_are_of_wait_for_it() -> None:
    """They are read from a map after the ring was emptied."""
    caller, host = Caller(), Host()
    early = counts(5 * MS, caller.tgid, caller.address, caller.number, work_requests={"send": 2})
    late = counts(6 * MS, caller.tgid, caller.address, caller.number, work_requests={"send": 5})
    host.take(early).report(7 * MS)
    host.take(caller.make(), late).report(12 * MS)  # its port is not known
    assert not host.points("rdma.qp.work_requests")
    host.take(caller.init()).report(13 * MS)
    assert host.points("rdma.qp.work_requests") == {("rxe0", "send", 1, 17, "rc"): 5}
    host.take(counts(SECOND, caller.tgid, caller.address, caller.number, work_requests={"send": 9}))
    assert host.points("rdma.qp.work_requests") == {("rxe0", "send", 1, 17, "rc"): 9}


@pytest.mark.parametrize("ended", [False, True], ids=["time passes", "the process ends"])
def test_but_not_for_ever_where_nothing_is_learnt(ended: bool) -> None:
    host = Host()
    host.take(counts(MS, 100, 0x1000, 17, work_requests={"send": 2})).report(IDENTITY_NS)
    assert not host.points("rdma.qp.work_requests")
    if ended:
        host.session.forget_process(100, IDENTITY_NS)
    else:
        host.report(IDENTITY_NS + MS)
    assert host.points("rdma.qp.work_requests") == {("send", 17): 2}


def test_one_that_was_there_before_is_placed_by_the_drivers_counters() -> None:
    host = Host()
    for device, number in (("rxe0", 17), ("rxe0", 18), ("rxe1", 18)):
        host.session.learn(
            QueuePairReadings(time_ns=1, device=device, port=1, number=number, tgid=100, values={})
        )
    for number in (17, 18):
        host.take(counts(MS, 100, 0x1000 * number, number, work_requests={"send": 2}))
    host.report(IDENTITY_NS + MS)
    assert host.points("rdma.qp.work_requests") == {("rxe0", "send", 1, 17): 2, ("send", 18): 2}


@pytest.mark.parametrize("ports", [1, 2])
def test_one_that_was_there_before_is_on_the_port_of_a_device_that_has_no_other(ports: int) -> None:
    host = Host()
    for number in range(1, ports + 1):
        host.session.learn(port(port=number))
    caller = Caller()
    host.take(caller.ready(port=0)).report(caller.now_ns)
    host.take(used(caller), caller.destroy()).report(LATER)
    assert host.points("rdma.qp.posts") == {("rxe0", *([1] if ports == 1 else []), 17, "rc"): 510}


def test_latencies_keep_their_powers_of_two() -> None:
    caller = Caller()
    host = Host().take(*caller.connect())
    host.take(used(caller, latencies={3: 1, 7: 1, 8: 2, 14: 5, 31: 3}, latency_sum_ns=7 * SECOND))
    table = host.metrics._tables[process(100), "rdma.qp.completion.latency"]
    (series,) = table.series.values()
    assert series.buckets is not None
    bounds = [0.0, *qp.LATENCY.buckets]
    reported = {bounds[place]: int(count) for place, count in enumerate(series.buckets) if count}
    assert reported == {0.0: 2, 2**8 / 1e9: 2, 2**14 / 1e9: 5, 2**31 / 1e9: 3}
    assert (series.count, series.total) == (12, 7.0)
    data, _ = host.metrics.read(1)
    (metric,) = [
        metric
        for each in data.resource_metrics
        for scope in each.scope_metrics
        for metric in scope.metrics
        if metric.name == qp.LATENCY.name
    ]
    assert not metric.histogram.data_points[0].HasField("min")


def test_outstanding_is_what_will_complete_and_has_not() -> None:
    caller = Caller()
    host = Host().take(*caller.connect(), used(caller))
    assert host.points("rdma.qp.outstanding") == {LABELS: 20}


@pytest.mark.parametrize(
    "why",
    [
        {"observed_poll_ns": 0},
        {"observed_post_ns": 0},
        {"uncounted": 1},
        {"statuses": {"success": 4, "flushed": 1}},
        {"completions": 400},
        {"work_requests": {"write": 500}, "completed_bytes": 10},
    ],
    ids=["polls", "posts", "chain", "flushed", "more", "shared"],
)
def test_outstanding_is_absent_where_it_cannot_be_known(why: dict[str, Any]) -> None:
    caller = Caller()
    host = Host().take(*caller.connect(), used(caller))
    other = Caller(number=18, address=0x2000)
    host.take(*other.connect(), used(other, **why))
    assert host.points("rdma.qp.outstanding") == {LABELS: 20}


def test_one_that_was_counted_from_after_it_was_made_has_no_outstanding() -> None:
    caller = Caller()
    host = Host().take(*caller.connect(), used(caller, counted_ns=1))
    assert not host.points("rdma.qp.outstanding")


def test_one_that_was_there_before_has_no_outstanding() -> None:
    assert not Host().take(used(Caller())).points("rdma.qp.outstanding")


def test_posts_that_were_observed_for_half_of_the_time_are_also_estimated() -> None:
    caller = Caller()
    host = Host().take(*caller.connect(), used(caller, observed_post_ns=0))
    at = {"observed_post_ns": SECOND // 2, "observed_poll_ns": 3600 * SECOND + SECOND // 10}
    caller.now_ns += SECOND
    host.take(used(caller, **at, work_requests={"write": 600, "receive": 20}))
    write = ("rxe0", "write", 1, 17, "rc")
    assert host.points("rdma.qp.work_requests")[write] == 600
    assert host.points("rdma.qp.work_requests.estimated")[write] == 500 + 200
    ratios = host.points("rdma.observed.ratio")
    assert ratios["rxe0", "post", 1, 17, "rc"] == pytest.approx(0.5)
    assert ratios["rxe0", "poll", 1, 17, "rc"] == pytest.approx(0.1)
    caller.destroy()
    host.take(caller.destroy())
    life = only(host.report(LATER), "RDMA queue pair")
    assert life["rdma.observed.post_ratio"] == pytest.approx(0.5)


def test_nothing_is_estimated_where_all_was_observed() -> None:
    caller = Caller()
    host = Host().take(*caller.connect(), used(caller))
    assert not host.points("rdma.qp.work_requests.estimated")


def test_queue_pairs_beyond_the_limit_share_series(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    host.session._metrics._limit = 2
    callers = [Caller(number=number, address=number) for number in range(17, 22)]
    for each in callers:
        host.take(*each.connect(), used(each))
    host.report(LATER)
    reported = host.points("rdma.qp.posts")
    assert reported == {("rxe0", 1, 17, "rc"): 510, ("rxe0", 1, 18, "rc"): 510, (True, "rxe0", "rc"): 3 * 510}
    assert len(host.points("rdma.qp.status")) == 2
    assert host.session.counters["queue_pairs_without_series"] == 3
    assert host.points("rdma.queue_pairs") == {("rxe0", "ready_to_send"): 5}


def test_series_of_what_ended_are_reported_for_a_while_and_make_room() -> None:
    caller = Caller()
    host = Host().take(*caller.connect(), used(caller), caller.destroy())
    host.session._metrics._limit = 1
    host.report(LATER)
    assert host.points("rdma.qp.posts") == {LABELS: 510}
    assert not host.points("rdma.qp.status")
    assert not host.points("rdma.observed.ratio")
    host.report(LATER + queue_pair_metrics.LINGER_NS)
    assert not host.points("rdma.qp.posts")
    other = Caller(number=18, address=0x2000)
    host.take(*other.connect(), used(other))
    assert host.points("rdma.qp.posts") == {("rxe0", 1, 18, "rc"): 510}


def test_a_shared_receive_queue_has_a_type_and_no_number() -> None:
    srq = counts(50 * MS, 100, 0x9000, 0, posts=4, work_requests={"receive": 64})
    unknown = counts(50 * MS, 100, 0, 0, completions=3, statuses={"success": 3})
    host = Host().take(together(srq, unknown))
    assert host.points("rdma.qp.work_requests") == {("receive", "srq"): 64}
    assert host.points("rdma.qp.completions") == {("unknown", "success"): 3}
    assert not host.report(LATER)


def test_a_queue_pairs_state_replaces_the_one_before() -> None:
    caller = Caller()
    host = Host().take(*caller.connect())
    host.report(20 * MS)
    assert list(host.points("rdma.qp.status")) == [("rxe0", "fe80::2", 23, 1, 17, "ready_to_send", "rc")]
    host.take(caller.error())
    host.report(30 * MS)
    assert [each[5] for each in host.points("rdma.qp.status")] == ["error"]
    assert host.points("rdma.queue_pairs") == {("rxe0", "error"): 1}


def test_pinned_memory_stands_by_device_and_kind() -> None:
    given: dict[str, Any] = {"time_ns": 1, "tgid": 100, "device": "rxe0", "removed": False}
    host = Host().take(
        RegionChanged(**given, region=1, bytes=4096), RegionChanged(**given, region=2, bytes=50, dmabuf=True)
    )
    host.report(SECOND)
    assert host.points("rdma.memory.pinned") == {("rxe0", "host"): 4096, ("rxe0", "dmabuf"): 50}
    host.take(RegionChanged(**given | {"removed": True}, region=1, bytes=0))
    host.report(SECOND)
    assert host.points("rdma.memory.pinned")["rxe0", "host"] == 0
    assert host.points("rdma.memory.regions")["rxe0", "dmabuf"] == 1
    host.session.forget_process(100, SECOND)
    assert not host.points("rdma.memory.pinned")


def test_counts_that_cannot_be_reach_no_metric() -> None:
    caller = Caller()
    host = Host().take(*caller.connect(), used(caller))
    caller.now_ns += SECOND
    host.take(used(caller, posts=510 + MOST))
    assert host.points("rdma.qp.posts") == {LABELS: 510}
    assert host.session.counters["counts_implausible"] == 1


# -- Owners and loss -------------------------------------------------------------------------------------


def communicator(hash_: int = 0xBEEF) -> CommunicatorSeen:
    return CommunicatorSeen(tgid=100, time_ns=1, address=1, hash=hash_, rank=0, ranks=2)


def lose(host: Host, time_ns: int, value: int) -> None:
    values = {"rcvd_seq_err": value, "out_of_seq_request": value}
    host.session.learn(PortReadings(time_ns=time_ns, device="rxe0", port=1, values=values))


def test_a_queue_pairs_communicator_is_on_its_spans_and_its_status() -> None:
    host = Host()
    host.session.learn_communicators([communicator()])
    span = only(host.take(*Caller().connect()).report(LATER), "RDMA connect")
    assert (span["nccl.communicator.hash"], span["rdma.communicator.source"]) == (
        "000000000000beef",
        "only_communicator",
    )
    assert next(iter(host.points("rdma.qp.status")))[0] == "000000000000beef"
    (context,) = host.session.connections(100, 0xBEEF)
    assert context.span_id == span["id"]
    assert not host.session.connections(100, 0xDEAD)


def test_a_communicator_that_is_known_later_is_shown_then() -> None:
    host = Host().take(*Caller().connect())
    host.report(LATER)
    assert not host.session.connections(100, 0xBEEF)
    host.session.learn_communicators([communicator()])
    host.report(LATER)
    assert [each[0] for each in host.points("rdma.qp.status")] == ["000000000000beef"]
    assert len(host.session.connections(100, 0xBEEF)) == 1


def test_loss_of_a_port_is_charged_to_the_queue_pair_that_lost() -> None:
    clean, lossy = Caller(), Caller(number=18, address=0x2000)
    host = Host().take(*clean.connect(), *lossy.connect(24))
    host.session.learn_communicators([communicator()])
    lose(host, SECOND, 100)
    fast = {"latencies": {14: 1000}}
    for each, slow in ((clean, {}), (lossy, {26: 9})):
        host.take(counts(2 * SECOND, 100, each.address, each.number, latencies=fast["latencies"] | slow))
    lose(host, 2 * SECOND, 117)
    host.report(9 * SECOND)
    assert host.points("rdma.qp.losses") == {
        ("000000000000beef", "rxe0", "latency", "rcvd_seq_err", "sequence_nak", 1, 18, "rc"): 17
    }
    assert not host.points("rdma.qp.losses", OWN)


def test_loss_that_nobody_can_be_charged_with_is_reported_of_the_port_alone() -> None:
    one, other = Caller(), Caller(number=18, address=0x2000)
    host = Host().take(*one.connect(), *other.connect(24))
    lose(host, SECOND, 100)
    lose(host, 2 * SECOND, 117)
    host.report(9 * SECOND)
    assert not host.points("rdma.qp.losses")
    assert host.points("rdma.qp.losses", OWN) == {("rxe0", "unknown", "rcvd_seq_err", "sequence_nak", 1): 17}


def test_loss_of_a_process_that_ended_is_reported_of_the_agent_with_its_number() -> None:
    host = Host().take(*Caller().connect(), used(Caller()))
    lose(host, SECOND, 100)
    host.session.forget_process(100, SECOND + 500 * MS)
    host.report(SECOND + 500 * MS)
    lose(host, 2 * SECOND, 105)
    host.report(9 * SECOND)
    assert host.points("rdma.qp.losses", OWN) == {
        (100, "rxe0", "only_queue_pair", "rcvd_seq_err", "sequence_nak", 1, 17, "rc"): 5
    }


def test_every_metric_that_is_reported_is_listed_with_its_attributes() -> None:
    caller = Caller()
    host = Host().take(
        *caller.connect(), used(caller, vendor_error=3, uncounted=1, inlined=1, posts_failed=1)
    )
    host.take(event(), RegionChanged(time_ns=1, tgid=100, device="rxe0", removed=False, region=1, bytes=4096))
    host.report(LATER)
    listed = {metric.name: set(keys) for metric, keys in qp.METRICS.items()}
    for (_, name), table in host.metrics._tables.items():
        if table.scope == qp.SCOPE:
            for labels in table.series:
                assert {key for key, _ in labels} <= listed[name]
