"""HTTP/2 on a connection found open: from wherever one looks, what is reported is part of the truth."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.requests.exchange_signals import attributes, span_name
from otelgpu.families.requests.http2.frame_heads import DATA, HEADERS, PING, RST_STREAM
from otelgpu.families.requests.http2.frame_search import MAX_LOOKS, FrameSearch
from otelgpu.families.requests.http2.frames import MAX_MISTAKES
from otelgpu.families.requests.http2.grpc import GrpcMessageReader
from otelgpu.families.requests.routes import template
from otelgpu.families.requests.signals.http import measurements
from otelgpu.model.exchange import UNSEEN, Exchange, Generation, Role
from tests.rig.examples import examples
from tests.unit.families.requests.http2_traffic import Observed, Pair, Wire, frame, request_fields

JSON = ("content-type", "application/json")
EVENTS = ("content-type", "text/event-stream")
GRPC = ("content-type", "application/grpc")
CHAT = b'{"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"hi"}]}'
ANTHROPIC = b'{"model":"c","stream":true,"max_tokens":7,"messages":[{"role":"user","content":"hi"}]}'
OLLAMA = b'{"model":"o","messages":[{"role":"user","content":"hi"}]}'
CHUNK = b'data: {"id":"chatcmpl-1","model":"m-1","choices":[{"delta":{"content":"x"}}]}\n\n'
USAGE = b'data: {"id":"chatcmpl-1","model":"m-1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
DONE = b"data: [DONE]\n\n"


def text(number: int, *values: bytes) -> bytes:
    """Protobuf fields with a length, one number."""
    return b"".join(bytes((number << 3 | 2, len(value))) + value for value in values)


def message(data: bytes) -> bytes:
    """A message of gRPC."""
    return b"\0" + len(data).to_bytes(4, "big") + data


def tensor(name: bytes, value: bytes) -> bytes:
    return text(1, name) + text(2, b"BYTES") + text(5, text(8, value))


INFER = message(text(1, b"llama") + text(3, b"r-1") + text(5, tensor(b"text_input", b"hi")))
INFERRED = message(text(2, text(1, b"llama") + text(3, b"r-1") + text(5, tensor(b"text_output", b"x"))))


class Conversation:
    """A connection that has worked for a while: all that is asked again is a number in a table by now."""

    def __init__(self) -> None:
        self.pair = Pair()
        for _ in range(2):
            self.chat(b"")
            self.triton(b"")
        self.before = len(self.pair.wire)

    def ask(self, path: str, body: bytes, *more: tuple[str, str]) -> int:
        return self.pair.request(request_fields(path, *more), body)

    def answer(
        self, number: int, *parts: bytes, kind: tuple[str, str] = EVENTS, trailers: bool = False
    ) -> None:
        """A response, each part of its own call."""
        self.pair.server.send_headers(number, [(":status", "200"), kind])
        self.pair.flush()
        for position, part in enumerate(parts):
            last = position == len(parts) - 1 and not trailers
            self.pair.server.send_data(number, part, end_stream=last)
            self.pair.flush()
        if trailers:
            self.pair.server.send_headers(
                number, [("grpc-status", "0"), ("grpc-message", "")], end_stream=True
            )
            self.pair.flush()

    def chat(self, *parts: bytes, body: bytes = CHAT, path: str = "/v1/chat/completions") -> None:
        self.answer(self.ask(path, body, JSON), *parts, DONE)

    def triton(self, *parts: bytes) -> None:
        number = self.ask("/inference.GRPCInferenceService/ModelStreamInfer", INFER, GRPC)
        self.answer(number, *parts, kind=GRPC, trailers=True)

    def observed(self, role: Role = Role.SERVER, skipped: int | None = None, cut: int = 0) -> Observed:
        """What is seen of all but the first calls, and of the next one all but the first bytes."""
        return see(self.pair.wire, role, self.before if skipped is None else skipped, cut)


def see(wire: Wire, role: Role, skipped: int, cut: int = 0) -> Observed:
    """Offsets and times are those of who sees all, so that exchanges can be compared."""
    observed = Observed(role=role, late=skipped > 0 or cut > 0)
    for position, (from_client, data) in enumerate(wire):
        call = observed.call(from_client)
        missing = len(data) if position < skipped else min(cut, len(data)) if position == skipped else 0
        observed.offsets[from_client] += missing
        if missing < len(data):
            observed.feed(from_client, data[missing:], call=call)
    return observed.close()


BOTH_ENDS = pytest.mark.parametrize("role", [Role.SERVER, Role.CLIENT])


def generation_of(exchange: Exchange) -> Generation:
    assert exchange.generation is not None
    return exchange.generation


@BOTH_ENDS
def test_a_stream_of_an_unknown_path_has_its_tokens_and_times(role: Role) -> None:
    conversation = Conversation()
    conversation.chat(CHUNK, CHUNK, CHUNK)
    observed = conversation.observed(role)
    (exchange,) = observed.exchanges
    assert (exchange.path, exchange.method, exchange.status_code, exchange.error) == ("", "POST", 200, "")
    generation = generation_of(exchange)
    assert (generation.operation, generation.provider, generation.request_model) == ("chat", "openai", "m")
    assert (generation.response_model, generation.max_tokens, generation.stream) == ("m-1", 9, True)
    assert (generation.output_tokens, generation.usage_reported, generation.whole) == (3, False, True)
    whole = Observed(role=role).wire(conversation.pair.wire).close().exchanges[-1]
    assert exchange.time_to_first_token_s == whole.time_to_first_token_s is not None
    assert exchange.wire_id == whole.wire_id
    assert {"hpack_unknown"} == observed.counted.keys() - {"late_bytes_skipped"}


@BOTH_ENDS
def test_a_stream_of_triton_has_its_tokens_and_times(role: Role) -> None:
    conversation = Conversation()
    conversation.triton(INFERRED, INFERRED)
    (exchange,) = conversation.observed(role).exchanges
    generation = generation_of(exchange)
    assert (generation.request_model, generation.provider, generation.request_id) == (
        "llama",
        "triton",
        "r-1",
    )
    assert (generation.operation, generation.output_tokens) == ("text_completion", 2)
    whole = Observed(role=role).wire(conversation.pair.wire).close().exchanges[-1]
    assert exchange.time_to_first_token_s == whole.time_to_first_token_s is not None
    assert exchange.rpc is not None and (
        exchange.rpc.method,
        exchange.rpc.requests,
        exchange.rpc.responses,
    ) == (
        "",
        1,
        2,
    )


@pytest.mark.parametrize(
    ("body", "parts", "provider", "operation"),
    [
        (
            ANTHROPIC,
            [
                b'data: {"type":"message_start","message":{"type":"message","id":"a","model":"c"}}\n\n',
                b'data: {"type":"content_block_delta","delta":{"text":"x"}}\n\n',
                b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}\n\n',
            ],
            "anthropic",
            "chat",
        ),
        (
            OLLAMA,
            [
                b'{"model":"o","message":{"content":"x"},"done":false}\n',
                b'{"model":"o","done":true,"eval_count":1}\n',
            ],
            "ollama",
            "chat",
        ),
        (
            b'{"model":"m","prompt":"hi"}',
            [b'{"id":"c","model":"m","choices":[{"text":"x"}],"usage":{"completion_tokens":1}}'],
            "openai",
            "text_completion",
        ),
        (
            b'{"model":"e","input":"hi"}',
            [b'{"object":"list","model":"e","data":[{"object":"embedding"}],"usage":{"prompt_tokens":1}}'],
            "openai",
            "embeddings",
        ),
        (
            b'{"model":"m","input":"hi"}',
            [b'{"object":"response","model":"m","usage":{"output_tokens":1}}'],
            "openai",
            "chat",
        ),
        (
            b'{"inputs":"hi","parameters":{"max_new_tokens":4}}',
            [b'{"generated_text":"x","details":{"generated_tokens":1}}'],
            "tgi",
            "text_completion",
        ),
    ],
    ids=["anthropic", "ollama", "completion", "embeddings", "responses", "tgi"],
)
def test_an_api_is_known_by_its_bodies(
    body: bytes, parts: list[bytes], provider: str, operation: str
) -> None:
    conversation = Conversation()
    conversation.answer(conversation.ask("/v1/chat/completions", body, JSON), *parts, kind=EVENTS)  # unknown
    (exchange,) = conversation.observed().exchanges
    generation = generation_of(exchange)
    assert (generation.provider, generation.operation) == (provider, operation)
    assert generation.output_tokens == (None if operation == "embeddings" else 1)


@pytest.mark.parametrize(
    ("body", "response"),
    [
        (b'{"model":"m","messages":[1]}', b'{"ok":true}'),
        (b'{"question":"?"}', b'{"choices":[{"text":"x"}]}'),
        (b"not JSON", CHUNK),
        (
            b'{"model":"m","input":"x"}',
            b'{"object":"list","model":"m","data":[{"label":"a"}],"usage":{"prompt_tokens":1}}',
        ),
        (message(b"\x08\x01"), message(text(1, b"error"))),
        (INFER, message(text(1, b"no such model"))),
    ],
)
def test_bodies_that_fit_no_api_are_no_generation(body: bytes, response: bytes) -> None:
    conversation = Conversation()
    conversation.answer(conversation.ask("/v1/chat/completions", body, JSON), response, kind=JSON)
    (exchange,) = conversation.observed().exchanges
    assert exchange.generation is None and exchange.status_code == 200


def test_what_is_unknown_is_left_out() -> None:
    conversation = Conversation()
    conversation.answer(conversation.ask("/v1/chat/completions", b"{}", JSON), b"{}", kind=JSON)
    (exchange,) = conversation.observed().exchanges
    routes = [template(exchange.path)]
    keys = {attribute.key for attribute in attributes([exchange], routes)}
    assert not keys & {"http.route", "url.path", "url.template"}
    assert span_name(exchange, routes[0]) == "POST"
    assert {key for each in measurements([exchange], routes) for key in each.labels} == {
        "http.request.method",
        "http.response.status_code",
        "url.scheme",
    }


# Beginnings that were not seen


def observed_from_response(skip: int, *parts: bytes, kind: tuple[str, str] = EVENTS) -> Exchange:
    """The request is seen whole; of the server's calls the first are not."""
    conversation = Conversation()
    if kind is GRPC:
        conversation.triton(*parts)
    else:
        conversation.chat(*parts)
    observed = Observed(late=True)
    for from_client, data in conversation.pair.wire[conversation.before :]:
        call = observed.call(from_client)
        if from_client or skip <= 0:
            observed.feed(from_client, data, call=call)
        skip -= not from_client
    (exchange,) = observed.close().exchanges
    return exchange


