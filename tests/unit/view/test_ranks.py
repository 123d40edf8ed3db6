"""Which rank a process is, as far as its collectives tell, and which steps of ranks belong together."""

from __future__ import annotations

import pytest

from tests.unit.view.otlp_lines import MS, span, traces
from tests.unit.view.page_program import PageProgram, batch

RANKS = "Array.from({ length: model.length }, (_, row) => rankOrPid(model, row))"
PEERS = "sameStep(model, 0).map((row) => model.ids[row].replace(/^0+/, ''))"


def calls(pid: int, *places: tuple[str, int, int]) -> bytes:
    """A process's calls: in which communicator, as which rank, of how many."""
    made = [
        span(
            5_000 + pid + at,
            trace=pid,
            given={
                "nccl.phase": "enqueue",
                "nccl.communicator.hash": name,
                "nccl.rank": rank,
                "nccl.communicator.ranks": of,
            },
        )
        for at, (name, rank, of) in enumerate(places)
    ]
    return traces(*made, scope="otelgpu.nccl", **{"process.pid": pid})


def step(pid: int, *, number: int = 6, at: int = 0) -> bytes:
    given = {"otelgpu.step.number": number}
    return traces(
        span(pid, trace=pid, at=at, ns=10 * MS, given=given), scope="otelgpu.training", **{"process.pid": pid}
    )


@pytest.mark.parametrize(
    ("places", "rank"),
    [
        ([("a", 3, 8)], 3),
        ([("a", 1, 2), ("b", 5, 8)], 5),  # the largest communicator is the job
        ([("a", 3, 8), ("b", 3, 8)], 3),
        ([("a", 3, 8), ("b", 4, 8)], "PID 700"),  # which of them, nobody knows
        ([("a", 0, 2), ("b", 1, 2), ("c", 5, 8)], 5),
    ],
)
def test_a_process_has_the_rank_of_its_largest_communicator(
    program: PageProgram, places: list[tuple[str, int, int]], rank: int | str
) -> None:
    assert program.ask(RANKS, [batch(calls(700, *places))]) == [rank] * len(places)


def test_a_process_without_collectives_is_named_by_its_pid(program: PageProgram) -> None:
    assert program.ask(RANKS, [batch(step(700))]) == ["PID 700"]


def test_steps_of_one_number_are_together_if_they_ran_together_in_one_job(program: PageProgram) -> None:
    lines = [
        *(step(700), step(800, at=MS), step(900, at=2 * MS, number=7)),
        *(step(950, at=500 * MS), step(970)),  # from another begin; of another job
        *(calls(700, ("a", 1, 4)), calls(800, ("a", 0, 4)), calls(900, ("a", 2, 4)), calls(950, ("a", 3, 4))),
        calls(970, ("z", 0, 4)),
    ]
    found = program.ask(PEERS, [batch(*lines)])
    assert found == [f"{800:x}", f"{700:x}"]  # by rank


def test_hostile_ranks_are_none(program: PageProgram) -> None:
    given = {
        "nccl.phase": "enqueue",
        "nccl.communicator.hash": 7,
        "nccl.rank": "1",
        "nccl.communicator.ranks": "x",
    }
    line = traces(span(1, given=given), scope="otelgpu.nccl", **{"process.pid": 5})
    assert program.ask(RANKS, [batch(line)]) == ["PID 5"]
