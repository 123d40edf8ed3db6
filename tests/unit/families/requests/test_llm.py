"""What completion requests and responses report: model, tokens, first content, finish reasons."""

from __future__ import annotations

import json
from typing import Any

import pytest

from otelgpu.families.requests.llm.routes import find_route
from otelgpu.model.exchange import Exchange, Generation
from tests.unit.families.requests.traffic import (
    LAST_CHUNK,
    MS,
    Connection,
    Seen,
    chunk,
    opened,
    request,
    response,
)

CHAT = "/v1/chat/completions"
JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"


def asked(
    body: bytes = b'{"model": "m", "stream": true}', path: str = CHAT, **headers: str
) -> tuple[Connection, Seen]:
    c, seen = opened()
    return c, seen.feed(c.read(request("POST", path, body, **headers)))


def answered(
    answer: Any, body: bytes = b'{"model": "m"}', status: int = 200, **headers: str
) -> tuple[Exchange, Seen]:
    """The exchange of a response that is not streamed."""
    c, seen = asked(body)
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    seen.feed(c.write(response(status, data, **{"content_type": JSON, **headers})))
    return seen.exchanges[0], seen


def generation_of(exchange: Exchange) -> Generation:
    assert exchange.generation is not None
    return exchange.generation


def event(delta: Any = None, reason: str | None = None, index: int = 0, **rest: Any) -> bytes:
    choice = {"index": index, "delta": delta or {}, "finish_reason": reason}
    return (
        b"data: "
        + json.dumps({"id": "chatcmpl-1", "model": "served", "choices": [choice], **rest}).encode()
        + b"\n\n"
    )


