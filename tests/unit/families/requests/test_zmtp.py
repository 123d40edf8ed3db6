"""ZMTP framing: what libzmq itself sends, cut anywhere, with gaps, found open, and hostile bytes."""

from __future__ import annotations

import functools
import itertools

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from examples.engine.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    SamplingParams,
    SchedulerStats,
)
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Recognition
from otelgpu.families.requests.protocols import BUILT_IN
from otelgpu.families.requests.zmtp.frames import GREETING_BYTES, MAX_HEAD_BYTES, TAIL_BYTES, Body
from otelgpu.families.requests.zmtp.parser import SPEC, recognise
from otelgpu.model.engine_messages import EngineItem, EngineMessage, EngineOutput, EngineRequest
from otelgpu.model.exchange import Role
from tests.rig.examples import examples
from tests.unit.families.requests.zmtp_traffic import (
    MS,
    READY,
    Chunk,
    call,
    frame,
    greeting,
    losses,
    message,
    parser,
    play,
    record,
    sent,
)

TRACE_ID, SPAN_ID = bytes(range(16)), bytes(range(8, 16))
PARENT = f"00-{TRACE_ID.hex()}-{SPAN_ID.hex()}-01"
encode = msgspec.msgpack.encode


def request(number: int, prompt: int = 3, **fields: object) -> bytes:
    return encode(
        EngineCoreRequest(
            request_id=f"chatcmpl-{number}",
            prompt_token_ids=list(range(1000, 1000 + prompt)),
            mm_features=None,
            sampling_params=SamplingParams(max_tokens=5),
            pooling_params=None,
            arrival_time=1.5,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
            trace_headers={"traceparent": PARENT},
            external_req_id="chatcmpl",
            **fields,
        )
    )


def engine_output(step: int, requests: int = 2) -> bytes:
    return encode(
        EngineCoreOutputs(
            outputs=[
                EngineCoreOutput(f"chatcmpl-{n}", [step], finish_reason=FinishReason.LENGTH if n else None)
                for n in range(requests)
            ],
            scheduler_stats=SchedulerStats(num_running_reqs=requests, num_waiting_reqs=1),
        )
    )


def identity(reported: EngineMessage) -> tuple[object, ...]:
    """What must be the same however the bytes were cut: all but times."""
    if isinstance(reported, EngineRequest):
        return reported.request_id, reported.prompt_tokens, reported.parent, reported.sent
    return reported.items, reported.running, reported.waiting, reported.sent


@functools.cache
def recorded() -> tuple[Chunk, ...]:
    """A DEALER that sends requests, aborts, and long messages with frames of tensors to a ROUTER."""
    return tuple(
        record(
            zmq.DEALER,
            zmq.ROUTER,
            [
                [b"\x00", request(0)],
                [b"\x01", encode(["chatcmpl-0"])],
                [b"\x00", request(1, 4000), b"\x9a" * 70_000, b"", b"\x00"],
                [b"not an engine's", b"\x00", b"\x90"],
                [b"\x00", request(2)],
            ],
        )
    )


@functools.cache
def recorded_outputs() -> tuple[Chunk, ...]:
    return tuple(record(zmq.PUSH, zmq.PULL, [[engine_output(step, 1 + step * 20)] for step in range(4)]))


def test_requests_that_libzmq_sends_are_read_at_the_end_that_sends() -> None:
    output = play(recorded())
    assert [identity(reported) for reported in output.messages] == [
        ("chatcmpl-0", 3, output.messages[0].parent, True),
        ("chatcmpl-1", 4000, output.messages[0].parent, True),
        ("chatcmpl-2", 3, output.messages[0].parent, True),
    ]
    parent = output.messages[0].parent
    assert (parent.trace_id, parent.span_id, parent.flags) == (TRACE_ID, SPAN_ID, 1)
    assert losses(output) == {}


def test_outputs_that_libzmq_sends_are_read_at_the_end_that_receives() -> None:
    output = play(recorded_outputs(), role=Role.SERVER)
    assert [len(reported.items) for reported in output.messages] == [1, 21, 41, 61]
    first = output.messages[0]
    assert identity(first) == ((EngineItem(request_id="chatcmpl-0", new_tokens=1),), 1, 1, False)
    assert output.messages[1].items[20] == EngineItem(request_id="chatcmpl-20", new_tokens=1, finished=True)


