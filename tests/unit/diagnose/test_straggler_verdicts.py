"""A straggler is a verdict; the last rank of a healthy job is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

import pytest

from otelgpu.diagnose.collective_calls import Gatherer
from otelgpu.diagnose.straggler_verdicts import LEAST_COLLECTIVES, straggler_verdicts
from otelgpu.diagnose.stragglers import analyze
from otelgpu.model.verdict import SpanReference, Verdict
from tests.unit.diagnose.otlp_collectives import MS, START, Host, collectives


def verdicts(late_ns: Callable[[int, int], int], *, count: int = 50, hosts: int = 3) -> list[Verdict]:
    """Of a job with two ranks on each host, whose clocks are off by 2 ms from one to the next."""
    made = [Host(f"n{n}", (2 * n, 2 * n + 1), ahead_ns=2 * n * MS) for n in range(hosts)]
    collectives(made, count, late_ns)
    gatherer = Gatherer()
    gatherer.take([json.dumps(host.document()).encode() for host in made])
    return straggler_verdicts(analyze(gatherer.columns(), gatherer.skips))


def test_a_straggler_is_found_with_its_place_its_cost_and_its_proof() -> None:
    (found,) = verdicts(lambda number, rank: 5 * MS + (number == 7) * MS if rank == 3 else MS * (rank == 5))
    assert found.kind == "straggler"
    assert found.place == {"host.name": "n1", "nccl.communicator.hash": f"0x{0xAB:016x}", "nccl.rank": 3}
    # What mending it would save ends where the next one is: rank 5, which is 1 ms late.
    assert found.cost_s == pytest.approx(50 * 4e-3 + 1e-3, abs=1e-5)
    assert found.confidence == 1.0
    assert (found.start_unix_ns, found.end_unix_ns) == (
        START + 7 * MS,
        START + 49 * 100 * MS + 7 * MS,
    )
    proof = SpanReference(
        trace_id=bytes.fromhex(f"{0xAB:08x}{7:024x}"), span_id=bytes.fromhex(f"{0xAB:04x}{7:08x}{3:04x}")
    )
    assert found.proof == proof  # the collective for which it was latest


@pytest.mark.parametrize("hosts", [1, 3])
def test_a_healthy_job_has_none(hosts: int) -> None:
    noise = Random(11)
    late = {(number, rank): noise.randrange(MS) for number in range(50) for rank in range(2 * hosts)}
    assert verdicts(lambda number, rank: late[number, rank], hosts=hosts) == []


def test_a_rank_that_is_always_last_by_what_costs_nothing_is_none() -> None:
    assert verdicts(lambda _, rank: 20_000 * rank) == []  # of 100 ms: 20 µs


def test_a_rank_that_is_late_now_and_then_is_none() -> None:
    assert verdicts(lambda number, rank: 30 * MS * (rank == 3 and number % 3 == 0)) == []


def test_few_collectives_say_nothing() -> None:
    def late(_: int, rank: int) -> int:
        return 5 * MS * (rank == 3)

    assert verdicts(late, count=LEAST_COLLECTIVES - 1) == []
    assert len(verdicts(late, count=LEAST_COLLECTIVES)) == 1


def test_two_that_are_late_together_cost_only_what_the_later_one_is_later() -> None:
    (found,) = verdicts(lambda _, rank: {2: 20 * MS, 3: 22 * MS}.get(rank, 0))
    assert found.place["nccl.rank"] == 3
    assert found.cost_s == pytest.approx(50 * 2e-3, abs=1e-5)
