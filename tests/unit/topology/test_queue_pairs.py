"""Which queue pair is the other end of which: both name each other, or their spans are in one trace."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otelgpu.topology.owners import Owner
from otelgpu.topology.queue_pairs import End, QueuePairs, homes, match
from tests.rig.examples import examples


def end(
    number: int, peer: int, gid: str = "", peer_gid: str = "", *, owner: int = 0, trace: str = "", ns: int = 1
) -> End:
    return End(owner, "mlx5_0", number, ns, ns, gid=gid, peer_gid=peer_gid, peer_number=peer, trace=trace)


def peers(*ends: End) -> list[int]:
    match(ends)
    return [each.peer for each in ends]


def test_ends_that_name_each_other_are_a_pair() -> None:
    assert peers(end(7, 9, "::a", "::b"), end(9, 7, "::b", "::a")) == [1, 0]


def test_numbers_alone_are_no_pair() -> None:
    assert peers(end(7, 9), end(9, 7)) == [-1, -1]


def test_one_gid_that_is_named_is_enough_and_one_that_contradicts_is_too_much() -> None:
    assert peers(end(7, 9, "::a", "::b"), end(9, 7, "", "::a")) == [1, 0]
    assert peers(end(7, 9, "::a", "::b"), end(9, 7, "::c", "::a")) == [-1, -1]


def test_spans_in_one_trace_are_a_pair_whatever_their_addresses() -> None:
    assert peers(end(7, 9, "lid 1", trace="t"), end(9, 7, "lid 2", trace="t")) == [1, 0]


def test_equal_numbers_on_other_hosts_do_not_confuse() -> None:
    ring = [
        each
        for node in range(4)
        for each in (
            end(100, 101, f"::{node}", f"::{(node + 1) % 4}", owner=node),
            end(101, 100, f"::{node}", f"::{(node - 1) % 4}", owner=node),
        )
    ]
    assert peers(*ring) == [3, 6, 5, 0, 7, 2, 1, 4]


def test_what_two_could_be_stays_open() -> None:
    assert peers(end(7, 9, "::a", "::b"), end(9, 7, "::b", "::a"), end(9, 7, "::b", "::a")) == [-1, -1, -1]


def test_a_number_that_was_used_again_goes_with_who_was_there_then() -> None:
    first, second = end(9, 7, "::b", "::a", ns=1), end(9, 7, "::b", "::a", ns=900)
    own = end(7, 9, "::a", "::b", ns=800)
    first.ended_ns, own.last_ns = 10, 1000
    assert peers(own, first, second) == [2, -1, 0]


def test_a_gid_of_two_hosts_is_nobodys() -> None:
    ends = [end(1, 2, "fe80::1", owner=0), end(1, 2, "fe80::1", owner=1), end(3, 4, "fd00::5", owner=1)]
    assert homes(ends, ["a", "b"]) == {"fd00::5": "b"}


def test_what_was_not_connected_yet_is_the_same_queue_pair_when_it_is() -> None:
    pairs, owner = QueuePairs(), Owner(number=0, host="a")
    own = {"rdma.device": "mlx5_0", "rdma.qp.number": 7, "rdma.qp.state": "init"}
    pairs.take(owner, own, 1, 1)
    pairs.take(owner, own | {"rdma.peer.qp.number": 9, "rdma.qp.state": "ready_to_send"}, 2, 2)
    assert [(each.peer_number, each.state) for each in pairs.ends] == [(9, "ready_to_send")]


GIDS = st.sampled_from(["", "::a", "::b", "::c"])
NUMBERS = st.integers(0, 3)
ENDS = st.lists(
    st.builds(
        end, NUMBERS, NUMBERS, GIDS, GIDS, trace=st.sampled_from(["", "", "t", "u"]), ns=st.integers(1, 3)
    ),
    max_size=12,
)


@given(ENDS)
@examples(300)
def test_who_is_whose_peer_is_symmetric_and_nobody_has_two(ends: list[End]) -> None:
    found = peers(*ends)
    for place, peer in enumerate(found):
        assert peer == -1 or (peer != place and found[peer] == place)


@given(st.permutations(range(8)))
@examples(100)
def test_the_order_of_the_input_does_not_matter(order: list[int]) -> None:
    ring = [end(100, 101, f"::{n}", f"::{(n + 1) % 4}", owner=n) for n in range(4)]
    ring += [end(101, 100, f"::{n}", f"::{(n - 1) % 4}", owner=n) for n in range(4)]
    shuffled = [ring[place] for place in order]
    match(shuffled)
    assert {frozenset((each.gid, shuffled[each.peer].gid)) for each in shuffled} == {
        frozenset((f"::{n}", f"::{(n + 1) % 4}")) for n in range(4)
    }