@pytest.mark.parametrize(
    ("role", "from_client", "is_sent"),
    [
        (Role.CLIENT, True, True),
        (Role.CLIENT, False, False),
        (Role.SERVER, True, False),
        (Role.SERVER, False, True),
    ],
)
def test_a_message_is_sent_by_the_end_that_was_observed_or_received(
    role: Role, from_client: bool, is_sent: bool
) -> None:
    chunks = [Chunk(from_client, greeting() + READY), Chunk(from_client, message(b"\0", request(1)))]
    (reported,) = play(chunks, role=role).messages
    assert reported.sent is is_sent
    assert reported.time_ns == (10 * MS if is_sent else 11 * MS)  # its write began, or its read returned


def test_a_message_in_several_calls_has_the_time_of_its_first_write_or_its_last_read() -> None:
    data = message(b"\0", request(1))
    for role, time_ns in ((Role.CLIENT, 10 * MS), (Role.SERVER, 21 * MS)):
        chunks = [Chunk(True, greeting()), Chunk(True, data[:40]), Chunk(True, data[40:])]
        assert [reported.time_ns for reported in play(chunks, role=role).messages] == [time_ns]


@examples(60)
@given(st.data())
def test_what_is_reported_does_not_depend_on_the_cuts(data: st.DataObject) -> None:
    whole = recorded() if data.draw(st.booleans()) else recorded_outputs()
    for from_client in (True, False):
        stream = b"".join(chunk.data for chunk in whole if chunk.from_client is from_client)
        cuts = sorted({0, len(stream), *data.draw(st.lists(st.integers(0, len(stream)), max_size=12))})
        chunks = [Chunk(from_client, stream[a:b]) for a, b in itertools.pairwise(cuts)]
        assert list(map(identity, play(chunks).messages)) == [
            identity(reported) for reported in play(whole).messages if from_client
        ]


@examples(100)
@given(st.data())
def test_gaps_hide_messages_but_never_make_one_up(data: st.DataObject) -> None:
    whole = recorded() if data.draw(st.booleans()) else recorded_outputs()
    truth = [identity(reported) for reported in play(whole).messages]
    holed = []
    for chunk in whole:
        gap = (
            sorted(data.draw(st.tuples(*[st.integers(0, len(chunk.data))] * 2)))
            if data.draw(st.booleans())
            else None
        )
        parts = [chunk.data] if gap is None else [chunk.data[: gap[0]], gap[1] - gap[0], chunk.data[gap[1] :]]
        holed += [Chunk(chunk.from_client, part) for part in parts if part]
    for reported in play(holed).messages:
        if isinstance(reported, EngineRequest):
            assert any(
                reported.request_id == right[0]
                and reported.prompt_tokens in (right[1], None)
                and reported.parent in (right[2], None)
                for right in truth
            )
        else:
            assert identity(reported) in truth


def test_a_gap_inside_a_body_leaves_the_messages_around_it() -> None:
    hidden = frame(b"\x93" * 60_000)
    chunks = [
        Chunk(True, greeting() + message(b"\0", request(1)) + hidden[:50]),
        Chunk(True, 60_009 - 100),
        Chunk(True, hidden[-50:] + message(b"\0", request(2))),
    ]
    output = play(chunks)
    assert [reported.request_id for reported in output.messages] == ["chatcmpl-1", "chatcmpl-2"]


def test_after_a_gap_over_a_frames_head_reading_goes_on_where_a_call_begins_with_a_message() -> None:
    data = message(b"\0", request(1))
    output = play(
        [
            Chunk(True, greeting() + data),
            Chunk(True, len(data) + 10),
            Chunk(True, data[20:] + data),  # a message, but not at the beginning of a call
            Chunk(True, message(b"\0", request(3)) + message(b"\0", request(4))),
        ]
    )
    assert [reported.request_id for reported in output.messages] == [
        "chatcmpl-1",
        "chatcmpl-3",
        "chatcmpl-4",
    ]
    assert losses(output) == {"capture_gaps": 1, "resync_bytes_skipped": 2 * len(data) - 20}