def test_a_response_without_its_beginning_has_no_first_token_and_only_reported_tokens() -> None:
    counted = generation_of(exchange := observed_from_response(2, CHUNK, CHUNK, CHUNK))
    assert (counted.output_tokens, counted.first_content_ns, counted.first_chunk_ns) == (None, 0, 0)
    assert (exchange.first_byte_ns, exchange.status_code) == (0, 0)
    assert (exchange.error, exchange.error_type, exchange.answered) == ("capture_gap", "", True)
    reported = generation_of(observed_from_response(2, CHUNK, CHUNK, USAGE))
    assert (reported.output_tokens, reported.input_tokens, reported.usage_reported) == (4, 3, True)


def test_trailers_are_no_head_of_a_response() -> None:
    exchange = observed_from_response(3, INFERRED, INFERRED, kind=GRPC)
    assert (exchange.first_byte_ns, exchange.answered, exchange.error_type) == (0, True, "")
    assert exchange.rpc is None and exchange.generation is None  # nothing shows what it is


def test_a_response_that_passed_before_frames_were_found_is_no_error() -> None:
    exchange = observed_from_response(99, CHUNK)
    assert (exchange.error, exchange.error_type, exchange.answered) == ("capture_gap", "", False)


def test_a_gap_of_unknown_size_is_no_message() -> None:
    reader = GrpcMessageReader(Observed().output)
    reader.feed(INFERRED, 1)
    reader.gap(0)
    assert (reader.count, reader.known_count) == (1, None)


