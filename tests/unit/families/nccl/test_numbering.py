"""Each call is numbered as its collective is on every rank, or not at all: against a simulated NCCL."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.nccl.numbering import KEPT_NS, LIVES, Collectives, Numbered, Numbers
from otelgpu.model.operations import Operations, SequenceSource, operations
from tests.rig.examples import examples
from tests.unit.families.nccl.collectives_simulated import NCCL_APIS, Rank

_WAYS = (0, 0, 0, 1, -1, 0, 0, 0, 0)  # by code of the function
_SAME = {6: 1, 7: 5}


def numbered(collectives: Collectives, rows: Operations, captured: Any = None) -> Numbers:
    functions = np.array([_SAME.get(api, api) for api in rows["api"].tolist()], dtype=np.intp)
    if captured is None:
        captured = np.zeros(len(rows), dtype=np.bool_)
    return collectives.number(rows, functions, captured, _WAYS)


def numbers_of(collectives: Collectives, rank: Rank) -> tuple[list[int | None], list[int | None]]:
    """The numbers that calls were given, and their true ones."""
    rows, true = rank.take()
    made = numbered(collectives, rows)
    shared = [Numbered(source).shared for source in made.source.tolist()]
    return [n if is_shared else None for n, is_shared in zip(made.number.tolist(), shared, strict=True)], true


def sources_of(collectives: Collectives, rank: Rank) -> list[Numbered]:
    return [Numbered(source) for source in numbered(collectives, rank.take()[0]).source.tolist()]


def test_calls_of_a_group_are_numbered_by_their_place() -> None:
    rank = Rank(0)
    rank.call()
    rank.begin_group()
    for name in ("ncclAllReduce", "ncclAllGather", "ncclAllReduceConfig"):
        rank.call(name)
    rank.end_group()
    rank.call()
    given, true = numbers_of(Collectives(), rank)
    assert given == true == [0, 1, 0, 2, 3]


def test_a_call_that_has_its_number_keeps_it_whatever_came_before() -> None:
    rows = operations(4)
    rows["tgid"], rows["handle"], rows["api"], rows["returned"] = 7, 0x10, 1, 1
    rows["communicator_hash"] = 5
    rows["start_ns"], rows["sequence"] = np.arange(4), [7, 6, 9, 1 << 60]
    rows["sequence_source"] = SequenceSource.CALL
    collectives = Collectives()
    made = numbered(collectives, rows)
    assert made.source.tolist() == [Numbered.CALL] * 3 + [Numbered.NONE]
    assert made.number[:3].tolist() == [7, 6, 9]


def test_a_group_may_come_in_parts() -> None:
    rank, collectives = Rank(0), Collectives()
    rank.begin_group()
    rank.call()
    rank.call()
    assert numbers_of(collectives, rank)[0] == [0, 1]
    rank.call()
    assert numbers_of(collectives, rank)[0] == [2]
    rank.end_group()
    rank.begin_group()
    rank.call()
    assert numbers_of(collectives, rank)[0] == [3]


def test_the_agent_counts_where_the_communicator_cannot_be_read() -> None:
    rank, collectives = Rank(0, readable=False), Collectives()
    collectives.learn([rank.seen()])
    for name in ("ncclAllReduce", "ncclBcast", "ncclAllReduce", "ncclBroadcast"):
        rank.call(name)
    rows, _ = rank.take()
    made = numbered(collectives, rows)
    assert made.number.tolist() == [0, 0, 1, 1]
    assert set(made.source.tolist()) == {Numbered.COUNTED}
    assert set(made.hash.tolist()) == {rank.hash}
    assert (set(made.rank.tolist()), set(made.ranks.tolist())) == ({0}, {4})


def test_without_a_count_nothing_is_guessed() -> None:
    rank, collectives = Rank(0, readable=False), Collectives()
    collectives.learn([rank.seen(created=False)])
    rank.call()
    assert sources_of(collectives, rank) == [Numbered.NONE]


def test_a_count_by_function_needs_no_creation() -> None:
    rank = Rank(0)
    rank.launched["ncclAllReduce"] = 70_000
    rank.call()
    assert numbers_of(Collectives(), rank)[0] == [70_000]


@pytest.mark.parametrize(("created", "source"), [(True, Numbered.COUNTED), (False, Numbered.OPERATIONS)])
def test_the_count_of_all_operations_is_used_where_creation_was_not_seen(
    created: bool, source: Numbered
) -> None:
    rank, collectives = Rank(0, counts=False), Collectives()
    collectives.learn([rank.seen(created=created)])
    rank.call("ncclAllGather")
    rank.call()
    made = numbered(collectives, rank.take()[0])
    assert made.source.tolist() == [source, source]
    assert made.number.tolist() == ([0, 0] if created else [0, 1])


def test_in_a_group_the_count_of_all_operations_goes_with_the_place() -> None:
    rank, collectives = Rank(0, counts=False), Collectives()
    collectives.learn([rank.seen(created=False)])
    rank.begin_group()
    rank.call()
    rank.call()
    made = numbered(collectives, rank.take()[0])
    assert made.number.tolist() == [0, 0]
    assert len(set(made.place.tolist())) == 2


def test_places_in_a_group_go_on_where_it_comes_in_parts() -> None:
    rank, collectives = Rank(0, counts=False), Collectives()
    places = []
    rank.begin_group()
    for _ in range(3):
        rank.call()
        places += numbered(collectives, rank.take()[0]).place.tolist()
    assert len(set(places)) == 3


def test_failed_and_captured_calls_move_no_count() -> None:
    rank, collectives = Rank(0, readable=False), Collectives()
    collectives.learn([rank.seen()])
    rank.call()
    rank.call(status=2)
    rank.call(captured=True)
    rank.call()
    rows, _ = rank.take()
    made = numbered(collectives, rows, np.array([False, False, True, False]))
    assert [Numbered(source) for source in made.source.tolist()] == [
        Numbered.COUNTED,
        Numbered.FAILED,
        Numbered.CAPTURED,
        Numbered.COUNTED,
    ]
    assert made.number.tolist()[-1] == 1


def test_a_failed_call_takes_no_place_in_its_group() -> None:
    rank = Rank(0)
    rank.begin_group()
    rank.call()
    rank.call(status=4)
    rank.call()
    given, true = numbers_of(Collectives(), rank)
    assert given == true == [0, None, 1]


def test_a_count_may_lag_behind_what_was_taken_up() -> None:
    rank, collectives = Rank(0), Collectives()
    rank.call()
    rank.call(status=7, sequence=1)  # ncclInProgress is no failure
    rank.call(sequence=1)  # the one before has not been launched yet
    rank.call()
    assert numbers_of(collectives, rank)[0] == [0, 1, 2, 3]
    assert collectives.counters == {"sequence_behind": 2}  # for it never catches up here


def test_a_call_that_moved_no_count_where_others_did_is_no_collective() -> None:
    rank, collectives = Rank(0), Collectives()
    collectives.learn([rank.seen()])
    rank.call()
    rank.call(sequence_source=0, sequence=0)
    rank.call(sequence=1)
    assert sources_of(collectives, rank) == [Numbered.FUNCTION, Numbered.NONE, Numbered.FUNCTION]
    assert collectives.counters == {"sequence_not_counted": 1}


@pytest.mark.parametrize("read", [1 << 48, (1 << 64) - 1, 1 << 40], ids=["most", "all-ones", "leap"])
def test_an_absurd_count_is_no_number_and_spoils_no_other(read: int) -> None:
    rank, collectives = Rank(0), Collectives()
    rank.call()
    rank.call(sequence=read)
    rank.call()
    made = numbered(collectives, rank.take()[0])
    assert made.source.tolist() == [Numbered.FUNCTION, Numbered.NONE, Numbered.FUNCTION]
    assert made.number.tolist() == [0, 0, 2]
    assert collectives.counters == {"sequence_absurd": 1}


@pytest.mark.parametrize("rank_reported", [4, 1 << 30, -7])
def test_a_rank_beyond_its_communicator_is_in_no_collective(rank_reported: int) -> None:
    rank, collectives = Rank(0), Collectives()
    collectives.learn([rank.seen()])
    rank.call(rank=rank_reported)
    assert sources_of(collectives, rank) == [Numbered.NONE]
    assert collectives.counters["rank_invalid"] == 1


def test_a_communicator_that_says_a_rank_beyond_itself_is_not_believed() -> None:
    rank, collectives = Rank(0, readable=False), Collectives()
    collectives.learn([rank.seen(rank=9, ranks=4)])
    rank.call(rank=-1)
    made = numbered(collectives, rank.take()[0])
    assert (made.rank.tolist(), made.ranks.tolist()) == ([-1], [-1])
    assert collectives.counters == {"communicator_rank_invalid": 1}


def test_the_nth_send_is_the_nth_receive() -> None:
    sender, receiver, collectives = Rank(0), Rank(3), Collectives()
    collectives.learn([sender.seen(), receiver.seen()])
    for peer in (3, 2, 3):
        sender.call("ncclSend", peer=peer)
    receiver.call("ncclRecv", peer=1)
    receiver.call("ncclRecv", peer=0)
    receiver.call("ncclRecv", peer=0)
    sent, received = numbered(collectives, sender.take()[0]), numbered(collectives, receiver.take()[0])
    pairs = [list(zip(made.number.tolist(), made.place.tolist(), strict=True)) for made in (sent, received)]
    assert pairs[0][0] == pairs[1][1]
    assert pairs[0][2] == pairs[1][2]
    assert len({*pairs[0], *pairs[1]}) == 4


@pytest.mark.parametrize("peer", [-1, 4, 1 << 30])
def test_a_peer_that_cannot_be_has_no_pair(peer: int) -> None:
    rank, collectives = Rank(0), Collectives()
    collectives.learn([rank.seen()])
    rank.call("ncclSend", peer=peer)
    assert sources_of(collectives, rank) == [Numbered.NONE]
    assert collectives.counters == {"peer_invalid": 1}


def test_an_address_may_become_another_communicators_in_one_tick() -> None:
    one, other, collectives = Rank(0, readable=False), Rank(0, hash=0xBEE, readable=False), Collectives()
    one.call()
    one.call()
    end_ns = one.now_ns + 50_000
    other.now_ns = end_ns
    other.call()
    reported = [one.seen(), one.seen(time_ns=end_ns, ended=True), other.seen(time_ns=end_ns + 1)]
    collectives.learn(reported[::-1])
    rows = np.concatenate([other.take()[0], one.take()[0]])[[1, 2, 0]]
    made = numbered(collectives, rows)
    assert made.hash.tolist() == [one.hash, one.hash, other.hash]
    assert made.number.tolist() == [0, 1, 0]


def test_ended_communicators_are_forgotten_after_a_while() -> None:
    rank, collectives = Rank(0, readable=False), Collectives()
    collectives.learn([rank.seen(), rank.seen(time_ns=5, ended=True)])
    collectives.forget_before(5)
    assert collectives.has(rank.tgid)
    collectives.forget_before(5 + KEPT_NS)
    assert not collectives.has(rank.tgid)


def test_communicators_are_bounded() -> None:
    collectives = Collectives()
    collectives.learn([Rank(0, address=address).seen() for address in range(1, LIVES + 11)])
    assert collectives.counters == {"communicators_full": 10}
    collectives.forget_process(100)
    assert not collectives.has(100)
    collectives.learn([Rank(0).seen()])
    assert collectives.members() == {0xC0FFEE: {0}}


def test_after_a_loss_only_counts_that_are_read_are_believed() -> None:
    counted, read, collectives = Rank(0, readable=False), Rank(1), Collectives()
    collectives.learn([counted.seen(), read.seen()])
    for rank in (counted, read):
        rank.call()
        numbers_of(collectives, rank)
    collectives.doubt()
    counted.call()
    read.call()
    assert sources_of(collectives, counted) == [Numbered.NONE]
    assert numbers_of(collectives, read)[0] == [1]


_CALLS = st.lists(
    st.sampled_from(["call", "gather", "config", "fail", "begin", "end", "tick"]), min_size=1, max_size=40
)


@examples(30)
@given(_CALLS, st.sampled_from([(True, True), (False, True), (False, False)]), st.booleans())
def test_numbers_are_those_of_the_simulation(
    calls: list[str], kept: tuple[bool, bool], created: bool
) -> None:
    """Whatever is called, however it is cut into ticks: every number is the true one, or there is none."""
    counts, readable = kept
    rank, collectives = Rank(0, counts=counts, readable=readable), Collectives()
    if created:
        collectives.learn([rank.seen()])
    given_numbers: list[int | None] = []
    true_numbers: list[int | None] = []
    for what in [*calls, "end", "tick"]:
        if what == "begin" and not rank.inside:
            rank.begin_group()
        elif what == "end" and rank.inside:
            rank.end_group()
        elif what == "tick":
            given, true = numbers_of(collectives, rank)
            given_numbers += given
            true_numbers += true
        elif what in ("call", "gather", "config"):
            rank.call({"call": "ncclAllReduce", "gather": "ncclAllGather"}.get(what, "ncclAllReduceConfig"))
        elif what == "fail":
            rank.call(status=3)
    if created or (counts and readable):
        assert given_numbers == true_numbers
    elif not readable:
        assert set(given_numbers) <= {None}


def test_the_simulation_knows_the_functions() -> None:
    assert set(_SAME) <= set(NCCL_APIS)
