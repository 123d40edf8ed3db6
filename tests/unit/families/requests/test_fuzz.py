"""Properties: cuts change nothing, and no bytes make it raise or grow."""

from __future__ import annotations

import json
import random
import sys
from array import array
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from otelgpu.model.exchange import Exchange
from otelgpu.model.inputs import Batch
from tests.rig.examples import examples
from tests.unit.families.requests.traffic import (
    DTYPES,
    READ,
    WRITE,
    Connection,
    Seen,
    chunk,
    chunked,
    new_state,
    request,
    response,
)

PATHS = st.sampled_from(["/", "/a?b=c", "/v1/models"])
BODY = st.binary(max_size=60)
EVENTS = st.lists(st.sampled_from(["", "a", "bc", None]), max_size=5)


def plain(method: str, path: str, body: bytes, status: int, answer: bytes, how: str) -> tuple[bytes, bytes]:
    asked = request(method, path, body)
    if method == "HEAD":
        return asked, response(status, None, content_length="50")
    if status in (204, 304):
        return asked, response(status, None)
    if how == "chunked":
        return asked, response(status, None, transfer_encoding="chunked") + chunked(
            *([answer] if answer else [])
        )
    if how == "interim":
        return asked, response(100, None) + response(status, answer)
    return asked, response(status, answer)


