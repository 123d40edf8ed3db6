"""What was not seen of a request is our loss: said on its span, never its status, and no number is made of a part."""

from __future__ import annotations

import json

import pytest

from otelgpu.families.requests.exchange_signals import measurements
from otelgpu.families.requests.http2.frame_heads import DATA
from otelgpu.families.requests.routes import template
from otelgpu.model.exchange import Exchange
from tests.unit.families.requests.http2_traffic import Pair, frame, request_fields
from tests.unit.families.requests.test_signals import attributes
from tests.unit.families.requests.traffic import Connection, Seen, chunk, opened, request, response

#: What is captured of one call, and 40 KB: an event with the probabilities of sixty tokens (llama-server, ``n_probs``).
CAPTURED = 16_384
LARGE = 40_000
TOKENS = 12


def stream_of(*events: object, done: bool = True) -> list[bytes]:
    """Server-sent events, each in a chunk of its own."""
    sent = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    return [chunk(event) for event in [*sent, *([b"data: [DONE]\n\n"] if done else [])]] + [b"0\r\n\r\n"]


def token(text: str, **fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}}], "model": "m", **fields}


def usage(tokens: int) -> dict[str, object]:
    return {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}}


def streamed(
    pieces: list[bytes],
    *,
    captured: dict[int, int] | None = None,
    close: bool = True,
    tail: int = 0,
    **asked_for: object,
) -> Seen:
    """A chat completion whose ``pieces`` are written one by one; of some only so much is ``captured``, and the end."""
    c, seen = opened()
    asked = json.dumps({"model": "m", "stream": True, "messages": [], **asked_for}).encode()
    seen.feed(c.read(request("POST", "/v1/chat/completions", asked)))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    seen.feed(c.write(head))
    for number, piece in enumerate(pieces):
        kept = (captured or {}).get(number)
        seen.feed(c.write(piece, captured=kept, tail=tail if kept is not None else 0))
    if close:
        seen.feed(c.close())
    return seen


def measured(exchange: Exchange) -> set[str]:
    return {each.metric.name for each in measurements([exchange], [template(exchange.path)])}


def test_an_event_beyond_what_is_captured_fails_nobody_and_leaves_out_what_is_not_known() -> None:
    pieces = stream_of(*(token(f"w{n}", probs="x" * LARGE) for n in range(TOKENS)))
    seen = streamed(pieces, captured={4: CAPTURED})
    (exchange,) = seen.exchanges
    assert (exchange.incomplete, exchange.error_type, exchange.status_code) == ("capture_gap", "", 200)
    assert exchange.generation is not None
    assert exchange.generation.output_tokens is None
    assert exchange.time_to_first_token_s is not None
    assert exchange.time_per_output_token_s is exchange.known_duration_s is None
    assert measured(exchange) == {"gen_ai.server.time_to_first_token"}
    found = attributes(exchange)
    assert found["otelgpu.incomplete"] == "capture_gap"
    assert not found.keys() & {"error.type", "gen_ai.usage.output_tokens", "gen_ai.latency.e2e"}
    assert seen.counts()["capture_gaps"] == 1


def test_what_the_server_reports_behind_a_gap_whose_frame_is_known_is_believed() -> None:
    pieces = stream_of(*(token(f"w{n}", probs="x" * LARGE) for n in range(TOKENS)), usage(TOKENS))
    seen = Seen(opened()[1].state)
    c = Connection(identity=7)
    seen.feed(c.open())
    asked = json.dumps({"model": "m", "stream": True, "messages": []}).encode()
    seen.feed(c.read(request("POST", "/v1/chat/completions", asked)))
    seen.feed(
        c.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    )
    for number, piece in enumerate(pieces):
        seen.feed(c.write(piece, captured=CAPTURED if number == 4 else None, tail=300 if number == 4 else 0))
    (exchange,) = seen.exchanges
    assert (exchange.incomplete, exchange.error_type) == ("", "")
    assert exchange.generation is not None
    assert (exchange.generation.output_tokens, exchange.generation.usage_reported) == (TOKENS, True)
    assert exchange.time_per_output_token_s is not None


def test_a_first_token_that_may_have_been_in_what_is_missing_has_no_time() -> None:
    pieces = stream_of(
        {"probs": "x" * LARGE, **token("first")}, *(token(f"w{n}") for n in range(5)), usage(6)
    )
    c, seen = opened()
    asked = json.dumps({"model": "m", "stream": True, "messages": []}).encode()
    seen.feed(c.read(request("POST", "/v1/chat/completions", asked)))
    seen.feed(
        c.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    )
    for number, piece in enumerate(pieces):
        seen.feed(c.write(piece, captured=200 if number == 0 else None, tail=100 if number == 0 else 0))
    (exchange,) = seen.exchanges
    assert exchange.generation is not None
    assert exchange.generation.output_tokens == 6
    assert exchange.time_to_first_token_s is None


