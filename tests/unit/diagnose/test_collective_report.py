"""Clock offsets and late ranks are found in collectives of hosts whose clocks are off by known amounts."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.diagnose.collective_calls import Gatherer
from otelgpu.diagnose.collective_report import CollectiveReport, analyze
from tests.rig.examples import examples
from tests.unit.diagnose.otlp_collectives import MS, Host, collectives


def report(*hosts: Host, documents: list[Any] | None = None) -> CollectiveReport:
    gatherer = Gatherer()
    documents = documents if documents is not None else [host.document() for host in hosts]
    gatherer.take(map(msgspec.json.encode, documents))
    return analyze(gatherer.columns(), gatherer.skips)


def three_hosts() -> list[Host]:
    return [Host("a", (0, 1)), Host("b", (2, 3), ahead_ns=5 * MS), Host("c", (4, 5), ahead_ns=-3 * MS)]


def late_rank(number: int, rank: int) -> int:
    return 8 * MS if rank == 3 else rank * 1000


def test_offsets_of_clocks_are_found_and_reported_with_their_spread() -> None:
    hosts = three_hosts()
    noise = Random(7)
    collectives(hosts, 101, late_rank, jitter_ns=lambda *_: noise.randrange(-20_000, 20_000))
    clocks = {clock.host: clock for clock in report(*hosts).hosts}
    assert [clocks[host].offset_s for host in "abc"] == pytest.approx([0, 5e-3, -3e-3], abs=10e-6)
    assert all(0 < (clock.spread_s or 0) < 40e-6 for clock in clocks.values())
    assert {clock.ends for clock in clocks.values()} == {202}


def test_the_late_rank_is_found_whatever_the_clocks_say() -> None:
    hosts = three_hosts()
    collectives(hosts, 20, late_rank)
    ranks = report(*hosts).ranks
    assert (ranks[0].rank, ranks[0].host, ranks[0].last, ranks[0].certain) == (3, "b", 1.0, True)
    assert ranks[0].median_s == pytest.approx(8e-3, abs=2e-6)
    assert max(each.median_s for each in ranks[1:]) < 10e-6


def test_what_is_smaller_than_the_spread_of_the_clocks_is_not_certain() -> None:
    hosts = three_hosts()
    noise = Random(3)
    collectives(
        hosts, 50, lambda _, rank: 50_000 * (rank == 3), jitter_ns=lambda *_: noise.randrange(-MS, MS)
    )
    slowest = report(*hosts).ranks[0]
    assert not slowest.certain
    assert slowest.uncertainty_s > slowest.median_s


def test_hosts_that_share_no_collective_agree_through_one_that_shares_with_both() -> None:
    a, b, c = three_hosts()
    collectives([a, b], 11, lambda *_: 0, communicator=1)
    collectives([b, c], 31, lambda *_: 0, communicator=2)
    clocks = {clock.host: clock for clock in report(a, b, c).hosts}
    assert {clock.group for clock in clocks.values()} == {0}
    assert [clocks[host].offset_s for host in "abc"] == pytest.approx([0, 5e-3, -3e-3], abs=1e-6)


def test_hosts_without_common_ends_are_compared_with_themselves_only() -> None:
    hosts = three_hosts()
    collectives(hosts, 5, late_rank, waits=False)
    found = report(*hosts)
    assert [clock.offset_s for clock in found.hosts] == [None, None, None]
    assert [clock.group for clock in found.hosts] == [0, 1, 2]
    assert {each.rank: each.uncertainty_s for each in found.ranks} == dict.fromkeys(range(6), 0.0)
    assert max(each.median_s for each in found.ranks) == pytest.approx(8e-3 - 2e-6)  # rank 3 after rank 2


def test_one_rank_alone_is_compared_with_nobody() -> None:
    host = Host("a", (0,))
    collectives([host], 3, late_rank)
    found = report(host)
    assert (found.collectives, found.compared, found.ranks) == (3, 0, [])
    assert found.counters == {"calls_not_compared": 3}


def test_bandwidth_is_reported_per_communicator_and_source_of_time() -> None:
    host = Host("a", (0, 1))
    collectives([host], 3, late_rank)
    (found,) = report(host).bandwidths
    assert (found.communicator, found.operation, found.time_source) == (
        "0x00000000000000ab",
        "AllReduce",
        "host_wait",
    )
    assert (found.calls, found.algorithm, found.bus) == (6, 2.0e9, 3.0e9)


def test_a_host_without_a_name_goes_by_its_file() -> None:
    host = Host("", (0, 1))
    collectives([host], 1, late_rank)
    gatherer = Gatherer()
    gatherer.take([msgspec.json.encode(host.document())], source="node-7.jsonl")
    assert gatherer.columns().hosts == ["node-7.jsonl"]


@pytest.mark.parametrize(
    "broken",
    [
        {"resourceSpans": 3},
        {"resourceSpans": [3]},
        {"resourceSpans": [{"scopeSpans": [{"scope": 4}]}]},
        [1],
    ],
    ids=["number", "list-of-numbers", "scope", "list"],
)
def test_documents_of_another_shape_are_counted(broken: Any) -> None:
    assert report(documents=[broken]).counters == {"lines_unreadable": 1}


@pytest.mark.parametrize("attribute", [{"key": 3}, {"key": "host.name", "value": {"intValue": "x"}}])
def test_a_resource_that_cannot_be_read_is_counted_and_its_spans_are_of_the_file(attribute: Any) -> None:
    host = Host("a", (0, 1))
    collectives([host], 1, late_rank)
    document = host.document()
    document["resourceSpans"][0]["resource"]["attributes"] = [attribute]
    gatherer = Gatherer()
    gatherer.take([msgspec.json.encode(document)], source="node-7.jsonl")
    assert gatherer.skips.counts == {"resources_unreadable": 1}
    assert gatherer.columns().hosts == ["node-7.jsonl"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("spanId", "xy"), ("startTimeUnixNano", "-1"), ("startTimeUnixNano", str(1 << 70)), ("traceId", None)],
)
def test_spans_that_cannot_be_read_are_counted(field: str, value: Any) -> None:
    host = Host("a", (0, 1))
    collectives([host], 1, late_rank)
    host.spans[0][field] = value
    found = report(host)
    assert found.counters["spans_unreadable"] == 1
    assert len([span for span in host.spans if span["spanId"] != "xy"]) in (3, 4)


@examples(15)
@given(
    ahead=st.lists(st.integers(-(10**9), 10**9), min_size=2, max_size=4),
    slow=st.integers(0, 3),
    late=st.integers(1, 50),
    order=st.randoms(use_true_random=False),
)
def test_neither_clocks_nor_the_order_of_documents_change_who_is_late(
    ahead: list[int], slow: int, late: int, order: Any
) -> None:
    hosts = [Host(f"h{number}", (number,), ahead_ns) for number, ahead_ns in enumerate(ahead)]
    slow %= len(hosts)
    collectives(hosts, 5, lambda _, rank: late * MS if rank == slow else 0)
    documents = [host.document() for host in hosts]
    expected = report(documents=documents)
    assert expected.ranks[0].rank == slow
    assert expected.ranks[0].median_s == pytest.approx(late * 1e-3, abs=1e-6)
    assert [clock.offset_s for clock in expected.hosts] == pytest.approx(
        [(ahead_ns - ahead[0]) * 1e-9 for ahead_ns in ahead], abs=1e-6
    )
    order.shuffle(documents)
    assert report(documents=documents) == expected