def test_only_where_a_call_begins_reading_goes_on() -> None:
    """A call of which the middle was not captured comes in two chunks, of the same call."""
    for again in (message(b"\0", request(1)), greeting() + message(b"\0", request(1))):
        reader, output = parser(late=True)
        one = call(0)
        reader.feed(one, b"middle", 0, from_client=True)
        reader.gap(one, 1000, 6, from_client=True)
        reader.feed(one, again, 1006, from_client=True)
        assert output.messages == []
        reader.feed(call(1), again, 2006, from_client=True)
        assert [reported.request_id for reported in output.messages] == ["chatcmpl-1"]


def test_a_body_keeps_its_beginning_and_what_is_next_to_its_end() -> None:
    body = Body(30, ParserOutput(1 << 20))
    body.add(b"0123456789")
    body.gap()
    body.add(b"lost")
    body.gap()
    body.add(b"the ")
    body.add(b"end")
    assert (bytes(body.head), bytes(body.tail), body.complete) == (b"0123456789", b"the end", False)
    for _ in range(10):
        body.add(b"x" * 1000)
    assert bytes(body.tail) == b"x" * TAIL_BYTES


def test_of_a_long_request_the_ends_suffice() -> None:
    """16 KiB and the last 4 KiB of a large call are captured: the traceparent is in the latter."""
    data = message(b"\0", request(1, 120_000))
    assert len(data) > 300_000
    chunks = [Chunk(True, greeting()), Chunk(True, data[:16_384])]
    chunks += [Chunk(True, len(data) - 16_384 - 4096), Chunk(True, data[-4096:])]
    output = play(chunks)
    ((reported,), expected) = output.messages, sent(data)[0]
    assert (reported.request_id, reported.prompt_tokens) == ("chatcmpl-1", 120_000)
    assert reported.parent == expected.parent is not None
    assert losses(output) == {}


def test_a_request_longer_than_what_is_kept_is_reported_with_its_parent() -> None:
    data = message(b"\0", request(1, 500_000))
    assert len(data) > MAX_HEAD_BYTES
    (reported,) = sent(data)
    assert reported.prompt_tokens == 500_000
    assert reported.parent is not None


def test_without_its_end_a_long_request_has_no_parent_and_that_is_counted() -> None:
    data = message(b"\0", request(1, 100_000))
    output = play([Chunk(True, greeting()), Chunk(True, data[:16_384]), Chunk(True, len(data) - 16_384)])
    assert [reported.parent for reported in output.messages] == [None]
    assert losses(output) == {"engine_parent_unseen": 1}


@pytest.mark.parametrize("late", [True, False])
def test_a_connection_found_open_is_read_from_the_next_message_on(late: bool) -> None:
    chunks = [
        Chunk(True, request(0)[30:]),
        Chunk(True, message(b"\0", request(1))),
        Chunk(False, message(engine_output(1))),
    ]
    output = play(chunks, late=late)
    reported = [type(message) for message in output.messages]
    assert reported == ([EngineRequest, EngineOutput] if late else [EngineRequest])
    assert output.counters["late_bytes_skipped" if late else "zmtp_malformed"] > 0


@pytest.mark.parametrize("from_client", [True, False])
def test_long_messages_on_a_connection_found_open_are_not_taken_for_another_protocol(
    from_client: bool,
) -> None:
    """A long frame's head is also that of DATA on a stream of HTTP/2."""
    items = [EngineCoreOutput(request_id=f"chatcmpl-{i}-0a1b2c3d", new_token_ids=[i]) for i in range(30)]
    long = message(encode(EngineCoreOutputs(outputs=items, scheduler_stats=SchedulerStats())))
    assert long[0] == 2
    sure = [spec for spec in BUILT_IN if spec.recognise(long, from_client, True) is Recognition.YES]
    assert sure[0] is SPEC


def test_a_greeting_on_a_connection_found_open_is_a_beginning() -> None:
    assert len(play(recorded(), late=True).messages) == 3


def test_encrypted_connections_are_given_up_and_counted() -> None:
    public, secret = zmq.curve_keypair()

    def curve(end: zmq.Socket, is_server: bool) -> None:
        end.curve_server = is_server
        end.curve_publickey, end.curve_secretkey = public, secret
        if not is_server:
            end.curve_serverkey = public

    output = play(record(zmq.DEALER, zmq.ROUTER, [[b"\0", request(1)]], curve))
    assert output.messages == []
    assert losses(output) == {"zmtp_mechanism_unsupported": 1}