@pytest.mark.parametrize("missing", [0, 1])
def test_tokens_of_messages_that_were_not_captured_are_not_counted(missing: int) -> None:
    conversation = Conversation()
    conversation.triton(INFERRED, INFERRED, INFERRED)
    observed = Observed()
    messages = 0
    for from_client, data in conversation.pair.wire:
        messages += INFERRED in data
        if messages == 2 and INFERRED in data and missing:
            start = data.index(INFERRED)
            call = observed.feed(from_client, data[:start])
            observed.gap(from_client, len(data) - start, call=call)
        else:
            observed.feed(from_client, data)
    *_, exchange = observed.close().exchanges
    generation = generation_of(exchange)
    assert generation.output_tokens == (None if missing else 3) and generation.first_content_ns
    assert exchange.rpc is not None and exchange.rpc.responses == (None if missing else 3)


# Frames in the middle


def tail_of_data() -> bytes:
    return b"the rest of a long frame, of which the beginning passed before anyone looked"


@BOTH_ENDS
def test_frames_are_found_in_the_middle_of_a_call(role: Role) -> None:
    observed = Observed(role=role, late=True)
    block = b"\x83\x86\x04\x02/a"
    observed.feed(
        True,
        tail_of_data()
        + frame(HEADERS, 5, 7, block)
        + frame(PING, 0, 0, bytes(8))
        + frame(HEADERS, 5, 9, b"\x83\x86\x04\x02/b"),
    )
    observed.feed(False, frame(HEADERS, 5, 7, b"\x88") + frame(HEADERS, 5, 9, b"\x88"))
    assert [exchange.path for exchange in observed.exchanges] == ["/a", "/b"]
    assert observed.counted == {"late_bytes_skipped": len(tail_of_data())}