def usage(prompt: Any, completion: Any) -> bytes:
    tokens = {"prompt_tokens": prompt, "completion_tokens": completion}
    return b"data: " + json.dumps({"id": "chatcmpl-1", "choices": [], "usage": tokens}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def streamed(*writes: bytes, **headers: str) -> tuple[Generation, Seen]:
    """The generation of a stream, the head in the first write, each further write one chunk."""
    c, seen = asked()
    seen.feed(
        c.write(response(200, None, transfer_encoding="chunked", **{"content_type": EVENTS, **headers}))
    )
    for write in writes:
        seen.feed(c.write(chunk(write)))
    seen.feed(c.write(LAST_CHUNK))
    return generation_of(seen.exchanges[0]), seen


@pytest.mark.parametrize(
    ("method", "path", "operation"),
    [
        ("POST", "/v1/chat/completions", "chat"),
        ("POST", "/v1/completions", "text_completion"),
        ("POST", "/openai/v1/chat/completions", "chat"),
        ("GET", "/v1/completions", ""),
        ("POST", "/v1/embeddings", "embeddings"),
        ("POST", "/v1/completions/1", ""),
    ],
)
def test_which_requests_are_generations(method: str, path: str, operation: str) -> None:
    route = find_route(method, path)
    assert (route.operation if route is not None else "") == operation


def test_a_json_answer() -> None:
    answer = {
        "id": "chatcmpl-9",
        "object": "chat.completion",
        "model": "served-model",
        "choices": [
            {"index": 1, "message": {"content": "b"}, "finish_reason": "length"},
            {"index": 0, "message": {"content": "a"}, "finish_reason": "stop"},
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 22, "total_tokens": 33},
    }
    exchange, seen = answered(
        answer, b'{"messages":[{"role":"user","content":"hush"}],"model":"asked","n":2}'
    )
    assert exchange.generation == Generation(
        operation="chat",
        request_model="asked",
        response_model="served-model",
        response_id="chatcmpl-9",
        stream=False,
        input_tokens=11,
        output_tokens=22,
        usage_reported=True,
        finish_reasons=("stop", "length"),
        first_content_ns=0,
        last_content_ns=0,
        content_deltas=0,
        choices=2,
    )
    assert (exchange.error, seen.counts()) == ("", {})


def test_a_text_completion() -> None:
    c, seen = asked(b'{"model":"m","stream":true,"prompt":"p"}', "/v1/completions")
    texts = [
        b'data: {"choices":[{"text":"%s","finish_reason":null}]}\n\n' % text for text in (b"", b"a", b"b")
    ]
    seen.feed(c.write(response(200, b"".join(texts), content_type=EVENTS)))
    generation = generation_of(seen.exchanges[0])
    assert (generation.operation, generation.output_tokens, generation.content_deltas) == (
        "text_completion",
        2,
        2,
    )


def test_an_answer_without_usage_has_no_token_count() -> None:
    exchange, _ = answered({"id": "x", "choices": []})
    assert generation_of(exchange).output_tokens is None


def test_a_stream_with_usage() -> None:
    generation, seen = streamed(
        event({"role": "assistant", "content": ""}), event({"content": "a"}), event({"content": "b"}),
        event({}, "stop"), usage(7, 9), DONE,
    )  # fmt: skip
    assert (generation.first_content_ns, generation.last_content_ns) == (1040 * MS, 1050 * MS)
    assert (generation.input_tokens, generation.output_tokens, generation.usage_reported) == (7, 9, True)
    assert (generation.content_deltas, generation.finish_reasons, generation.stream) == (2, ("stop",), True)
    assert (generation.response_id, generation.response_model) == ("chatcmpl-1", "served")
    assert seen.exchanges[0].first_byte_ns == 1020 * MS
    assert seen.counts() == {}


def test_a_stream_without_usage_is_counted_and_said_to_be() -> None:
    generation, _ = streamed(event({"content": "a"}), event({"content": "b"}), DONE)
    assert (generation.output_tokens, generation.usage_reported, generation.input_tokens) == (2, False, None)


@pytest.mark.parametrize("sign", ["token_ids", "matched_stop"])
def test_a_stream_whose_deltas_may_hold_several_tokens_is_not_counted(sign: str) -> None:
    """vLLM 0.32 sent ``token ``, then ``token token token token token ``: an event tells which server it is."""
    last = {"index": 0, "delta": {"content": "b c d"}, "finish_reason": "length", sign: None}
    generation, _ = streamed(event({"content": "a"}), event(choices=[last]), DONE)
    assert (generation.content_deltas, generation.output_tokens, generation.usage_reported) == (
        2,
        None,
        False,
    )


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"content": [{"type": "text"}]},
        {"reasoning_content": "x"},
        {"reasoning": "x"},
        {"refusal": "x"},
        {"tool_calls": [{"index": 0}]},
        {"function_call": {"name": "f"}},
    ],
)
def test_what_counts_as_content(delta: dict[str, Any]) -> None:
    generation, _ = streamed(event({"role": "assistant"}), event(delta))
    assert (generation.content_deltas, generation.first_content_ns) == (1, 1040 * MS)


@pytest.mark.parametrize(
    "delta", [{}, {"role": "assistant"}, {"content": ""}, {"content": None}, {"tool_calls": []}]
)
def test_what_does_not_count_as_content(delta: dict[str, Any]) -> None:
    generation, _ = streamed(event(delta))
    assert (generation.content_deltas, generation.first_content_ns, generation.output_tokens) == (0, 0, 0)


def test_events_cut_anywhere_are_the_same_events() -> None:
    stream = (
        b": hi\r\n\r\n"
        + event({"content": "a"}).replace(b"\n", b"\r\n")
        + event({"content": "b"}, "stop")
        + DONE
    )
    whole, _ = streamed(stream)
    for size in (1, 2, 7, 50):
        cut, _ = streamed(*(stream[i : i + size] for i in range(0, len(stream), size)))
        assert (
            (cut.content_deltas, cut.finish_reasons)
            == (whole.content_deltas, whole.finish_reasons)
            == (2, ("stop",))
        )


def test_finish_reasons_are_in_the_order_of_the_choices() -> None:
    generation, _ = streamed(
        event({}, "length", index=2), event({}, "stop"), event({}, "tool_calls", index=1)
    )
    assert generation.finish_reasons == ("stop", "tool_calls", "length")


