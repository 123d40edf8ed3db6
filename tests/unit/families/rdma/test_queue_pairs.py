"""Queue pairs from their calls: each state once, whatever was lost, late, repeated or out of order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.rdma import queue_pairs
from otelgpu.families.rdma.endpoints import End, Ports, peer, text
from otelgpu.families.rdma.facts import QueuePairChanged, QueuePairState
from otelgpu.families.rdma.queue_pairs import LAST_COUNTS_NS, STEPS, QueuePair, QueuePairs
from otelgpu.model.fabric import PortGone
from tests.rig.examples import examples
from tests.unit.families.rdma.queue_pair_facts import MS, Caller, S, gid, port


def fed(*facts: QueuePairChanged) -> QueuePairs:
    book = QueuePairs()
    for fact in facts:
        book.change(fact)
    return book


def test_a_queue_pair_connects_once_with_the_times_of_its_steps() -> None:
    caller = Caller()
    made, init, receive, ready = caller.connect()
    book = fed(made, init, receive, ready)
    (connected,) = book.take_connected()
    assert (connected.made_ns, connected.init_ns) == (made.time_ns, init.time_ns)
    assert connected.receive_ns == receive.time_ns + receive.duration_ns
    assert connected.ready_ns == ready.time_ns + ready.duration_ns
    assert (connected.peer_number, connected.peer_gid) == (23, gid("fe80::2"))
    assert (connected.path_mtu_bytes, connected.timeout, connected.late) == (1024, 14, False)
    assert not book.take_connected()
    assert not book.counters


def test_it_ends_when_it_is_destroyed_and_is_reported_after_its_last_counts() -> None:
    caller = Caller()
    book = fed(*caller.connect(), destroyed := caller.destroy())
    assert not len(book)
    assert not book.take_ended(destroyed.time_ns + LAST_COUNTS_NS - 1)
    assert book.find(100, 0x1000, 17) is not None
    (ended,) = book.take_ended(destroyed.time_ns + LAST_COUNTS_NS)
    assert ended.ended_ns == destroyed.time_ns
    assert book.find(100, 0x1000, 17) is None


def test_one_that_was_made_before_the_agent_looked_is_late() -> None:
    caller = Caller()
    book = fed(caller.error())
    (known,) = book
    assert known.late
    assert known.state is S.ERROR
    assert not book.take_connected()


def test_one_that_only_counts_know_is_late() -> None:
    book = QueuePairs()
    known = book.found(1, 0x10, 5, 50)
    assert known is book.found(1, 0x10, 5, 60)
    assert known is not None
    assert known.late
    assert known.state is S.UNKNOWN


def test_counts_that_were_read_before_the_record_of_the_call_make_none_late() -> None:
    caller, book = Caller(), QueuePairs()
    known = book.found(100, 0x1000, 17, 5)
    assert book.change(caller.make()) is known
    assert known is not None
    assert not known.late
    assert not book.counters


def test_a_call_around_another_is_the_same_queue_pair() -> None:
    """rdma_create_qp's record comes after that of the modify within it."""
    caller = Caller()
    made, init = caller.make(), caller.init()
    book = fed(init, made)
    (known,) = book
    assert (known.made_ns, known.state, known.late) == (made.time_ns, S.INIT, False)
    assert not book.counters


def test_a_lost_step_is_counted_and_the_state_is_believed() -> None:
    caller = Caller()
    made, init, _, ready = caller.connect()
    book = fed(made, init, ready)
    assert book.counters == {"steps_unseen": 1}
    (connected,) = book.take_connected()
    assert connected.receive_ns == 0


@pytest.mark.parametrize("before", list(STEPS), ids=str)
@pytest.mark.parametrize("after", list(STEPS), ids=str)
def test_steps_that_the_specification_has_are_not_counted(
    before: QueuePairState, after: QueuePairState
) -> None:
    caller = Caller()
    book = fed(caller._fact(before, made=True), caller._fact(after))
    allowed = after in STEPS[before] or after in (S.RESET, S.ERROR) or after is before
    assert book.counters["steps_unseen"] == (not allowed)
    (known,) = book
    assert known.state is after


def test_a_change_out_of_order_fills_in_what_no_other_reported() -> None:
    caller = Caller()
    made, init, receive, ready = caller.connect()
    book = fed(made, init, ready, receive)
    (connected,) = book.take_connected()
    assert connected.state is S.READY_TO_SEND
    assert connected.peer_number == 23
    assert connected.receive_ns == receive.time_ns + receive.duration_ns
    assert book.counters["changes_out_of_order"] == 1


