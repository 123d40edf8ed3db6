"""What was seen at a verdict's place and time is told with it; what was elsewhere or long ago is not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from otelgpu.diagnose.ranks.coincidences import AROUND_S, MOST, Observation, with_coincidences
from otelgpu.diagnose.ranks.verdicts import RankVerdict

SLOW = RankVerdict(
    klass="slow_worker",
    ranks=[3],
    hosts=["node1"],
    first_step=40,
    last_step=50,
    persistent=False,
    start_unix_s=1000.0,
    end_unix_s=1100.0,
    confidence=1.0,
    next="look at it",
)
XID = Observation(
    rank=-1, host="node1", begin_s=1050.0, end_s=1050.0, name="xid", value=79.0, text="Xid 79: off the bus"
)


def told(*seen: Observation, verdict: RankVerdict = SLOW) -> list[str]:
    return [each.text for each in with_coincidences(verdict, list(seen)).evidence]


def test_an_error_of_the_host_meanwhile_is_told() -> None:
    assert told(XID) == ["meanwhile on node1: Xid 79: off the bus"]


def test_the_same_one_again_is_counted() -> None:
    assert told(XID, replace(XID, begin_s=1060.0, end_s=1060.0)) == [
        "meanwhile on node1: Xid 79: off the bus, 2 times"
    ]


def test_what_a_counter_grew_by_is_added_up_and_comes_after_errors() -> None:
    counted = [
        replace(XID, name="rdma.port.retries", value=value, text="requests sent again (mlx5_0)")
        for value in (1240.0, 2.5)
    ]
    assert told(*counted, XID) == [
        "meanwhile on node1: Xid 79: off the bus",
        "meanwhile on node1: requests sent again (mlx5_0): 1,242.5",
    ]


@pytest.mark.parametrize(
    "elsewhere",
    [
        replace(XID, host="node2"),
        replace(XID, rank=4),
        replace(XID, begin_s=900.0, end_s=1000.0 - AROUND_S - 1),
        replace(XID, begin_s=1100.0 + AROUND_S + 1, end_s=1300.0),
    ],
)
def test_what_was_elsewhere_or_at_another_time_is_not(elsewhere: Observation) -> None:
    assert told(elsewhere) == []


def test_of_many_kinds_the_first_are_told() -> None:
    assert len(told(*(replace(XID, value=float(number)) for number in range(10)))) == MOST


def test_a_verdict_of_no_time_has_none() -> None:
    assert told(XID, verdict=replace(SLOW, start_unix_s=0.0, end_unix_s=0.0)) == []