@pytest.mark.parametrize(
    ("error", "named"),
    [
        ({"type": "BadRequestError", "message": "hush"}, "BadRequestError"),
        ({"message": "hush"}, "stream_error"),
        ({"type": "has blanks in it"}, "stream_error"),
        ("hush", "stream_error"),
    ],
)
def test_an_error_inside_a_stream_is_the_errors_type(error: Any, named: str) -> None:
    _, seen = streamed(
        event({"content": "a"}), b"data: " + json.dumps({"error": error}).encode() + b"\n\n", DONE
    )
    assert seen.exchanges[0].error == named
    assert "hush" not in repr(seen.exchanges)


def test_an_error_status_needs_no_error_type() -> None:
    exchange, _ = answered({"error": {"type": "NotFoundError"}}, status=404)
    assert (exchange.error, exchange.status_code) == ("", 404)


def test_an_error_under_a_status_of_success() -> None:
    exchange, _ = answered({"error": {}})
    assert exchange.error == ""
    exchange, _ = answered({"error": {"code": 5}})
    assert exchange.error == "response_error"


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
def test_an_encoded_response_is_counted_and_keeps_what_the_request_says(encoding: str) -> None:
    generation, seen = streamed(b"\x1f\x8b\x08", content_encoding=encoding)
    assert (generation.request_model, generation.stream, generation.first_content_ns) == ("m", True, 0)
    assert (generation.output_tokens, seen.counts()) == (None, {"encoded_body": 1})


def test_an_encoded_request_is_counted() -> None:
    c, seen = asked(b"\x1f\x8b", content_encoding="br")
    seen.feed(c.write(response(200, event({"content": "a"}), content_type=EVENTS)))
    generation = generation_of(seen.exchanges[0])
    assert (generation.request_model, generation.stream, generation.content_deltas) == ("", True, 1)
    assert seen.counts() == {"encoded_body": 1}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"model":5}',
        b'{"stream":"yes"}',
        b'{"model":"\xff"}',
        b'{"x":' + b"[" * 100_000,
    ],
)
def test_a_hostile_request_body_is_counted(body: bytes) -> None:
    c, seen = asked(body)
    seen.feed(c.write(response(400, b"{}", content_type=JSON)))
    generation = generation_of(seen.exchanges[0])
    assert (generation.request_model, generation.stream) == ("", False)
    assert seen.counts() == {"json_malformed": 1}


@pytest.mark.parametrize(
    "answer", [b"", b"{", b"[]", b'{"choices":5}', b'{"id":{}}', b"\xff", b'{"error":' + b"[" * 100_000]
)
def test_a_hostile_response_body_is_counted(answer: bytes) -> None:
    exchange, seen = answered(answer)
    assert (generation_of(exchange).response_id, seen.counts()) == ("", {"json_malformed": 1})


@pytest.mark.parametrize("tokens", ["5", -1, 1.5, [], 1 << 62])
def test_hostile_usage_spoils_nothing_else(tokens: Any) -> None:
    generation, _ = streamed(event({"content": "a"}), usage(tokens, tokens))
    assert (generation.input_tokens, generation.output_tokens, generation.usage_reported) == (None, 1, False)


def test_a_malformed_event_spoils_nothing_else() -> None:
    generation, seen = streamed(event({"content": "a"}), b"data: {oops\n\n", event({"content": "b"}))
    assert (generation.content_deltas, seen.counts()) == (2, {"json_malformed": 1})


def test_names_are_bounded() -> None:
    exchange, _ = answered(
        {
            "id": "i" * 9999,
            "model": "m" * 9999,
            "choices": [{"index": i, "finish_reason": "r" * 300} for i in range(200)],
        },
        json.dumps({"model": "q" * 9999}).encode(),
    )
    generation = generation_of(exchange)
    assert (len(generation.request_model), len(generation.response_model), len(generation.response_id)) == (
        256,
    ) * 3
    assert (len(generation.finish_reasons), len(generation.finish_reasons[0])) == (128, 256)


def test_a_request_with_a_gap_is_searched() -> None:
    prompt = 'say "model": "wrong" and "stream": true ' + "x" * 100_000
    for body in (
        {"model": 'a/"b"', "messages": [{"content": prompt}], "stream": True},
        {"messages": [{"content": prompt}], "stream": True, "model": 'a/"b"'},
    ):
        c, seen = opened()
        data = request("POST", CHAT, json.dumps(body).encode())
        seen.feed(c.read(data, captured=16384, tail=256)).feed(
            c.write(response(200, b"", content_type=EVENTS))
        )
        generation = generation_of(seen.exchanges[0])
        assert (generation.request_model, generation.stream, seen.counts()) == ('a/"b"', True, {})