HALVES = {"captured": dict.fromkeys(range(TOKENS), 4096), "tail": 4096}
"""What is captured of large events while the ring is crowded."""


@pytest.mark.parametrize("reported", [True, False])
def test_the_beginnings_of_events_give_times_and_tokens(reported: bool) -> None:
    events = [token(f"w{n}", probs="x" * LARGE, id="chatcmpl-1") for n in range(TOKENS)]
    (exchange,) = streamed(stream_of(*events, *([usage(TOKENS)] if reported else [])), **HALVES).exchanges
    generation = exchange.generation
    assert generation is not None
    assert (generation.output_tokens, generation.usage_reported) == (TOKENS, reported)
    assert (generation.content_deltas, len(generation.content_times_ns)) == (TOKENS, TOKENS)
    assert exchange.time_to_first_token_s is not None
    assert exchange.time_to_first_token_s == pytest.approx(
        (generation.first_chunk_ns - exchange.start_ns) * 1e-9
    )
    assert exchange.time_per_output_token_s is not None
    assert exchange.incomplete == exchange.error_type == ""


def test_the_end_of_an_event_gives_what_the_server_reports() -> None:
    last = {**token("end"), "usage": {"prompt_tokens": 3, "completion_tokens": 7}}
    last["choices"] = [
        {"index": 0, "delta": {"content": "end"}, "logprobs": "x" * LARGE, "finish_reason": "stop"}
    ]
    (exchange,) = streamed(stream_of(token("first"), last), captured={1: 4096}, tail=4096).exchanges
    assert exchange.generation is not None
    assert exchange.generation.finish_reasons == ("stop",)
    assert (exchange.generation.output_tokens, exchange.generation.input_tokens) == (7, 3)
    assert exchange.generation.content_deltas == 2


def merged(events: list[bytes]) -> bytes:
    """What a proxy makes of events that came together: one chunk."""
    return chunk(b"".join(event.partition(b"\r\n")[2].removesuffix(b"\r\n") for event in events))


@pytest.mark.parametrize("fields", [{"probs": "x" * LARGE}, {"probs": "x" * LARGE, "choices": []}])
def test_of_events_that_may_be_several_or_empty_no_number_is_made(fields: dict[str, object]) -> None:
    small, large = stream_of(*(token(f"s{n}") for n in range(4)), done=False)[:-1], token("large", **fields)
    pieces = [merged(small), *stream_of(large, token("last"))]
    (exchange,) = streamed(pieces, captured={1: 4096}, tail=4096).exchanges
    assert exchange.generation is not None
    assert exchange.generation.output_tokens is None
    assert not exchange.generation.whole
    assert exchange.time_to_first_token_s is not None
    assert exchange.time_per_output_token_s is None


def test_of_several_choices_one_may_be_in_what_is_missing() -> None:
    events = [token(f"w{n}", probs="x" * LARGE) for n in range(TOKENS)]
    (exchange,) = streamed(stream_of(*events), **HALVES, n=2).exchanges
    assert exchange.generation is not None
    assert exchange.generation.output_tokens is exchange.time_to_first_token_s is None
    assert exchange.generation.first_chunk_ns == 0


def test_a_stream_that_ends_in_a_cut_event_is_not_whole() -> None:
    events = [token(f"w{n}", probs="x" * LARGE) for n in range(2)]
    (exchange,) = streamed(stream_of(*events)[:2], captured={1: 4096}).exchanges
    assert exchange.generation is not None
    assert not exchange.generation.whole


@pytest.mark.parametrize("error", ["response_not_seen", "connection_evicted"])
def test_what_we_gave_up_is_no_failure(error: str) -> None:
    state = opened()[1].state
    c = Connection(identity=9)
    seen = Seen(state).feed(c.open()).feed(c.read(request("GET", "/given-up")))
    connection = state._connections[9]
    connection.abort(c.now_ns, error)
    seen.take(state._output.take())
    (exchange,) = seen.exchanges
    assert (exchange.error_type, exchange.incomplete, exchange.known_duration_s) == ("", error, None)
    assert measured(exchange) == set()


