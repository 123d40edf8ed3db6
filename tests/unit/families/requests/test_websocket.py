"""WebSockets: frames, masks, fragments, compression, gaps, and the responses of realtime APIs."""

from __future__ import annotations

import json
import random
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.websocket.frames import MAX_MESSAGE_BYTES, are_frames
from otelgpu.families.requests.websocket.permessage_deflate import (
    MAX_INFLATED_BYTES,
    Deflate,
    MessageInflater,
)
from otelgpu.model.exchange import Role, StartSource
from tests.rig.examples import examples
from tests.unit.families.requests.traffic import (
    MS,
    READ,
    WRITE,
    Connection,
    Seen,
    opened,
    request,
    response,
)

TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9
DEFLATE = "permessage-deflate"


def frame(
    payload: bytes, opcode: int = TEXT, *, masked: bool = False, final: bool = True, compressed: bool = False
) -> bytes:
    """One frame, in as few length bytes as there can be."""
    first = opcode | final << 7 | compressed << 6
    size = len(payload)
    if size < 126:
        head = bytes((first, size | masked << 7))
    elif size < 1 << 16:
        head = bytes((first, 126 | masked << 7)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, 127 | masked << 7)) + size.to_bytes(8, "big")
    if not masked:
        return head + payload
    mask = b"\x37\xfa\x21\x3d"
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


def event(kind: str, **fields: object) -> bytes:
    return json.dumps({"type": kind, **fields}).encode()


def done(identity: str, output_tokens: int = 7) -> bytes:
    usage = {"input_tokens": 5, "output_tokens": output_tokens, "total_tokens": 12}
    return event("response.done", response={"id": identity, "status": "completed", "usage": usage})


def delta(identity: str, text: str = "x") -> bytes:
    return event("response.output_text.delta", response_id=identity, delta=text)


def upgraded(
    role: str = "SERVER", *, path: str = "/v1/realtime", extensions: str = ""
) -> tuple[Connection, Seen]:
    """A connection after its handshake."""
    c, seen = opened(role)
    ask, answer = (c.read, c.write) if role == "SERVER" else (c.write, c.read)
    seen.feed(ask(request("GET", f"{path}?model=m", upgrade="websocket", connection="Upgrade")))
    agreed = {"sec-websocket-extensions": extensions} if extensions else {}
    seen.feed(answer(response(101, None, upgrade="WebSocket", connection="Upgrade", **agreed)))
    assert [(e.path, e.status_code, e.protocol) for e in seen.exchanges] == [(path, 101, "http")]
    seen.exchanges.clear()
    seen.assignments.clear()
    seen.opened.clear()
    return c, seen


def conversation() -> list[tuple[str, bytes]]:
    """Who sends what: one response, as OpenAI's API has it."""
    return [
        (WRITE, event("session.created", session={"model": "gpt-realtime"})),
        (READ, event("conversation.item.create", item={})),
        (READ, event("response.create")),
        (WRITE, event("response.created", response={"id": "resp_1"})),
        (WRITE, delta("resp_1")),
        (WRITE, delta("resp_1")),
        (WRITE, done("resp_1")),
    ]