def test_an_address_that_is_used_again_is_another_queue_pair() -> None:
    caller = Caller()
    first = caller.connect()
    caller.number = 18
    book = fed(*first, *caller.connect())
    assert book.counters["destroy_unseen"] == 1
    (live,) = book
    (ended,) = book.take_ended(caller.now_ns + LAST_COUNTS_NS)
    assert (live.number, ended.number) == (18, 17)


def test_so_is_one_with_the_same_number() -> None:
    caller = Caller()
    book = fed(*caller.connect(), caller.destroy(), *caller.connect(), caller.destroy())
    assert len(book.take_connected()) == 2
    assert len(book.take_ended(0, final=True)) == 2
    assert not book.counters


def test_a_reset_makes_the_next_connection_another() -> None:
    caller = Caller()
    book = fed(*caller.connect())
    assert [each.generation for each in book.take_connected()] == [0]
    for fact in (caller.reset(), caller.init(), caller.receive(24), caller.ready()):
        book.change(fact)
    (again,) = book.take_connected()
    assert (again.generation, again.peer_number) == (1, 24)


def test_a_call_that_failed_changes_no_state() -> None:
    caller = Caller()
    book = fed(caller.make(), caller.init(), caller.init(error=22))
    (known,) = book
    assert (known.state, known.failure) == (S.INIT, 22)
    assert book.change(caller.make(error=12)) is None
    assert book.change(caller.destroy(error=16)) is known
    assert len(book) == 1


def test_a_process_that_ends_takes_its_queue_pairs_with_it() -> None:
    one, other = Caller(tgid=1), Caller(tgid=2)
    book = fed(*one.connect(), *other.connect())
    (gone,) = book.end_process(1, 99 * MS)
    assert (gone.tgid, gone.ended_ns) == (1, 99 * MS)
    assert [each.tgid for each in book] == [2]


def test_there_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_pairs, "QUEUE_PAIRS", 2)
    book = fed(*(Caller(address=number, number=number).make() for number in (1, 2, 3)))
    assert len(book) == 2
    assert book.counters["queue_pairs_beyond_memory"] >= 1


@examples(60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["make", "init", "receive", "ready", "error", "reset", "destroy"]),
            st.integers(1, 2),
            st.integers(0, 3),
            st.integers(-5, 5),
        ),
        max_size=30,
    )
)
def test_any_sequence_leaves_each_queue_pair_live_or_ended_once(
    steps: list[tuple[str, int, int, int]],
) -> None:
    book, seen = QueuePairs(), set[int]()
    kept: list[QueuePair] = []
    caller = Caller()
    for name, address, number, moved in steps:
        caller.address, caller.number = address, number
        caller.now_ns = max(caller.now_ns + moved * MS, 0)
        known = book.change(getattr(caller, name)())
        if known is not None and id(known) not in seen:
            seen.add(id(known))
            kept.append(known)
    live = list(book)
    ended = book.take_ended(0, final=True)
    assert sorted(map(id, [*live, *ended])) == sorted(seen)
    assert len({each.key for each in live}) == len(live)
    assert all(not each.ended_ns for each in live)
    assert all(each.ended_ns >= each.seen_ns for each in ended)


# -- Ends ------------------------------------------------------------------------------------------------


def ready() -> QueuePair:
    book = fed(*Caller().connect())
    return book.take_connected()[0]


def test_the_own_end_is_the_gid_that_the_port_has_at_the_index() -> None:
    ports = Ports()
    assert not ports.known(ready())
    ports.take(port(gids={0: "fe80::9", 1: "0000:0000:0000:0000:0000:ffff:0a00:0001", 2: "what"}))
    assert ports.local(ready()) == End(gid("::ffff:10.0.0.1"), 17)
    assert peer(ready()) == End(gid("fe80::2"), 23)
    ports.take(PortGone(time_ns=2, device="rxe0", port=1))
    assert ports.local(ready()) is None


def test_a_gid_that_is_none_is_not_known() -> None:
    ports = Ports()
    ports.take(port(gids={1: "::"}))
    assert ports.local(ready()) is None
    assert ports.known(ready())


def test_on_infiniband_without_a_route_the_end_is_the_lid() -> None:
    ports, caller = Ports(), Caller()
    ports.take(port(lid=7))
    (known,) = fed(caller.make(), caller.init(), caller.receive(peer_gid="", peer_lid=9))
    assert ports.local(known) == End((7).to_bytes(16), 17)
    assert peer(known) == End((9).to_bytes(16), 23)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (gid("::ffff:10.0.0.1"), "::ffff:10.0.0.1"),
        (gid("fe80::1"), "fe80::1"),
        ((17).to_bytes(16), "lid 17"),
        (b"", ""),
    ],
)
def test_addresses_are_written_as_people_write_them(address: bytes, shown: str) -> None:
    assert text(address) == shown