def llm(contents: list[str | None], usage: bool, newline: str, upload: str) -> tuple[bytes, bytes]:
    body = json.dumps({"model": "m", "stream": True}).encode()
    asked = (
        request("POST", "/v1/chat/completions", transfer_encoding="chunked") + chunked(body[:7], body[7:])
        if upload == "chunked"
        else request("POST", "/v1/chat/completions", body)
    )
    events = [{"id": "x", "choices": [{"index": 0, "delta": {"content": content}}]} for content in contents]
    events.append({"id": "x", "choices": [{"index": 0, "finish_reason": "stop"}]})
    if usage:
        events.append({"id": "x", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
    texts = [f"data: {json.dumps(event)}{newline * 2}".encode() for event in events]
    head = response(200, None, transfer_encoding="chunked", content_type="text/event-stream")
    return asked, head + b"".join(chunk(text) for text in texts) + b"0\r\n\r\n"


EXCHANGES = st.one_of(
    st.builds(
        plain,
        st.sampled_from(["GET", "POST", "HEAD", "DELETE"]),
        PATHS,
        BODY,
        st.sampled_from([200, 204, 304, 404, 500]),
        BODY,
        st.sampled_from(["length", "chunked", "interim"]),
    ),
    st.builds(
        llm, EVENTS, st.booleans(), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["chunked", "length"])
    ),
)


def timeless(exchanges: list[Exchange]) -> list[Exchange]:
    """Without times, which are those of the calls, and threads."""
    bare = []
    for exchange in exchanges:
        generation = exchange.generation
        if generation is not None:
            generation = replace(
                generation,
                first_content_ns=0,
                last_content_ns=0,
                first_chunk_ns=0,
                content_times_ns=array("Q"),
            )
        bare.append(
            replace(
                exchange,
                start_ns=0,
                request_end_ns=0,
                read_ns=0,
                first_byte_ns=0,
                end_ns=0,
                tid=0,
                generation=generation,
            )
        )
    return bare


def parts_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


def feed_in_order(conversation: list[tuple[bytes, bytes]]) -> Seen:
    c = Connection()
    seen = Seen(new_state()).feed(c.open())
    for asked, answered in conversation:
        seen.feed(c.read(asked)).feed(c.write(answered))
    return seen


@examples(200)
@given(
    st.lists(EXCHANGES, min_size=1, max_size=4),
    st.lists(st.integers(0, 5000), max_size=40),
    st.randoms(),
    st.booleans(),
)
def test_cuts_and_interleavings_give_the_same_exchanges(
    conversation: list[tuple[bytes, bytes]], cuts: list[int], order: random.Random, pipelined: bool
) -> None:
    expected = feed_in_order(conversation)
    c = Connection()
    seen = Seen(new_state()).feed(c.open())
    calls: list[tuple[str, bytes]] = []
    if pipelined:
        calls += [(READ, part) for part in parts_of(b"".join(asked for asked, _ in conversation), cuts)]
        calls += [
            (WRITE, part) for part in parts_of(b"".join(answered for _, answered in conversation), cuts)
        ]
    else:
        for asked, answered in conversation:
            calls += [(READ, part) for part in parts_of(asked, cuts)]
            calls += [(WRITE, part) for part in parts_of(answered, cuts)]
    for direction, data in calls:
        seen.feed(c.read(data, tid=order.randrange(1, 4)) if direction == READ else c.write(data))
    assert timeless(seen.exchanges) == timeless(expected.exchanges)
    assert len(seen.exchanges) == len(conversation)
    assert seen.counts() == {}
    assert_assignments_are_sound(seen)
    assert {assignment.exchange for assignment in seen.assignments if assignment.begins} <= {
        e.key for e in seen.exchanges
    }


@examples(100)
@given(st.lists(EXCHANGES, min_size=2, max_size=4), st.lists(st.integers(0, 5000), max_size=20), st.randoms())
def test_an_answer_may_be_written_while_the_next_request_is_read(
    conversation: list[tuple[bytes, bytes]], cuts: list[int], order: random.Random
) -> None:
    expected = feed_in_order(conversation)
    c = Connection()
    seen = Seen(new_state()).feed(c.open())
    seen.feed(c.read(conversation[0][0]))
    for (_, answered), (asked, _) in pairwise(conversation):
        reads, writes = parts_of(asked, cuts), parts_of(answered, cuts)
        while reads or writes:
            if reads and (not writes or order.random() < 0.5):
                seen.feed(c.read(reads.pop(0)))
            else:
                seen.feed(c.write(writes.pop(0)))
    seen.feed(c.write(conversation[-1][1]))
    assert timeless(seen.exchanges) == timeless(expected.exchanges)
    assert_assignments_are_sound(seen)


@examples(100)
@given(st.lists(EXCHANGES, min_size=1, max_size=4), st.randoms())
def test_records_out_of_order_give_the_same(
    conversation: list[tuple[bytes, bytes]], order: random.Random
) -> None:
    expected = feed_in_order(conversation)
    c = Connection()
    opening = c.open()
    batches = [batch for asked, answered in conversation for batch in (*c.read(asked), *c.write(answered))]
    order.shuffle(batches)
    seen = Seen(new_state()).feed(opening).feed(batches)
    assert seen.exchanges == expected.exchanges
    assert seen.assignments == expected.assignments


def assert_assignments_are_sound(seen: Seen) -> None:
    """An assignment of an exchange ends before another begins, of the same thread, later in time."""
    holder: dict[int, tuple[int, int]] = {}
    last_ns = 0
    for assignment in seen.assignments:
        assert assignment.time_ns >= last_ns
        last_ns = assignment.time_ns
        if assignment.begins:
            assert not holder
            holder[assignment.exchange] = (assignment.tgid, assignment.tid)
        else:
            assert holder.pop(assignment.exchange) == (assignment.tgid, assignment.tid)


FRAGMENTS = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 20\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 30\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"ffffffffffffffff\r\n",
        b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n',
        b'{"model":"m","stream":true}',
        b"\r\n",
        b"",
    ]
)
# Each is one choice: a record has ten, and to make them is what takes the time here.
NUMBERS = st.sampled_from([*range(51), *([(1 << 63) - 1, (1 << 64) - 1, 1 << 32, (1 << 31) - 1] * 12)])
RESULTS = st.sampled_from([*range(-120, 401), *([-(1 << 63), (1 << 63) - 1] * 250)])
SEQUENCES = st.sampled_from([*range(61), *([(1 << 32) - 1, 1 << 31] * 30)])
CAPTURED = st.sampled_from([None, None, 0, 65535])
KINDS = st.sampled_from(
    ["http_data_256", "http_data_1k", "http_data_4k", "http_data_16k", *(["http_open", "http_close"] * 2)]
)
WHO = st.sampled_from(list(product(range(4), range(4), range(1, 4), range(3))))