def test_a_response_is_an_exchange() -> None:
    c, seen = upgraded()
    sent = 0
    for way, payload in conversation():
        data = frame(payload, masked=way == READ)
        sent += len(payload) if payload.startswith(b'{"type": "response.') and way == WRITE else 0
        seen.feed(c.read(data, tid=7) if way == READ else c.write(data, tid=7))
    (exchange,) = seen.exchanges
    assert (exchange.protocol, exchange.method, exchange.path) == ("websocket", "GET", "/v1/realtime")
    assert (exchange.role, exchange.start_source, exchange.ordinal) == (Role.SERVER, StartSource.READ, 1)
    assert (exchange.start_ns // MS, exchange.first_byte_ns // MS, exchange.end_ns // MS) == (
        1051,
        1060,
        1091,
    )
    assert (exchange.status_code, exchange.error, exchange.response_bytes) == (101, "", sent)
    generation = exchange.generation
    assert generation is not None
    assert (generation.response_id, generation.output_tokens, generation.content_deltas) == ("resp_1", 7, 2)
    assert (generation.response_model, generation.first_content_ns // MS) == ("gpt-realtime", 1070)
    assert [(n.key, n.request_id) for n in seen.named] == [(exchange.key, "resp_1")]
    assert [o.key for o in seen.opened] == [exchange.key]
    assert seen.assigned() == [(1051, 7, exchange.key), (1091, 7, -exchange.key)]
    assert seen.counts() == {}


def test_a_clients_response_is_timed_by_its_calls() -> None:
    c, seen = upgraded("CLIENT")
    for way, payload in conversation():
        data = frame(payload, masked=way == READ)
        seen.feed(c.write(data) if way == READ else c.read(data))
    (exchange,) = seen.exchanges
    assert (exchange.role, exchange.start_source) == (Role.CLIENT, StartSource.WRITE)
    assert (exchange.start_ns // MS, exchange.first_byte_ns // MS, exchange.end_ns // MS) == (
        1050,
        1061,
        1091,
    )
    assert seen.assignments == []


def test_responses_may_overlap_and_start_by_themselves() -> None:
    c, seen = upgraded()
    seen.feed(c.read(frame(event("response.create"), masked=True)))
    for payload in (
        event("response.created", response={"id": "a"}),
        event("response.created", response={"id": "b"}),  # speech: nobody asked for it
        delta("b"),
        delta("a"),
        done("b", 1),
        done("a", 2),
    ):
        seen.feed(c.write(frame(payload)))
    got = [
        (e.generation.response_id, e.generation.output_tokens, e.start_source)
        for e in seen.exchanges
        if e.generation
    ]
    assert got == [("b", 1, StartSource.WRITE), ("a", 2, StartSource.READ)]


def test_what_is_open_when_it_closes_ends_with_an_error() -> None:
    c, seen = upgraded()
    seen.feed(c.read(frame(event("response.create"), masked=True)))
    seen.feed(c.write(frame(event("response.created", response={"id": "a"})))).feed(c.close())
    assert [(e.error, e.status_code) for e in seen.exchanges] == [("connection_closed", 101)]
    assert [assignment.begins for assignment in seen.assignments] == [True, False]


def test_what_is_open_when_the_session_ends_is_counted() -> None:
    c, seen = upgraded()
    seen.feed(c.write(frame(event("response.created", response={"id": "resp_1"}))))
    seen.feed(c.write(frame(delta("resp_1"))))
    before = len(seen.exchanges)  # the handshake
    seen.take(seen.state.expire(c.now_ns, final=True))
    assert (len(seen.exchanges), seen.counts()) == (before, {"requests_under_way": 1})


def test_responses_that_never_end_do_not_pile_up() -> None:
    c, seen = upgraded()
    for _ in range(200):
        seen.feed(c.read(frame(event("response.create"), masked=True)))
    assert {e.error for e in seen.exchanges} == {"response_not_seen"}
    assert len(seen.exchanges) == 192


@examples(60)
@given(st.lists(st.integers(0, 3000), max_size=30), st.randoms())
def test_cuts_fragments_and_pings_change_nothing(cuts: list[int], order: random.Random) -> None:
    c, seen = upgraded()
    for way, payload in conversation():
        masked = way == READ
        middle = order.randrange(len(payload) + 1)
        parts = [
            frame(payload[:middle], masked=masked, final=False),
            frame(payload[middle:], 0, masked=masked),
        ]
        data = frame(b"ping", PING, masked=masked).join(parts)
        for a, b in pairwise(sorted({0, len(data), *(cut % len(data) for cut in cuts)})):
            seen.feed(c.read(data[a:b]) if masked else c.write(data[a:b]))
    (exchange,) = seen.exchanges
    assert exchange.generation is not None and exchange.generation.content_deltas == 2
    assert seen.counts() == {}


@pytest.mark.parametrize(
    ("extensions", "takeover"), [(DEFLATE, True), (f"{DEFLATE}; server_no_context_takeover", False)]
)
def test_compressed_messages_are_read(extensions: str, takeover: bool) -> None:
    c, seen = upgraded(extensions=extensions)
    stream = zlib.compressobj(wbits=-15)
    seen.feed(c.read(frame(event("response.create"), masked=True)))
    for payload in (event("response.created", response={"id": "a"}), delta("a"), delta("a"), done("a")):
        if not takeover:
            stream = zlib.compressobj(wbits=-15)
        text = stream.compress(payload) + stream.flush(zlib.Z_SYNC_FLUSH)
        seen.feed(c.write(frame(text[:-4], compressed=True)))
    (exchange,) = seen.exchanges
    assert exchange.generation is not None
    assert (exchange.generation.content_deltas, exchange.generation.output_tokens) == (2, 7)
    assert seen.counts() == {}
    seen.feed(c.close())
    assert seen.state._output.reserve(32 << 20)


def test_a_bomb_is_not_inflated() -> None:
    output = ParserOutput(1 << 20)
    for forgets in (False, True):
        inflater = MessageInflater(output, forgets=forgets)
        stream = zlib.compressobj(wbits=-15)
        bomb = stream.compress(bytes(MAX_INFLATED_BYTES + 1)) + stream.flush(zlib.Z_SYNC_FLUSH)
        assert len(bomb) < 2000
        assert inflater.inflate(bomb[:-4]) is None
        small = zlib.compressobj(wbits=-15)
        text = small.compress(b"text") + small.flush(zlib.Z_SYNC_FLUSH)
        assert inflater.inflate(text[:-4]) == (b"text" if forgets else None)
        assert inflater.inflate(b"\xff\xff") is None
        inflater.drop()
        assert output.reserve(1 << 20)
        output.release(1 << 20)


def test_what_was_agreed_is_the_first_extension() -> None:
    agreed = Deflate(b"Permessage-Deflate; client_no_context_takeover; server_max_window_bits=12, x-other")
    assert (agreed.agreed, agreed.client_forgets, agreed.server_forgets) == (True, True, False)
    assert not Deflate(b"").agreed


def test_a_message_with_a_gap_costs_only_itself() -> None:
    c, seen = upgraded()
    seen.feed(c.read(frame(event("response.create"), masked=True)))
    seen.feed(c.write(frame(event("response.created", response={"id": "a"}))))
    seen.feed(c.write(frame(delta("a", "y" * 60_000)), captured=16384, tail=100))
    seen.feed(c.write(frame(done("a"))))
    assert [(e.error, e.generation is not None) for e in seen.exchanges] == [("", True)]
    assert seen.counts() == {"websocket_messages_not_read": 1}


def test_a_gap_in_a_frame_head_is_left_behind_at_the_next_whole_frames() -> None:
    c, seen = upgraded()
    seen.feed(c.read(frame(event("response.create"), masked=True)))
    c.skip(WRITE, 40)
    seen.feed(c.write(b"rest of it")).feed(c.write(frame(event("response.created", response={"id": "a"}))))
    seen.feed(c.write(frame(delta("a")) + frame(done("a"))))
    assert [e.error for e in seen.exchanges] == [""]
    assert seen.counts() == {"resync_bytes_skipped": 10}


def test_a_huge_message_is_passed_over_without_being_kept() -> None:
    c, seen = upgraded()
    audio = event("input_audio_buffer.append", audio="A" * (MAX_MESSAGE_BYTES + 1))
    seen.feed(c.read(frame(audio, masked=True))).feed(c.read(frame(event("response.create"), masked=True)))
    seen.feed(c.close())
    assert len(seen.exchanges) == 1
    assert seen.counts() == {"websocket_messages_not_read": 1}
    assert seen.state._output.reserve(32 << 20)


def test_a_hundred_megabytes_with_a_gap_cost_nothing() -> None:
    c, seen = upgraded()
    size = 100 << 20
    seen.feed(c.write(bytes((0x80 | BINARY, 127)) + size.to_bytes(8, "big")))
    c.skip(WRITE, size)
    seen.feed(c.read(frame(event("response.create"), masked=True)))
    seen.feed(c.write(frame(event("response.created", response={"id": "a"})) + frame(done("a"))))
    assert [e.error for e in seen.exchanges] == [""]
    assert seen.counts() == {"websocket_messages_not_read": 1}


def test_a_websocket_of_another_application_is_only_counted() -> None:
    c, seen = upgraded(path="/chat")
    seen.feed(c.read(frame(b"hello", masked=True))).feed(c.write(frame(b"hi") + frame(b"", CLOSE)))
    seen.feed(c.close())
    assert (seen.exchanges, seen.counts()) == ([], {"websocket_messages": 2})


@pytest.mark.parametrize(
    "bad",
    [
        b"\x83\x80\0\0\0\0",  # a reserved opcode
        b"\xa1\x80\0\0\0\0",  # a reserved bit
        b"\xc1\x80\0\0\0\0",  # compressed, which was not agreed
        b"\x81\x00",  # a client that does not mask
        b"\x80\x80\0\0\0\0",  # a continuation of nothing that a whole stream can have
        b"\x09\x80\0\0\0\0",  # a control frame in parts
        b"\x89\xfe\0\x80\0\0\0\0",  # a control frame that is too long
        b"\x82\xff" + b"\xff" * 8 + bytes(4),  # longer than a length can be
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_frame_ends_it(bad: bytes) -> None:
    c, seen = upgraded()
    seen.feed(c.read(frame(event("response.create"), masked=True))).feed(c.read(bad))
    seen.feed(c.read(bad)).feed(c.close())
    assert [e.error for e in seen.exchanges] == ["invalid_websocket"]
    assert seen.counts() == {"websocket_invalid": 1}


def test_frames_behind_the_handshake_in_one_call_are_read() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/v1/realtime", upgrade="websocket", connection="Upgrade")))
    first = frame(event("response.created", response={"id": "a"})) + frame(done("a"))
    seen.feed(c.write(response(101, None, upgrade="websocket", connection="Upgrade") + first))
    assert [(e.ordinal, e.status_code) for e in seen.exchanges] == [(0, 101), (1, 101)]


@examples(150)
@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.one_of(
                st.binary(max_size=40),
                st.sampled_from(
                    [
                        frame(event("response.create"), masked=True),
                        frame(done("a")),
                        frame(b"x", 0),
                        b"\x81",
                        b"\x81\xfe",
                    ]
                ),
            ),
            st.integers(0, 8),
        ),
        max_size=20,
    )
)
def test_random_bytes_never_raise(calls: list[tuple[bool, bytes, int]]) -> None:
    c, seen = upgraded(extensions=DEFLATE)
    for write, data, gap in calls:
        if gap == 0:
            c.skip(WRITE if write else READ, 5)
        seen.feed(c.write(data) if write else c.read(data))
    seen.feed(c.close())
    assert seen.state._output.reserve(32 << 20)
    held = [assignment.exchange for assignment in seen.assignments if assignment.begins]
    assert sorted(held) == sorted(
        assignment.exchange for assignment in seen.assignments if not assignment.begins
    )


@pytest.mark.parametrize(
    "data",
    [
        frame(b"text")[:-1],
        frame(b"text") + b"\x81",
        frame(b"text", masked=True),
        frame(b"text", 3),
        frame(b"x" * 200)[:3],
        b"",
    ],
)
def test_only_whole_frames_are_a_place_to_go_on(data: bytes) -> None:
    assert are_frames(frame(b"text") + frame(b""), masked=False, deflate=False)
    assert not are_frames(data, masked=False, deflate=False)
