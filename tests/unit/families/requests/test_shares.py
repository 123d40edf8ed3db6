"""Shares: nobody takes from others what is to be kept of bodies, or the time to parse."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from itertools import count, islice

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from otelgpu.families.requests import decode, turns
from otelgpu.families.requests.connection import DataChunk
from otelgpu.families.requests.decode import MOST_CHUNKS_MISSED
from otelgpu.families.requests.parser_output import EXCHANGE_BYTES
from otelgpu.model.inputs import Batch
from otelgpu.model.shares import (
    LITTLE,
    OF_CONTAINER,
    REPORT_EVERY_NS,
    WITH_LITTLE,
    Headroom,
    Owner,
    Pool,
    Refusals,
    described,
)
from tests.unit.families.requests.traffic import (
    MS,
    Connection,
    Seen,
    joined,
    new_state,
    request,
    response,
)

CAPACITY = 3000
LONG = request("GET", "/" + "a" * turns.GRAIN_BYTES)  # is a turn of its own
TINY = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
#: process → its container
CONTAINER = {1: 10, 2: 10, 3: 30, 4: 40}
steps = st.lists(st.tuples(st.sampled_from(sorted(CONTAINER)), st.integers(-CAPACITY, CAPACITY)), max_size=60)


@given(steps)
def test_what_is_held_and_what_is_free_is_all_there_is(steps: list[tuple[int, int]]) -> None:
    pool = Pool(CAPACITY)
    shares = {process: pool.share_of(process, container) for process, container in CONTAINER.items()}
    for process, size in steps:
        share, others_free = shares[process], pool.free
        if size < 0:
            share.release(min(-size, share.held))
        elif share.reserve(size):
            of_container = sum(shares[each].held for each in shares if CONTAINER[each] == share.container)
            holds_little = share.held <= CAPACITY // LITTLE
            assert share.held <= pool.free or holds_little
            assert of_container <= (WITH_LITTLE if holds_little else OF_CONTAINER) * pool.free
        else:
            assert pool.free == others_free
        assert min(each.held for each in shares.values()) >= 0
        assert sum(each.held for each in shares.values()) + pool.free == CAPACITY
        assert pool.free >= 0
    for share in shares.values():
        share.release(share.held)
    assert pool.free == CAPACITY
    assert shares[1].reserve(CAPACITY // 2)


@given(steps)
@example([(1, 1481), (3, 710), (2, 0)])  # where a little is one more than what is usual
def test_what_is_left_is_what_can_be_had(steps: list[tuple[int, int]]) -> None:
    pool = Pool(CAPACITY)
    shares = {process: pool.share_of(process, container) for process, container in CONTAINER.items()}
    for process, size in steps:
        share = shares[process]
        left = share.left
        assert share.reserve(max(left, 0)) == (left >= 0)
        share.release(max(left, 0) if left >= 0 else 0)
        assert not share.reserve(max(left, 0) + 1)
        share.reserve(abs(size))


def test_a_process_has_half_a_container_two_thirds_and_the_next_two_thirds_of_the_rest() -> None:
    pool = Pool(CAPACITY)
    first, second, other = (pool.share_of(process, CONTAINER[process]) for process in (1, 2, 3))
    assert [first.left, first.reserve(1500), first.left] == [1500, True, 0]
    assert [second.left, second.reserve(500), second.left] == [500, True, 0]
    assert other.left == 500


def test_shares_that_nobody_has_are_forgotten() -> None:
    pool = Pool(CAPACITY)
    for process in range(1000):
        pool.share_of(process, process).reserve(0)
    gc.collect()
    assert not pool._shares and not pool._containers


def test_who_was_refused_is_reported_once_a_minute_the_worst_first() -> None:
    refused = Refusals()
    assert refused.due(0) == ()
    refused.add(1, 10)
    refused.add(2, 20, 5)
    found = refused.due(1)
    assert found == [(Owner(2, 20), 5), (Owner(1, 10), 1)]
    assert described(found) == "process 2 of cgroup 20 (and 1 more)"
    refused.add(3, 0)
    assert refused.due(REPORT_EVERY_NS) == ()
    assert described(refused.due(REPORT_EVERY_NS + 1)) == "process 3"
    for process in range(1000):
        refused.add(process, 0)
    assert len(refused.due(10 * REPORT_EVERY_NS)) == 256


# -- bytes that are kept -----------------------------------------------------------------------------------


def test_a_neighbours_model_and_tokens_survive_150_stalled_uploads() -> None:
    seen = Seen(new_state())
    for number in range(150):
        stalled = Connection(identity=1000 + number, tgid=100, cgroup_id=1)
        body = b'{"model":"m","prompt":"' + b"x" * 230_000
        head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n"
        seen.feed(stalled.open()).feed(stalled.read(head + body))
    assert seen.counts()["body_share_spent"] > 0
    victim = Connection(identity=1, tgid=200, cgroup_id=2)
    asked = b'{"messages":[{"role":"user","content":"%s"}],"model":"llama"}' % (b"why " * 20_000)
    answered = b'{"model":"llama","choices":[],"usage":{"prompt_tokens":20000,"completion_tokens":7}}'
    seen.feed(victim.open()).feed(victim.read(request("POST", "/v1/chat/completions", asked)))
    seen.feed(victim.write(response(200, answered, content_type="application/json")))
    (exchange,) = seen.exchanges
    assert exchange.generation is not None
    assert (exchange.generation.request_model, exchange.generation.output_tokens) == ("llama", 7)
    ((owner, _),) = next(refused for refused, what in seen.state.refused if "kept" in what).due(1)
    assert owner == (100, 1)


def test_while_memory_is_short_who_keeps_most_gives_up_what_is_under_way() -> None:
    headroom = Headroom()
    seen = Seen(new_state(headroom=headroom))
    for number in range(40):
        stalled = Connection(identity=1000 + number, tgid=100, cgroup_id=1)
        head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n"
        seen.feed(stalled.open()).feed(stalled.read(head + b'{"model":"m","prompt":"' + b"x" * 230_000))
    victim = Connection(identity=1, tgid=200, cgroup_id=2)
    asked = b'{"messages":[{"role":"user","content":"%s"}],"model":"llama"}' % (b"why " * 20_000)
    seen.feed(victim.open()).feed(victim.read(request("POST", "/v1/chat/completions", asked)))
    headroom.steps = 4
    seen.take(seen.state.expire(2))
    assert seen.counts()["requests_shed"] == 40
    assert seen.shed == [opened.key for opened in seen.opened if opened.tgid == 100]
    answered = b'{"model":"llama","choices":[],"usage":{"prompt_tokens":20000,"completion_tokens":7}}'
    seen.feed(victim.write(response(200, answered, content_type="application/json")))
    (exchange,) = seen.exchanges
    assert exchange.tgid == 200 and exchange.generation is not None
    assert (exchange.generation.request_model, exchange.generation.output_tokens) == ("llama", 7)


def test_open_requests_are_bounded_for_a_process_and_give_back_all_their_room() -> None:
    budget = 1000 * EXCHANGE_BYTES
    seen = Seen(new_state(budget_bytes=budget))
    connections = [Connection(identity=1 + number, tgid=100) for number in range(20)]
    for connection in connections:
        seen.feed(connection.open()).feed(connection.read(TINY * 100))
    open_ones = 2000 - len(seen.exchanges)
    assert 500 <= open_ones <= 520 + 100
    assert seen.counts()["responses_not_seen"] == len(seen.exchanges)
    neighbour = Connection(identity=99, tgid=200, cgroup_id=2)
    before = len(seen.exchanges)
    seen.feed(neighbour.open()).feed(neighbour.read(TINY * 100)).feed(neighbour.write(ANSWER * 100))
    assert [exchange.error for exchange in seen.exchanges[before:]] == [""] * 100
    for connection in (*connections, neighbour):
        seen.feed(connection.close())
    assert len(seen.exchanges) == 2100
    assert seen.state._output.reserve(budget)


def test_connections_beyond_their_number_cost_who_has_most() -> None:
    seen = Seen(new_state(max_connections=50))
    victim = Connection(identity=1, tgid=200, cgroup_id=2)
    seen.feed(victim.open()).feed(victim.read(request("GET", "/victim")))
    for number in range(500):
        idle = Connection(identity=100 + number, tgid=100)
        seen.feed(idle.open()).feed(idle.read(request("GET", "/idle")))
    seen.feed(victim.write(response()))
    assert [(e.error, e.status_code) for e in seen.exchanges if e.path == "/victim"] == [("", 200)]
    assert seen.counts()["connections_evicted"] == 451


# -- time to parse -----------------------------------------------------------------------------------------


@pytest.fixture
def slow() -> Iterator[int]:
    """A clock by which each turn takes a hundredth of the time that there is."""
    return count(0, turns.TURNS_NS // 100)


def test_who_has_had_his_share_of_parsing_waits_for_the_tick_and_others_do_not(slow: Iterator[int]) -> None:
    seen = Seen(new_state(stopwatch=lambda: next(slow)))
    flood = Connection(identity=1, tgid=100, cgroup_id=1)
    victims = [Connection(identity=2 + n, tgid=200 + n, cgroup_id=2) for n in range(10)]
    batches = [flood.open()]
    for _ in range(200):
        batches += [*flood.read(TINY * 100), *flood.write(ANSWER * 100)]
    for victim in victims:
        batches += [victim.open(), *victim.read(request("GET", "/victim")), *victim.write(response())]
    seen.feed(joined(batches))
    before = len(seen.exchanges)
    assert 1000 < before - len(victims) < 8000
    assert sum(exchange.path == "/victim" for exchange in seen.exchanges) == len(victims)
    parsed = []
    while not parsed or parsed[-1]:
        seen.take(seen.state.expire(flood.now_ns))
        parsed.append(len(seen.exchanges) - before - sum(parsed))
    assert before + sum(parsed) == 20_000 + len(victims)
    assert len(parsed) >= 4  # as much as there is time for in each
    assert {exchange.error for exchange in seen.exchanges} == {""}
    assert (seen.counts(), seen.state.expires_ns > 0) == ({}, True)
    assert seen.state._output.reserve(decode.BUDGET_BYTES // 2)


def test_alone_a_process_has_all_the_time_at_the_tick(slow: Iterator[int]) -> None:
    seen = Seen(new_state(stopwatch=lambda: next(slow)))
    connections = [Connection(identity=1 + n) for n in range(110)]
    for c in connections:
        seen.feed(c.open()).feed(c.read(LONG)).feed(c.write(response())).feed(c.close())
    assert 20 < len(seen.exchanges) < 26
    seen.take(seen.state.expire(connections[0].now_ns))
    assert 70 < len(seen.exchanges) < 86  # the other half, and half of the new time
    seen.take(seen.state.expire(connections[0].now_ns))
    assert (len(seen.exchanges), seen.counts(), seen.state.connection_count) == (110, {}, 0)


def test_who_has_many_connections_does_not_wait_behind_who_sends_much_on_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each chunk of the floods takes longer than all others leave; the victim has a new connection for each request."""
    time_ns, take = 0, decode.Connection.take

    def take_time(connection: decode.Connection, chunk: DataChunk, write: bool) -> None:
        nonlocal time_ns
        time_ns += 50 * MS if len(chunk[-1]) > turns.GRAIN_BYTES else MS // 4
        take(connection, chunk, write)

    monkeypatch.setattr(decode.Connection, "take", take_time)
    seen = Seen(new_state(stopwatch=lambda: time_ns))
    floods = [Connection(identity=1 + n, tgid=10 + n, cgroup_id=1) for n in range(4)]
    seen.feed([flood.open() for flood in floods])
    victims = (Connection(identity=100 + n, tgid=9, cgroup_id=2) for n in count())
    for tick in range(1, 7):
        for _ in range(3):
            for flood in floods:
                seen.feed([*flood.read(TINY * 100), *flood.write(ANSWER * 100)])
        for victim in islice(victims, 60):
            seen.feed([victim.open(), *victim.read(request("GET", "/victim")), *victim.write(response())])
            seen.feed(victim.close())
        seen.take(seen.state.expire(tick * 1000 * MS))
        assert sum(exchange.path == "/victim" for exchange in seen.exchanges) == 60 * tick