def test_frames_are_found_over_several_calls() -> None:
    wire = tail_of_data() + b"".join(
        frame(HEADERS, 5, number, b"\x83\x86\x04\x02/a") for number in range(1, 41, 2)
    )
    observed = Observed(late=True)
    for start in range(0, len(wire), 40):
        observed.feed(True, wire[start : start + 40])
    observed.feed(False, b"".join(frame(HEADERS, 5, number, b"\x88") for number in range(1, 41, 2)))
    assert len(observed.exchanges) >= 16


def test_what_was_taken_for_frames_and_is_none_is_looked_for_again() -> None:
    observed = Observed(late=True)
    forged = frame(RST_STREAM, 0, 3, bytes(4)) + frame(PING, 0, 0, bytes(8)) + frame(PING, 0, 0, bytes(8))
    observed.feed(True, tail_of_data() + forged + b"and the text goes on")
    assert observed.counted["http2_framing_mistaken"] == 1
    observed.feed(True, frame(HEADERS, 5, 5, b"\x83\x86\x04\x02/a"))
    observed.feed(False, frame(HEADERS, 5, 5, b"\x88"))
    assert [exchange.path for exchange in observed.exchanges] == ["/a"]
    for _ in range(MAX_MISTAKES):
        observed.feed(True, tail_of_data() + forged + b"and the text goes on")
    assert observed.parser.ignored and observed.counted["http2_invalid"] == 1


@pytest.mark.parametrize(
    "pattern",
    [
        b"\0\0\0\0\1\0\0\0\1",
        b"\0\0\1\0\0\0\0\0\1",
        b"\0\0\0\4\0\0\0\0\0",
        bytes(9),
        b"\1\0\0\0",
        b"\0\1",
        b"\1\0\0\0\0\0\0\0\4\0\0\0",
    ],
)
def test_numbers_of_a_tensor_are_no_frames(pattern: bytes) -> None:
    search = FrameSearch(from_client=True)
    assert search.feed(tail_of_data() + pattern * 400, 0, fresh=False) is None


