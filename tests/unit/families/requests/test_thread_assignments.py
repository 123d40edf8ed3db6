"""Which thread works for which exchange, and when."""

from __future__ import annotations

from tests.unit.families.requests.traffic import Connection, Seen, new_state, opened, request, response


def test_a_thread_holds_from_its_read_until_the_answer_is_written() -> None:
    c, seen = opened()
    seen.feed(c.read(request(), tid=7))
    assert seen.assigned() == [(1011, 7, 1)]
    seen.feed(c.write(response(200, b"x"), tid=7))
    assert seen.assigned() == [(1011, 7, 1), (1021, 7, -1)]


def test_an_answer_by_another_thread_ends_the_assignment() -> None:
    c, seen = opened()
    seen.feed(c.read(request(), tid=7)).feed(c.write(response(200, b"x"), tid=8))
    assert seen.assigned() == [(1011, 7, 1), (1021, 7, -1)]
    assert seen.exchanges[0].tid == 7


def test_another_thread_that_reads_on_takes_over() -> None:
    c, seen = opened()
    whole = request("POST", "/", b"x" * 10)
    seen.feed(c.read(whole[:20], tid=7)).feed(c.read(whole[20:-5], tid=7)).feed(c.read(whole[-5:], tid=8))
    seen.feed(c.write(response(), tid=8))
    assert seen.assigned() == [(1011, 7, 1), (1031, 7, -1), (1031, 8, 1), (1041, 8, -1)]
    assert seen.exchanges[0].tid == 8


def test_a_pipelined_request_is_taken_up_when_the_one_before_is_answered() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a") + request("GET", "/b"), tid=7)).feed(
        c.read(request("GET", "/c"), tid=8)
    )
    for _ in range(3):
        seen.feed(c.write(response(), tid=9))
    assert seen.assigned() == [
        (1011, 7, 1),
        (1031, 7, -1),
        (1031, 7, 2),
        (1041, 7, -2),
        (1041, 8, 3),
        (1051, 8, -3),
    ]


def test_requests_answered_by_one_write_are_never_held_for_no_time() -> None:
    c, seen = opened()
    seen.feed(c.read(request() * 3, tid=7)).feed(c.write(response() * 3, tid=7))
    assert seen.assigned() == [(1011, 7, 1), (1021, 7, -1)]
    assert len(seen.exchanges) == 3


def test_a_streamed_answer_is_held_to_its_end() -> None:
    c, seen = opened()
    seen.feed(c.read(request(), tid=7))
    whole = response(200, b"x" * 100)
    for i in range(0, len(whole), 50):
        seen.feed(c.write(whole[i : i + 50], tid=7))
    assert seen.assigned() == [(1011, 7, 1), (1031 + 10 * ((len(whole) - 1) // 50 - 1), 7, -1)]


def test_closing_ends_the_assignment() -> None:
    c, seen = opened()
    seen.feed(c.read(request(), tid=7)).feed(c.close())
    assert seen.assigned() == [(1011, 7, 1), (1020, 7, -1)]


def test_holds_of_connections_are_independent() -> None:
    a, seen = opened()
    b = Connection(identity=2)
    seen.feed(b.open()).feed(a.read(request(), tid=7)).feed(b.read(request(), tid=8)).feed(
        a.write(response())
    )
    assert [(assignment.tid, assignment.exchange, assignment.begins) for assignment in seen.assignments] == [
        (7, 1, True),
        (8, 2, True),
        (7, 1, False),
    ]


def test_keys_are_given_in_order_of_arrival() -> None:
    a, seen = opened()
    b = Connection(identity=2)
    seen.feed(b.open()).feed(a.read(request("GET", "/first"))).feed(b.read(request("GET", "/second")))
    seen.feed(b.write(response())).feed(a.write(response()))
    assert [(exchange.key, exchange.path) for exchange in seen.exchanges] == [(2, "/second"), (1, "/first")]


def keys_held_at_the_end(seen: Seen) -> set[int]:
    held: set[int] = set()
    for assignment in seen.assignments:
        (held.add if assignment.begins else held.discard)(assignment.exchange)
    return held


def test_nothing_is_held_after_the_process_is_gone() -> None:
    c, seen = opened()
    seen.feed(c.read(request() * 2, tid=7))
    seen.take(seen.state.process_gone(c.tgid, 5_000_000_000))
    assert keys_held_at_the_end(seen) == set()


def test_an_event_loop_begins_with_all_that_is_pipelined() -> None:
    c, seen = Connection(), Seen(new_state())
    seen.feed(c.open(nonblocking=True))
    seen.feed(c.read(request("GET", "/a") + request("GET", "/b"), tid=7))
    seen.feed(c.read(request("GET", "/c"), tid=7))
    for _ in range(3):
        seen.feed(c.write(response(), tid=7))
    assert seen.assigned() == [
        *((1011, 7, 1), (1011, 7, 2), (1021, 7, 3)),
        *((1031, 7, -1), (1041, 7, -2), (1051, 7, -3)),
    ]
    assert all(assignment.loop for assignment in seen.assignments)


def test_it_is_said_of_a_request_that_it_was_not_answered_whole() -> None:
    c, seen = opened()
    seen.feed(c.read(request(), tid=7)).feed(c.write(response(200, b"x" * 10)[:-5], tid=7)).feed(c.close())
    assert [(assignment.begins, assignment.cut) for assignment in seen.assignments] == [
        (True, False),
        (False, True),
    ]


def test_one_that_was_answered_is_not_cut() -> None:
    c, seen = opened()
    seen.feed(c.read(request(), tid=7)).feed(c.write(response(200, b"x"), tid=7)).feed(c.close())
    assert not any(assignment.cut for assignment in seen.assignments)


def test_a_connection_whose_beginning_was_not_seen_may_be_an_event_loops() -> None:
    c, seen = Connection(), Seen(new_state())
    seen.feed(c.read(request("GET", "/a") + request("GET", "/b"), tid=7)).feed(c.write(response() * 2, tid=7))
    assert [(each.exchange, each.begins, each.loop) for each in seen.assignments] == [
        *((1, True, True), (2, True, True), (1, False, True), (2, False, True)),
    ]