traffic = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["request", "close", "tick", "other order"])), max_size=60
)


@given(traffic, st.integers(2, 40))
def test_put_off_or_not_the_same_is_seen(traffic: list[tuple[int, str]], slowness: int) -> None:
    """Of processes of which each has several connections, with chunks that come in another order too."""
    times = count(0, turns.TURNS_NS // slowness)
    timed, free = Seen(new_state(stopwatch=lambda: next(times))), Seen(new_state())
    connections: dict[int, Connection] = {}
    now_ns, identities = 0, count(1)
    for number, what in traffic:
        batches: list[Batch] = []
        connection = connections.get(number)
        if connection is None:
            connection = connections[number] = Connection(
                identity=next(identities), tgid=100 + number % 3, cgroup_id=number % 2, now_ns=now_ns
            )
            batches.append(connection.open())
        if what == "close":
            batches += connections.pop(number).close()
        elif what != "tick":
            batches += [
                *connection.read(request("GET", f"/{connection.identity}")),
                *connection.write(response()),
            ]
            if what == "other order":
                batches[-2:] = batches[:-3:-1]
        now_ns = max(now_ns, connection.now_ns)
        for seen in (timed, free):
            seen.feed(batches)
            if what == "tick":
                seen.take(seen.state.expire(now_ns))
    for _ in range(60):
        timed.take(timed.state.expire(now_ns))
    free.take(free.state.expire(now_ns))

    def found(seen: Seen) -> list[tuple[object, ...]]:
        return sorted((e.path, e.tgid, e.start_ns, e.end_ns, e.error, e.status_code) for e in seen.exchanges)

    assert found(timed) == found(free)
    assert timed.counts() == free.counts()
    assert timed.state.connection_count == free.state.connection_count


def test_what_there_is_no_room_for_is_shed_and_counted_with_its_owner(slow: Iterator[int]) -> None:
    seen = Seen(new_state(stopwatch=lambda: next(slow), budget_bytes=200 * decode.HELD_BYTES))
    flood = Connection(identity=1, tgid=100, cgroup_id=1)
    seen.feed(flood.open())
    for _ in range(400):
        seen.feed(flood.read(LONG)).feed(flood.write(ANSWER))
    counts = seen.counts()
    assert 200 < counts["chunks_shed"] < 800
    assert counts.keys() <= {"chunks_shed", "requests_shed", "body_share_spent"}
    assert [found.due(1) for found, what in seen.state.refused if "parse" in what] == [
        [(Owner(100, 1), counts["chunks_shed"])]
    ]
    seen.take(seen.state.expire(flood.now_ns))
    before = len(seen.exchanges)
    seen.feed(flood.read(request("GET", "/next"))).feed(flood.write(response(201, b"of /next")))
    for _ in range(10):
        seen.take(seen.state.expire(flood.now_ns))
    assert [(e.path, e.status_code, e.error) for e in seen.exchanges[before:]][-1] == ("/next", 201, "")
    begun = {assignment.exchange for assignment in seen.assignments if assignment.begins}
    assert begun == {assignment.exchange for assignment in seen.assignments if not assignment.begins}


def test_nothing_newer_of_a_process_comes_before_what_waits(slow: Iterator[int]) -> None:
    seen = Seen(new_state(stopwatch=lambda: next(slow)))
    for number in range(200):
        c = Connection(identity=1 + number)
        seen.feed(c.open()).feed(c.read(LONG)).feed(c.write(response()))
    seen.take(seen.state.expire(c.now_ns))
    newer = Connection(identity=1000)
    seen.feed(newer.open()).feed(newer.read(request("GET", "/newer"))).feed(newer.write(response()))
    assert "/newer" not in {exchange.path for exchange in seen.exchanges}
    while seen.exchanges[-1].path != "/newer":
        seen.take(seen.state.expire(c.now_ns))
    assert len(seen.exchanges) == 201


def test_what_all_left_goes_to_those_with_least_to_do_first(slow: Iterator[int]) -> None:
    """Of one container, whose share both have had."""
    seen = Seen(new_state(stopwatch=lambda: next(slow)))
    for tgid, count_of in ((100, 100), (200, 18)):
        for number in range(count_of):
            c = Connection(identity=tgid * 1000 + number, tgid=tgid, cgroup_id=1)
            seen.feed(c.open()).feed(c.read(LONG)).feed(c.write(response()))
    before = Counter(exchange.tgid for exchange in seen.exchanges)
    assert 0 < before[200] < 18
    seen.take(seen.state.expire(c.now_ns))
    after = Counter(exchange.tgid for exchange in seen.exchanges)
    assert after[200] == 18
    assert after[100] < 100


def test_a_chunk_for_whose_bytes_there_is_no_room_has_no_place_either(slow: Iterator[int]) -> None:
    seen = Seen(new_state(stopwatch=lambda: next(slow), budget_bytes=30 * decode.HELD_BYTES))
    for number in range(200):
        c = Connection(identity=1 + number)
        seen.feed(c.open()).feed(c.read(LONG))
    held = sum(
        decode.HELD_BYTES * len(connection.held) + connection.held_bytes
        for connection in seen.state._connections.values()
    )
    assert (seen.counts()["chunks_shed"] > 100, seen.state._places.held) == (True, held)


def test_of_the_chunks_that_wait_each_has_a_share_and_gives_it_back(
    slow: Iterator[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    capacity = 90 * (decode.HELD_BYTES + len(LONG))
    monkeypatch.setattr(decode, "_PUT_OFF_BYTES", capacity)
    seen = Seen(new_state(stopwatch=lambda: next(slow)))
    flood, other = (
        Connection(identity=1, tgid=100, cgroup_id=1),
        Connection(identity=2, tgid=200, cgroup_id=2),
    )
    seen.feed(flood.open()).feed(other.open())
    waiting = []
    for _ in range(400):
        seen.feed(flood.read(LONG)).feed(flood.write(ANSWER))
        waiting.append(seen.state._places.held)
    assert seen.counts()["chunks_shed"] > 400
    assert capacity // 3 < max(waiting) <= capacity // 2
    while seen.state._places.held:
        seen.take(seen.state.expire(flood.now_ns))
    assert seen.state._places.free == capacity
    shed = seen.counts()["chunks_shed"]
    for _ in range(60):
        seen.feed(other.read(LONG)).feed(other.write(ANSWER)).take(seen.state.expire(other.now_ns))
    seen.feed(other.close()).feed(flood.close())
    assert seen.counts()["chunks_shed"] == shed
    assert (seen.state._places.held, seen.state.connection_count) == (0, 0)


@pytest.mark.parametrize(("size", "least", "most"), [(20, 6_000, 16_000), (4096, 1_500, 2_000)])
def test_what_waits_of_one_process_is_bounded_in_bytes_not_in_chunks(
    slow: Iterator[int], size: int, least: int, most: int
) -> None:
    """Of small events it may have many; of long chunks, no more than they take of memory."""
    seen = Seen(new_state(stopwatch=lambda: next(slow)))
    c = Connection(identity=1)
    seen.feed(c.open()).feed(c.read(LONG))
    (connection,) = seen.state._connections.values()
    waiting, held_bytes = [], []
    for _ in range(most + 1_000):
        seen.feed(c.read(LONG.ljust(size, b"a")[:size]))
        waiting.append(len(connection.held))
        held_bytes.append(connection.held_bytes + decode.HELD_BYTES * len(connection.held))
    assert least < max(waiting) < most
    assert max(held_bytes) <= decode._PUT_OFF_BYTES // 2


@pytest.mark.parametrize("end", ["process", "session"])
def test_at_an_end_what_was_put_off_is_parsed_or_counted(slow: Iterator[int], end: str) -> None:
    seen = Seen(new_state(stopwatch=lambda: next(slow)))
    connections = [Connection(identity=1 + n) for n in range(500)]
    for c in connections:
        seen.feed(c.open()).feed(c.read(LONG)).feed(c.write(response()))
    before = len(seen.exchanges)
    if end == "process":
        seen.take(seen.state.process_gone(100, connections[0].now_ns))
        assert len(seen.exchanges) == before  # it has its turn at the tick, as if it ran
    seen.take(seen.state.expire(connections[0].now_ns, final=end == "session"))
    assert len(seen.exchanges) > before + 20
    shed = seen.counts()["chunks_shed"]
    assert abs(1000 - 2 * len(seen.exchanges) - shed) <= 1  # the response of one may be shed
    if end == "process":
        assert seen.state.connection_count == 0
    assert seen.state._output.reserve(decode.BUDGET_BYTES // 2)


def test_no_single_chunk_costs_others_their_floor() -> None:
    times = count(0, 10 * turns.TURNS_NS)
    seen = Seen(new_state(stopwatch=lambda: next(times)))
    for tgid in (100, 200, 300):
        c = Connection(identity=tgid, tgid=tgid, cgroup_id=tgid)
        seen.feed(c.open()).feed(c.read(request("GET", f"/{tgid}")))
    assert len(seen.opened) == 3


def test_in_replay_there_is_time() -> None:
    seen = Seen(new_state(stopwatch=None))
    c = Connection()
    seen.feed(c.open())
    for _ in range(20):  # more than anybody has a turn for
        seen.feed(c.read(TINY * 600)).feed(c.write(ANSWER * 400)).feed(c.write(ANSWER * 200))
    assert (len(seen.exchanges), seen.counts()) == (12_000, {})


# -- chunks that did not come ------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [MOST_CHUNKS_MISSED, MOST_CHUNKS_MISSED + 1])
def test_requests_under_way_when_many_chunks_were_lost_have_no_error(lost: int) -> None:
    c = Connection()
    seen = Seen(new_state()).feed(c.open()).feed(c.read(request("GET", "/before")))
    for _ in range(lost // 2):
        c.write(response())
        c.read(request("GET", "/lost"))
    if lost % 2:
        c.write(response())
    seen.feed(c.read(request("GET", "/after")) if lost % 2 else c.write(response(202)))
    seen.take(seen.state.expire(c.now_ns + 1000 * MS))
    seen.feed(c.write(response(203)))
    if lost > MOST_CHUNKS_MISSED:
        assert [(e.path, e.status_code, e.error) for e in seen.exchanges] == [("/after", 203, "")]
        assert seen.counts() == {"chunks_lost": lost, "requests_shed": 1}
    else:
        assert {e.error for e in seen.exchanges} == {"capture_gap"}