@examples(40)
@given(st.integers(0, 1 << 32), st.sampled_from((2, 3, 9)))
def test_small_numbers_are_no_frames(seed: int, kinds: int) -> None:
    search, chance = FrameSearch(from_client=True), random.Random(seed)
    assert search.feed(bytes(chance.randrange(kinds) for _ in range(4096)), 0, fresh=False) is None


def test_a_search_looks_at_a_bounded_number_of_places(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    points = FrameSearch._points

    def counted(*arguments: object) -> int | None:
        nonlocal looks
        looks += 1
        return points(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(FrameSearch, "_points", counted)
    search = FrameSearch(from_client=True)
    hostile = frame(DATA, 0, 1, b"")[:9].replace(b"\0\0\0", b"\0\0\1", 1) * 2000
    for _ in range(100):
        search.feed(hostile, 0, fresh=True)
    assert looks < 2 * MAX_LOOKS


# From any cut, whatever was said

STREAMS = {
    "chat": ("/v1/chat/completions", CHAT, (CHUNK, CHUNK, USAGE, DONE), EVENTS),
    "counted": ("/v1/chat/completions", CHAT, (CHUNK, CHUNK, CHUNK, DONE), EVENTS),
    "messages": (
        "/v1/messages",
        ANTHROPIC,
        (
            b'data: {"type":"message_start","message":{"type":"message","id":"a","model":"c"}}\n\n',
            b'data: {"type":"content_block_delta","delta":{"text":"x"}}\n\n',
            b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}\n\n',
        ),
        EVENTS,
    ),
    "triton": ("/inference.GRPCInferenceService/ModelStreamInfer", INFER, (INFERRED, INFERRED), GRPC),
    "plain": ("/health", b"", (b"ok",), JSON),
    "refused": ("/v1/x", b"{}", (), JSON),
}


def converse(steps: list[tuple[str, int, bool]]) -> Wire:
    """Open streams, and move them on by one part each, as the steps say; they end in the end, or are cancelled."""
    pair = Pair()
    streams: list[tuple[int, str, list[bytes], bool]] = []
    for kind, which, moves in steps:
        if not moves or not streams:
            path, body, parts, answer = STREAMS[kind]
            content = answer if answer is GRPC else JSON
            method = "POST" if body else "GET"
            fields = request_fields(path, content, ("user-agent", f"agent/{which}"), method=method)
            streams.append((pair.request(fields, body), kind, list(parts), False))
            continue
        move_on(pair, streams, which % len(streams))
    while streams:
        move_on(pair, streams, 0)
    return pair.wire


def move_on(pair: Pair, streams: list[tuple[int, str, list[bytes], bool]], which: int) -> None:
    """The head of a response, a part of its body, or its trailers."""
    number, kind, parts, begun = streams[which]
    answer = STREAMS[kind][3]
    streams[which] = (number, kind, parts, True)
    if not begun and kind == "refused":
        pair.server.send_headers(number, [(":status", "429"), ("retry-after", "1")], end_stream=True)
    elif not begun:
        pair.server.send_headers(number, [(":status", "200"), answer])
    elif parts:
        last = len(parts) == 1 and answer is not GRPC
        pair.server.send_data(number, parts.pop(0), end_stream=last, pad_length=5 if which else None)
    else:
        pair.server.send_headers(number, [("grpc-status", "0"), ("grpc-message", "")], end_stream=True)
    pair.flush()
    stream = pair.server.streams.get(number)
    if stream is None or stream.closed:
        del streams[which]


def is_part(found: Exchange, truth: Exchange) -> None:
    """Every fact of ``found`` is that of ``truth``, or is not there."""
    for name, absent in (
        ("method", ""),
        ("path", ""),
        ("status_code", 0),
        ("user_agent", ""),
        ("first_byte_ns", 0),
        ("response_bytes", 0),
    ):
        assert getattr(found, name) in (absent, getattr(truth, name)), name
    assert (found.start_ns, found.request_end_ns) == (truth.start_ns, truth.request_end_ns)
    assert found.request_bytes == truth.request_bytes
    assert found.error in ("", *UNSEEN)
    assert found.error_type == "" or found.error_type == truth.error_type
    if found.answered:
        assert found.end_ns == truth.end_ns
    if found.rpc is not None:
        assert truth.rpc is not None
        assert found.rpc.method in ("", truth.rpc.method) and found.rpc.status in ("", truth.rpc.status)
        assert found.rpc.requests in (None, truth.rpc.requests)
        assert found.rpc.responses in (None, truth.rpc.responses)
    if found.generation is not None:
        assert truth.generation is not None
        generation_is_part(found.generation, truth.generation)


def generation_is_part(found: Generation, truth: Generation) -> None:
    assert (found.operation, found.provider) == (truth.operation, truth.provider)
    for name in ("request_model", "response_model", "response_id", "request_id"):
        assert getattr(found, name) in ("", getattr(truth, name)), name
    for name in ("input_tokens", "output_tokens", "max_tokens", "choices"):
        assert getattr(found, name) in (None, getattr(truth, name)), name
    for name in ("first_content_ns", "first_chunk_ns", "last_content_ns"):
        assert getattr(found, name) in (0, getattr(truth, name)), name
    assert set(found.finish_reasons) <= set(truth.finish_reasons)
    if found.whole:
        assert found.content_deltas == truth.content_deltas
        assert list(found.content_times_ns) == list(truth.content_times_ns)


@pytest.mark.parametrize("size", range(10, 17))
@pytest.mark.parametrize("kind", ["chat", "messages"])
def test_a_response_of_unknown_type_is_known_however_little_of_it_comes_first(kind: str, size: int) -> None:
    """``size``: what a call moves at most. Nine bytes are the frame's head, the others the first of ``data:``."""
    opening, answered, *others = converse([("chat", 0, False)] * 3 + [(kind, 0, False)])
    wire = [
        opening,
        answered,
        *((way, data[at : at + size]) for way, data in others for at in range(0, len(data), size)),
    ]
    truth = see(wire, Role.SERVER, 0).exchanges[-1]
    late = see(wire, Role.SERVER, 2)
    (found,) = (each for each in late.exchanges if each.wire_id == truth.wire_id)
    generation_is_part(generation_of(found), generation_of(truth))
    assert generation_of(found).content_deltas == generation_of(truth).content_deltas > 0
    assert "json_malformed" not in late.counted


@examples(200)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(STREAMS)), st.integers(0, 3), st.booleans()), min_size=4, max_size=24
    ),
    st.sampled_from((Role.SERVER, Role.CLIENT)),
    st.floats(0, 1),
    st.integers(0, 60),
    st.one_of(st.just(1 << 20), st.integers(10, 300)),
)
def test_from_any_cut_what_is_reported_is_part_of_the_truth(
    steps: list[tuple[str, int, bool]], role: Role, share: float, cut: int, size: int
) -> None:
    """``size``: what a call moves at most."""
    wire = [
        (from_client, data[start : start + size])
        for from_client, data in converse(steps)
        for start in range(0, len(data), size)
    ]
    whole = see(wire, role, 0)
    truths = {exchange.wire_id: exchange for exchange in whole.exchanges}
    assert not whole.counted and len(truths) == len(whole.exchanges)
    skipped = 1 + int(share * (len(wire) - 1))
    late = see(wire, role, skipped, cut)
    assert late.held_bytes == 0
    for exchange in late.exchanges:
        is_part(exchange, truths[exchange.wire_id])
    assert len({exchange.wire_id for exchange in late.exchanges}) == len(late.exchanges)