@pytest.mark.parametrize(
    ("beginning", "counter"),
    [
        (greeting(b"PLAIN"), "zmtp_mechanism_unsupported"),
        (greeting(b"NULLX"), "zmtp_mechanism_unsupported"),
        (greeting(version=1), "zmtp_version_unsupported"),
        (b"\xff" + bytes(7) + b"\x01\x7e" + bytes(60), "zmtp_malformed"),
        (greeting() + b"\x08\x00", "zmtp_malformed"),  # a reserved flag
        (greeting() + b"\x05\x00", "zmtp_malformed"),  # a command with more to come
        (greeting() + b"\x01\x00\x04\x00", "zmtp_malformed"),  # a command within a message
        (greeting() + b"\x02\x80" + bytes(7), "zmtp_malformed"),  # longer than anything
        (greeting() + message(b"\0", request(1))[:60], "zmtp_messages_cut"),
    ],
)
def test_what_is_not_read_is_counted_once(beginning: bytes, counter: str) -> None:
    assert losses(play([Chunk(True, beginning)])) == {counter: 1}


def test_commands_and_heart_beats_between_messages_are_passed_over() -> None:
    ping = frame(b"\x04PING\x00\x0a", command=True)
    reported = sent(
        ping + message(b"\0", request(1)) + ping + frame(b"x" * 300, command=True) + message(engine_output(1))
    )
    assert [type(one) for one in reported] == [EngineRequest, EngineOutput]


def test_a_message_is_recognised_by_its_beginning() -> None:
    assert recognise(greeting(), True, False) is Recognition.YES
    assert recognise(greeting()[:10], False, False) is Recognition.YES
    assert recognise(greeting()[:9], True, False) is Recognition.MORE
    assert recognise(b"\xff", True, False) is recognise(b"", True, False) is Recognition.MORE
    for other in (b"GET / HTTP/1.1", b"\x16\x03\x01", b"\xff" * 10, message(b"\0", request(1))):
        assert recognise(other, True, False) is Recognition.NO
    for open_already in (
        message(b"\0", request(1)),
        message(engine_output(2)),
        frame(b"\x04PING\0\0", command=True),
    ):
        assert recognise(open_already, True, True) is Recognition.YES
    for doubtful in (b"\x00\x01x", message(b"\0", b"\x91\xa1x"), frame(b"\x93\x00\x91\x01")):
        assert recognise(doubtful, True, True) in (Recognition.NO, Recognition.MORE)
    assert SPEC.recognise is recognise


def test_a_body_of_a_hundred_megabytes_holds_little_and_stops_nothing() -> None:
    reader, output = parser(budget=3 << 20)
    chunk = b"\x92" * (1 << 20)
    reader.feed(call(0), greeting() + frame(chunk * 100)[:9], 0, from_client=True)
    for number in range(100):
        reader.feed(call(number), chunk, 73, from_client=True)
        assert output.reserve((2 << 20) - 8192), "more is held than one head and one tail"
        output.release((2 << 20) - 8192)
    assert not reader.busy
    reader.feed(call(200), message(b"\0", request(1)), 0, from_client=True)
    assert [reported.request_id for reported in output.messages] == ["chatcmpl-1"]


def test_without_a_budget_requests_are_passed_over_and_counted() -> None:
    output = play([Chunk(True, greeting()), Chunk(True, message(b"\0", request(1)))], budget=8)
    assert output.messages == []
    assert losses(output) == {"engine_messages_cut": 1}


@examples(150)
@given(
    st.lists(st.one_of(st.binary(max_size=300), st.integers(1, 1 << 40)), max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_no_bytes_make_it_raise(bodies: list[bytes | int], greeted: bool, late: bool) -> None:
    chunks = [Chunk(True, greeting())] if greeted else []
    play([*chunks, *(Chunk(True, body) for body in bodies if body)], late=late)


def test_what_ended_is_not_read_any_more() -> None:
    reader, output = parser()
    reader.feed(call(0), greeting() + message(b"\0", request(1)), 0, from_client=True)
    reader.end(call(1), from_client=True)
    reader.abort(2, "connection_closed")
    reader.feed(call(3), message(b"\0", request(2)), GREETING_BYTES, from_client=True)
    reader.gap(call(4), 10, 0, from_client=True)
    assert [reported.request_id for reported in output.messages] == ["chatcmpl-1"]
    assert reader.ignored
    assert reader.successor is None
    assert not reader.busy