@st.composite
def hostile_batches(draw: st.DrawFn) -> Batch:
    kind = draw(KINDS)
    tgid, tid, connection, direction = draw(WHO)
    if kind in ("http_open", "http_close"):
        size = DTYPES[kind].itemsize
        record = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), "u1").copy().view(DTYPES[kind])
        record["connection"], record["head"]["tgid"] = connection, tgid
        if kind == "http_close":
            record["sequence"] = draw(SEQUENCES)
        return Batch(family="http", kind=kind, records=record)
    record = np.zeros(1, DTYPES[kind])
    chunk = record["chunk"]
    chunk["head"]["time_ns"], chunk["head"]["duration_ns"] = draw(NUMBERS), draw(NUMBERS)
    chunk["head"]["tgid"], chunk["head"]["tid"] = tgid, tid
    chunk["connection"], chunk["direction"], chunk["stream_offset"] = connection, direction, draw(NUMBERS)
    chunk["result"], chunk["sequence"] = draw(RESULTS), draw(SEQUENCES)
    data = draw(st.one_of(FRAGMENTS, st.binary(max_size=256)))
    captured = draw(CAPTURED)
    chunk["captured"] = len(data) if captured is None else captured
    record["data"][0, : len(data)] = np.frombuffer(data, "u1")
    return Batch(family="http", kind=kind, records=record)


@examples(300)
@given(st.lists(hostile_batches(), max_size=40))
def test_hostile_records_never_raise(batches: list[Batch]) -> None:
    seen = Seen(new_state(max_connections=2)).feed(batches)
    for tgid in range(4):
        seen.take(seen.state.process_gone(tgid, 1 << 63))
    seen.take(seen.state.expire(1 << 65)).take(seen.state.expire(1 << 66))
    held = [assignment.exchange for assignment in seen.assignments if assignment.begins]
    assert sorted(held) == sorted(
        assignment.exchange for assignment in seen.assignments if not assignment.begins
    )


@examples(300)
@given(
    st.lists(
        st.tuples(st.booleans(), st.one_of(FRAGMENTS, st.binary(max_size=300)), st.integers(0, 30)),
        max_size=40,
    )
)
def test_random_bytes_in_sequence_never_raise(calls: list[tuple[bool, bytes, int]]) -> None:
    c = Connection()
    seen = Seen(new_state()).feed(c.open())
    for write, data, gap in calls:
        if gap == 1:
            c.skip(WRITE if write else READ, 7)
        seen.feed(c.write(data) if write else c.read(data))
    seen.feed(c.close())
    assert seen.state.connection_count == 0
    assert_assignments_are_sound(seen)
    assert len(seen.exchanges) == len({exchange.key for exchange in seen.exchanges})
    assert seen.state._output.reserve(32 << 20)


def reachable_bytes(value: object, seen: set[int] | None = None) -> int:
    """Size of the byte strings and containers below an object."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, (type, str, int)):
        return 0
    seen.add(id(value))
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(reachable_bytes(v, seen) for v in value.values())
    if isinstance(value, (list, tuple, set)) or type(value).__name__ in ("deque", "OrderedDict"):
        return size + sum(reachable_bytes(v, seen) for v in value)  # type: ignore[attr-defined]
    names = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    names += list(getattr(value, "__dict__", {}))
    return size + sum(reachable_bytes(getattr(value, name, None), seen) for name in names)


@pytest.mark.slow
def test_memory_of_a_connection_is_bounded() -> None:
    start = request("POST", "/v1/completions", transfer_encoding="chunked")
    stream = response(200, None, content_type="text/event-stream")
    json_body = response(200, None, content_type="application/json")
    endless = {
        "header": (b"GET / HTTP/1.1\r\nx: ", b"y" * 16384, b""),
        "headers": (b"GET / HTTP/1.1\r\n", b"traceparent: " + b"y" * 1000 + b"\r\n", b""),
        "chunked request": (start, chunk(b"y" * 16000), b""),
        "chunk extension": (start, b"5;" + b"y" * 16000, b""),
        "trailer": (start + b"0\r\n", b"a: " + b"y" * 1000 + b"\r\n", b""),
        "event": (request("POST", "/v1/completions", b"{}"), b"", stream + b"data: " + b"y" * 16384),
        "json": (request("POST", "/v1/completions", b"{}"), b"", json_body + b"y" * 16384),
        "pipelined": (b"", request() * 100, b""),
    }
    for name, (first, again, answer) in endless.items():
        c = Connection()
        seen = Seen(new_state()).feed(c.open()).feed(c.read(first))
        for _ in range(200):
            seen.feed(c.read(again) if again else c.write(answer))
            answer = b"y" * 16384 if answer else answer
        assert reachable_bytes(seen.state) < 1_000_000, name