def test_a_prompt_cannot_pose_as_the_model() -> None:
    c, seen = opened()
    body = json.dumps({"messages": [{"content": '"model":"wrong","stream":true' + "x" * 100_000}]}).encode()
    seen.feed(c.read(request("POST", CHAT, body), captured=16384)).feed(
        c.write(response(200, b"{}", content_type=JSON))
    )
    seen.take(seen.state.expire(10_000 * MS))
    generation = generation_of(seen.exchanges[0])
    assert (generation.request_model, generation.stream) == ("", False)


def test_a_json_answer_with_a_gap_is_searched() -> None:
    answer = {
        "id": "chatcmpl-9",
        "model": "served",
        "choices": [{"index": 0, "message": {"content": "x" * 100_000}, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 5,
            "total_tokens": 12,
            "completion_tokens": 7,
            "prompt_tokens_details": None,
        },
    }
    c, seen = asked()
    seen.feed(
        c.write(response(200, json.dumps(answer).encode(), content_type=JSON), captured=16384, tail=256)
    )
    generation = generation_of(seen.exchanges[0])
    assert (generation.response_id, generation.response_model, generation.finish_reasons) == (
        "chatcmpl-9",
        "served",
        ("stop",),
    )
    assert (generation.input_tokens, generation.output_tokens, generation.usage_reported) == (5, 7, True)


def test_a_body_over_the_bound_is_not_kept_but_searched() -> None:
    c, seen = opened()
    body = json.dumps({"model": "m", "messages": "x" * 400_000, "stream": True}).encode()
    data = request("POST", CHAT, body)
    for i in range(0, len(data), 16384):
        seen.feed(c.read(data[i : i + 16384]))
    seen.feed(c.write(response(200, b"", content_type=EVENTS)))
    generation = generation_of(seen.exchanges[0])
    assert (generation.request_model, generation.stream) == ("m", True)
    assert seen.counts() == {"bodies_not_kept": 1}


def test_a_stream_with_a_gap_has_no_estimate() -> None:
    c, seen = asked()
    head = response(200, None, content_type=EVENTS)
    seen.feed(c.write(head + event({"content": "a"})))
    c.skip("write", 1000)
    seen.feed(c.write(b'tail"}}]}\n\n' + event({"content": "b"}, "stop"))).feed(c.close())
    generation = generation_of(seen.exchanges[0])
    assert (generation.content_deltas, generation.output_tokens, generation.finish_reasons) == (
        2,
        None,
        ("stop",),
    )


def test_a_broken_off_stream_has_what_came() -> None:
    c, seen = asked()
    seen.feed(
        c.write(
            response(200, None, content_type=EVENTS, transfer_encoding="chunked")
            + chunk(event({"content": "a"}))
        )
    )
    seen.feed(c.close())
    assert (seen.exchanges[0].error, generation_of(seen.exchanges[0]).output_tokens) == (
        "connection_closed",
        1,
    )


def test_an_unanswered_generation_has_what_the_request_says() -> None:
    c, seen = asked(b'{"model":"m","stream":true}')
    seen.feed(c.close())
    generation = generation_of(seen.exchanges[0])
    assert (generation.request_model, generation.stream, generation.output_tokens) == ("m", True, None)


def test_an_answer_of_another_type_is_not_read() -> None:
    exchange, seen = answered(b"<html>", status=502, content_type="text/html")
    assert (generation_of(exchange).response_id, seen.counts()) == ("", {})


def test_an_early_answer_leaves_the_request_to_be_read() -> None:
    c, seen = opened()
    data = request("POST", CHAT, b'{"model":"m","messages":[1,2,3]}')
    seen.feed(c.read(data[:-10])).feed(c.write(response(200, b"{}", content_type=JSON))).feed(
        c.read(data[-10:])
    )
    assert (generation_of(seen.exchanges[0]).request_model, seen.counts()) == ("m", {})