def test_an_answer_of_500_whose_end_is_not_known_is_one() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/broken")))
    seen.feed(c.write(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n"))
    seen.feed(c.write(chunk(b"x" * LARGE), captured=CAPTURED)).feed(c.write(chunk(b"y"))).feed(c.close())
    (exchange,) = seen.exchanges
    assert (exchange.error_type, exchange.incomplete) == ("500", "capture_gap")


@pytest.mark.parametrize(("said", "counted", "believed"), [(0, 12, False), (12, 12, True), (40, 40, True)])
def test_a_reported_zero_does_not_beat_what_was_counted(said: int, counted: int, believed: bool) -> None:
    """LitServe ends its streams with ``completion_tokens: 0``."""
    seen = streamed(stream_of(*(token(f"w{n}") for n in range(TOKENS)), usage(said)))
    (exchange,) = seen.exchanges
    generation = exchange.generation
    assert generation is not None
    assert (generation.output_tokens, generation.usage_reported) == (counted, believed)
    assert exchange.time_per_output_token_s is not None
    assert attributes(exchange).get("otelgpu.gen_ai.usage.estimated") == (None if believed else True)
    assert seen.counts().get("usage_contradicted", 0) == (0 if believed else 1)


def test_an_answer_without_any_token_has_zero() -> None:
    (exchange,) = streamed(stream_of(usage(0))).exchanges
    assert exchange.generation is not None
    assert (exchange.generation.output_tokens, exchange.generation.usage_reported) == (0, True)


def test_a_json_answer_of_zero_tokens_is_believed() -> None:
    c, seen = opened()
    asked = json.dumps({"model": "m", "messages": []}).encode()
    answer = json.dumps({"choices": [], "model": "m", "usage": {"prompt_tokens": 1, "completion_tokens": 0}})
    seen.feed(c.read(request("POST", "/v1/chat/completions", asked)))
    seen.feed(c.write(response(200, answer.encode(), content_type="application/json")))
    (exchange,) = seen.exchanges
    assert exchange.generation is not None
    assert exchange.generation.output_tokens == 0


LONG = 100_000
"""Bytes of an event that is not kept whole."""


@pytest.mark.parametrize("protocol", ["http/1.1", "http/2"])
@pytest.mark.parametrize("reported", [True, False])
def test_long_events_that_share_a_chunk_or_a_frame_keep_tokens_and_times(
    protocol: str, reported: bool
) -> None:
    """As a proxy merges them: nothing is missing, so each is told from the next."""
    role, *tokens = (token(f"w{n}", probs="x" * LONG if n % 3 else "") for n in range(TOKENS + 1))
    role["choices"] = [{"index": 0, "delta": {"role": "assistant", "content": ""}}]
    role["probs"] = ""
    events = [role, *tokens, *([usage(TOKENS)] if reported else [])]
    sent = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    body = [b"".join(sent[:4]), b"".join(sent[4:]), b"data: [DONE]\n\n"]
    if protocol == "http/1.1":
        (exchange,) = streamed([*map(chunk, body), b"0\r\n\r\n"]).exchanges
    else:
        (exchange,) = streamed_in_frames(body).exchanges
    generation = exchange.generation
    assert generation is not None
    assert (generation.output_tokens, generation.usage_reported) == (TOKENS, reported)
    assert (generation.content_deltas, generation.whole) == (TOKENS, True)
    assert generation.first_content_ns == generation.first_chunk_ns  # in one call
    assert exchange.incomplete == exchange.error_type == ""


def streamed_in_frames(body: list[bytes]) -> Seen:
    """A chat completion over HTTP/2, each piece of its body in as few frames, and one call."""
    (c, seen), pair = opened(), Pair()
    number = pair.request(
        request_fields("/v1/chat/completions"), b'{"model":"m","stream":true,"messages":[]}'
    )
    pair.respond(number, 200, b"", ("content-type", "text/event-stream"), end=False)
    for from_client, data in pair.wire:
        seen.feed(c.read(data) if from_client else c.write(data))
    for at, piece in enumerate(body, 1):
        frames = [piece[i : i + 16384] for i in range(0, len(piece), 16384)]
        ends = [at == len(body) and i == len(frames) for i in range(1, len(frames) + 1)]
        sent = [frame(DATA, int(end), number, part) for end, part in zip(ends, frames, strict=True)]
        seen.feed(c.write(b"".join(sent)))
    return seen


@pytest.mark.parametrize("api", ["openai", "ollama"])
def test_of_a_long_first_event_that_does_not_show_its_content_no_later_time_is_taken(api: str) -> None:
    beginning = {"probs": "x" * LONG, "model": "m"}
    if api == "ollama":
        path, media, form = "/api/chat", "application/x-ndjson", b"%s\n"
        more = {"model": "m", "message": {"role": "assistant", "content": "w"}, "done": False}
        events = [beginning | more, more]
    else:
        path, media, form = "/v1/chat/completions", "text/event-stream", b"data: %s\n\n"
        events = [beginning | token("w0"), token("w1")]
    c, seen = opened()
    seen.feed(c.read(request("POST", path, b'{"model":"m","stream":true,"messages":[]}')))
    seen.feed(c.write(response(200, None, content_type=media, transfer_encoding="chunked")))
    seen.feed(c.write(chunk(form % json.dumps(token("")).encode() + form % json.dumps(events[0]).encode())))
    seen.feed(c.write(chunk(form % json.dumps(events[1]).encode()))).feed(c.write(b"0\r\n\r\n"))
    (exchange,) = seen.exchanges
    generation = exchange.generation
    assert generation is not None
    assert (generation.content_deltas, generation.output_tokens) == (1, None)
    assert exchange.time_to_first_token_s is None
    assert seen.counts() == {"stream_event_too_long": 1}
