"""Global ranks and step numbers of processes, from the communicators and collectives that they share."""

from __future__ import annotations

import doctest

from hypothesis import given
from hypothesis import strategies as st

from otelgpu.store import limits, sequences
from otelgpu.store.places import (
    Member,
    Place,
    Process,
    Shift,
    jobs_of,
    launchers_job,
    offsets,
    places,
    without_conflicts,
)
from otelgpu.store.readers import process_groups


def test_the_largest_communicator_gives_the_global_rank() -> None:
    members = [
        *(Member(process, "world", process, 4) for process in range(4)),
        *(Member(process, f"half{process % 2}", process // 2, 2) for process in range(4)),
    ]
    assert places(members) == {process: Place("world", process) for process in range(4)}


def test_of_two_processes_that_are_one_rank_neither_is_believed() -> None:
    members = [Member(0, "world", 0, 3), Member(1, "world", 1, 3), Member(2, "world", 1, 3)]
    assert places(members) == {0: Place("world", 0)}


def test_a_process_that_is_two_ranks_of_one_communicator_is_not_believed() -> None:
    assert places([Member(0, "world", 0, 2), Member(0, "world", 1, 2)]) == {}


def test_what_launchers_say_counts_where_no_communicator_is_as_large() -> None:
    launched = [Member(process, "job 17", process + 4, 8) for process in range(2)]
    pairs = [Member(process, "pair", process, 2) for process in range(2)]
    assert places([*pairs, *without_conflicts(launched)]) == {
        process: Place("job 17", process + 4) for process in range(2)
    }


def test_launchers_that_say_one_rank_of_two_processes_are_not_believed() -> None:
    launched = [
        Member(0, "job", 0, 2),
        Member(1, "job", 1, 2),
        Member(2, "job", 1, 2),
        Member(3, "job 2", 0, 2),
    ]
    assert without_conflicts(launched) == launched[3:]


def test_jobs_without_a_communicator_in_common_are_named_apart() -> None:
    processes = [Process("", "llama"), Process("", "llama"), Process("", "bert")]
    found = {0: Place("a", 0), 1: Place("b", 0), 2: Place("c", 0)}
    said: list[str] = []
    assert jobs_of(said, processes, found) == {0: "llama a", 1: "llama b", 2: "bert"}
    assert len(said) == 1


def test_jobs_have_their_launchers_names_where_these_tell_them_apart() -> None:
    processes = [Process("", "llama")] * 8
    found = {process: Place("abcdefgh"[process // 2], process % 2) for process in range(8)}
    launched = [Member(process, launchers_job("1122"[process]), process % 2, 2) for process in range(4)]
    launched += [
        Member(4, launchers_job("3"), 0, 2),  # only one of its two
        Member(6, launchers_job(""), 0, 2),
        Member(7, launchers_job(""), 1, 2),
    ]
    assert jobs_of([], processes, found, launched) == {
        **{0: "llama job 1", 1: "llama job 1", 2: "llama job 2", 3: "llama job 2"},
        **{4: "llama c", 5: "llama c", 6: "llama d", 7: "llama d"},
    }


def test_a_launchers_name_of_two_communicators_names_neither() -> None:
    found = {0: Place("a", 0), 1: Place("b", 0)}
    launched = [Member(process, launchers_job("1"), process, 2) for process in range(2)]
    assert jobs_of([], [Process("", "llama")] * 2, found, launched) == {0: "llama a", 1: "llama b"}


@given(
    begun=st.lists(st.integers(0, 100), min_size=1, max_size=8),
    strays=st.integers(0, 1),
)
def test_numbers_agree_whoever_began_to_count_when(begun: list[int], strays: int) -> None:
    """A chain of groups: each process shares collectives with the next one only."""
    shifts = [Shift(one, one + 1, begun[one] - begun[one + 1], 100) for one in range(len(begun) - 1)]
    shifts += [Shift(one, one + 1, 7777, 1) for one in range((len(begun) - 1) * strays)]
    added = offsets(range(len(begun)), shifts)
    assert {begin - least for begin, least in zip(begun, map(added.get, range(len(begun))), strict=True)} == {
        min(begun)
    }


def test_processes_that_do_not_agree_are_left_out() -> None:
    shifts = [Shift(0, 1, 2, 50), Shift(0, 2, 3, 40), Shift(0, 2, 4, 40)]
    assert offsets([0, 1, 2], shifts) == {0: 2, 1: 0}


def test_differences_that_contradict_each_other_are_not_believed() -> None:
    around = [Shift(0, 1, 1, 50), Shift(1, 2, 1, 50), Shift(0, 2, 1, 50)]
    assert offsets([0, 1, 2, 3, 4], [*around, Shift(3, 4, 5, 9)]) == {3: 5, 4: 0}


def test_examples_of_docstrings_hold() -> None:
    for module in (limits, sequences, process_groups):
        found = doctest.testmod(module)
        assert found.attempted
        assert not found.failed
