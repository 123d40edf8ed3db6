"""Each API's exchange gives its facts: however it is cut, compressed or broken, and without a word of its text."""

from __future__ import annotations

import gc
import gzip
import json
import types
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.requests.llm.capture import MAX_BYTES
from otelgpu.families.requests.llm.facts import MAX_TEXT
from otelgpu.families.requests.llm.reader import http_reader
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.model.exchange import CONTENT_TIMES
from tests.rig.examples import examples
from tests.unit.families.requests.llm.exchanges import BUDGET, Head, answer, ask, play
from tests.unit.families.requests.llm.transcripts import (
    ASKED,
    CHAT,
    EVENTS,
    JSON,
    LINES,
    SAID,
    TRANSCRIPTS,
    Transcript,
    chunk,
    sse,
)

every = pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=str)


def budget_left(output: ParserOutput) -> int:
    """How much of the budget is free."""
    low, high = 0, BUDGET * 2
    while low < high:
        middle = (low + high + 1) // 2
        if output.reserve(middle):
            output.release(middle)
            low = middle
        else:
            high = middle - 1
    return low


@every
def test_what_a_server_reports(transcript: Transcript) -> None:
    done = play(transcript)
    reported = {name: getattr(done.reported, name) for name in transcript.reported}
    assert reported == transcript.reported
    assert (done.reader.error, done.counts) == ("", {})


@every
def test_times_of_content_are_those_of_the_writes(transcript: Transcript) -> None:
    reported = play(transcript).reported
    times = list(reported.content_times_ns)
    assert len(times) == reported.content_deltas
    assert times == sorted(times)
    if times:
        assert (times[0], times[-1]) == (reported.first_content_ns, reported.last_content_ns)


@every
@examples(10)
@given(data=st.data())
def test_cuts_change_nothing(transcript: Transcript, data: st.DataObject) -> None:
    stream = b"".join(transcript.writes)
    whole = replace(transcript, writes=(stream,))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream)), max_size=40)))
    parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    cut = ask(transcript.path, transcript.request)
    answer(cut, parts, transcript.content_type, transcript.headers, times=[10] * len(parts))
    assert cut.generation == play(whole).generation


@every
def test_a_compressed_answer_reports_the_same(transcript: Transcript) -> None:
    plain = play(transcript).generation
    for encoding, compressor in ((b"gzip", zlib.compressobj(wbits=31)), (b"deflate", zlib.compressobj()),
                                 (b"deflate", zlib.compressobj(wbits=-15))):  # fmt: skip
        writes = [
            compressor.compress(write) + compressor.flush(zlib.Z_SYNC_FLUSH) for write in transcript.writes
        ]
        writes[-1] += compressor.flush()
        done = ask(transcript.path, transcript.request)
        answer(done, writes, transcript.content_type, {**transcript.headers, b"content-encoding": encoding})
        assert (done.generation, done.counts) == (plain, {})


def test_a_compressed_request_is_read() -> None:
    body = gzip.compress(json.dumps({**CHAT, "max_tokens": 3}).encode())
    done = answer(ask("/v1/chat/completions", body, headers={b"content-encoding": b"gzip"}), [b"{}"], JSON)
    assert (done.reported.request_model, done.reported.max_tokens, done.counts) == ("asked", 3, {})


def test_a_bomb_is_given_up_and_counted() -> None:
    squeezed = gzip.compress(b"data: " + b"x" * (1 << 25))
    done = ask("/v1/chat/completions", {**CHAT, "stream": True})
    answer(done, [squeezed], EVENTS, {b"content-encoding": b"gzip"})
    assert done.counts == {"inflate_too_large": 1, "stream_event_too_long": 1}
    assert done.reported.output_tokens is None


SPOILT = {"foreign": b"\x00not gzip", "cut": gzip.compress(b"data: {}\n\n")[:-4], "empty": b""}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_bad_compression_is_counted(spoil: bytes) -> None:
    done = ask("/v1/chat/completions", CHAT)
    answer(done, [spoil], EVENTS, {b"content-encoding": b"gzip"})
    assert done.counts == ({"inflate_failed": 1} if spoil else {})


def test_nothing_behind_a_gap_in_a_compressed_stream_is_read() -> None:
    compressor = zlib.compressobj(wbits=31)
    parts = sse(*(chunk({"content": text}) for text in "abcd"))
    first, *rest = [compressor.compress(part) + compressor.flush(zlib.Z_SYNC_FLUSH) for part in parts]
    done = ask("/v1/chat/completions", CHAT)
    answer(done, [first, 5, *rest, compressor.flush()], EVENTS, {b"content-encoding": b"gzip"})
    assert (done.reported.content_deltas, done.reported.output_tokens) == (1, None)
    assert done.counts == {"inflate_failed": 1}


def reachable(*roots: object) -> str:
    """Every string and byte that can be reached from here, as one text."""
    seen: set[int] = set()
    texts: list[str] = []
    left = list(roots)
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, type | types.ModuleType | types.FunctionType):
            continue
        seen.add(id(value))
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, bytes | bytearray | memoryview):
            texts.append(bytes(value).decode("latin-1"))
        left.extend(gc.get_referents(value))
        left.extend(
            getattr(value, name) for name in getattr(type(value), "__slots__", ()) if hasattr(value, name)
        )
    return "\n".join(texts)


def test_the_search_for_text_finds_text() -> None:
    output = ParserOutput(BUDGET, capture_content=True)
    done = play(TRANSCRIPTS[0], output)
    assert ASKED in reachable(done.generation)
    assert SAID in reachable(done.generation)


@every
def test_no_text_is_kept(transcript: Transcript) -> None:
    done = play(transcript)
    kept = reachable(done.generation, done.reader, done.output)
    assert ASKED not in kept
    assert SAID not in kept
    assert done.reported.content is None


@every
def test_text_is_kept_for_those_who_ask(transcript: Transcript) -> None:
    done = play(transcript, ParserOutput(BUDGET, capture_content=True))
    content = done.reported.content
    assert content is not None
    if transcript.text:
        assert ASKED in content.request
        assert content.response.count(SAID) == 1
    else:
        assert SAID not in content.response


def test_kept_text_is_bounded() -> None:
    output = ParserOutput(BUDGET, capture_content=True)
    done = ask("/v1/chat/completions", {**CHAT, "messages": "ü" * 40_000, "stream": True}, output)
    answer(done, sse(*(chunk({"content": "é" * 9999}) for _ in range(20))))
    content = done.reported.content
    assert content is not None
    assert (len(content.request.encode()), len(content.response.encode())) == (MAX_BYTES, MAX_BYTES)
    assert budget_left(output) == BUDGET


@every
def test_the_budget_is_given_back(transcript: Transcript) -> None:
    for capture in (False, True):
        output = ParserOutput(BUDGET, capture_content=capture)
        play(transcript, output)
        done = ask(transcript.path, transcript.request, output)
        done.reader.response_head(Head({b"content-type": transcript.content_type}))
        done.reader.response_body(transcript.writes[0], 10)
        done.reader.drop()
        assert budget_left(output) == BUDGET


NOT_LLM: list[tuple[str, Any, Any]] = [
    ("/generate", {"kind": "report"}, {"id": 7, "url": "/x.pdf"}),
    ("/generate", {"text": "a QR code"}, {"text": "iVBOR"}),
    ("/generate", [1, 2], [3]),
    ("/generate_stream", {"inputs": {"a": 1}}, {"ok": True}),
    ("/v1/messages", {"to": "+49", "body": "hello"}, {"id": "SM1", "status": "queued"}),
    ("/api/messages", {"messages": ["a"]}, {"type": "message"}),
    ("/v1/responses", {"survey": 4, "answers": [1]}, {"object": "survey_response", "id": "1"}),
    ("/completions", {"line": 3, "column": 4}, {"items": []}),
    ("/completion", {"prompt": "x"}, {"content": "y"}),
    ("/score", {"player": "p", "points": 3}, {"data": [1]}),
    ("/score", {"model": "T", "query": "price"}, {"model": "T", "data": [1]}),
    ("/classify", {"image": "…"}, {"label": "cat", "model": 5}),
    ("/rerank", {"list": [1]}, {"results": [1]}),
    ("/api/chat", {"room": 1, "text": "hi"}, {"ok": True}),
    ("/api/generate", {"template": "t"}, {"response": "x", "done": True}),
    ("/", {"jsonrpc": "2.0", "method": "x"}, {"jsonrpc": "2.0", "result": 1}),
    ("/", {"inputs": "x"}, [{"label": "POSITIVE", "score": 0.9}]),
]


@pytest.mark.parametrize(("path", "request_body", "response_body"), NOT_LLM)
def test_other_applications_are_left_alone(path: str, request_body: Any, response_body: Any) -> None:
    for content_type, body in ((JSON, json.dumps(response_body).encode()), (EVENTS, sse(response_body)[0]),
                               (LINES, json.dumps(response_body).encode())):  # fmt: skip
        done = answer(ask(path, request_body), [body], content_type)
        assert (done.generation, done.reader.error, done.reader.request_id, done.counts) == (None, "", "", {})


def test_a_form_on_an_unsure_path_is_not_even_kept() -> None:
    reader = http_reader("POST", "/generate", ParserOutput(BUDGET))
    assert reader is not None
    assert not reader.request_head(Head({b"content-type": b"application/x-www-form-urlencoded"}))


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/chat/completions"), ("POST", "/v1/models"), ("POST", "/v2/models/a/b/infer"), ("POST", "/v1/chat"),
     ("POST", "/models/x:predict"), ("POST", "/generated"), ("POST", "")],
)  # fmt: skip
def test_paths_of_no_api(method: str, path: str) -> None:
    assert http_reader(method, path, ParserOutput(BUDGET)) is None


@pytest.mark.parametrize(
    ("path", "request_body", "events", "error"),
    [
        ("/v1/messages", {"model": "m", "max_tokens": 1, "messages": [1]},
         sse({"type": "error", "error": {"type": "overloaded_error", "message": SAID}}, kind=True),
         "overloaded_error"),
        ("/v1/responses", {"model": "m", "input": "x"},
         sse({"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error"}}}),
         "server_error"),
        ("/v1/responses", {"model": "m", "input": "x"}, sse({"type": "error", "code": "rate_limit", "message": SAID}),
         "rate_limit"),
        ("/generate", {"text": "x", "sampling_params": {}}, sse({"error": {"message": SAID}}), "stream_error"),
        ("/generate_stream", {"inputs": "x", "parameters": {"max_new_tokens": 1}},
         sse({"error": SAID, "error_type": "overloaded"}), "overloaded"),
        ("/v2/models/m/generate_stream", {"text_input": "x"}, sse({"error": SAID}), "stream_error"),
        ("/v1beta/models/g:streamGenerateContent", {"contents": [1]}, sse({"error": {"status": "UNAVAILABLE"}}),
         "UNAVAILABLE"),
    ],
)  # fmt: skip
def test_an_error_inside_a_stream_of_success(path: str, request_body: Any, events: Any, error: str) -> None:
    done = answer(ask(path, request_body), events)
    assert done.reader.error == error
    assert SAID not in repr(done.generation)


def test_an_ollama_error_line_needs_no_line_end() -> None:
    done = answer(ask("/api/chat", {"model": "m", "messages": [1]}), [b'{"error":"out of memory"}'], LINES)
    assert done.reader.error == "stream_error"


@every
@examples(15)
@given(data=st.data())
def test_broken_answers_never_raise_and_stay_bounded(transcript: Transcript, data: st.DataObject) -> None:
    stream = bytearray(b"".join(transcript.writes))
    for _ in range(data.draw(st.integers(0, 6))):
        place = data.draw(st.integers(0, len(stream) - 1))
        stream[place : place + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from(
                [b"", b"{", b'"', b"]", b"null", b"-1", b"1e999", b"[[[[", b"\n\n", b"\xff", b"9" * 30]
            )
        )
    half = len(stream) // 2
    output = ParserOutput(BUDGET)
    done = ask(transcript.path, transcript.request, output)
    answer(done, [bytes(stream[:half]), 7, bytes(stream[half:])], transcript.content_type)
    reported = done.generation
    if reported is not None:
        for name in ("request_model", "response_model", "response_id", "request_id"):
            assert len(getattr(reported, name)) <= MAX_TEXT
        for name in ("input_tokens", "output_tokens", "cached_tokens", "queue_s", "prefill_s"):
            assert (getattr(reported, name) or 0) >= 0
    assert budget_left(output) == BUDGET


HOSTILE = [b"", b"[]", b"null", b"{", b"5", b'"x"', b"\xff\xfe", b'{"a":' + b"[" * 50_000, b'{"usage":{"a":1e999}}',
           b'{"choices":[null]}', b"[[]]", b"[{}]", b'{"type":5}', b'{"message":{}}']  # fmt: skip


@every
@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_bodies_never_raise(transcript: Transcript, hostile: bytes) -> None:
    answer(ask(transcript.path, hostile), [hostile], JSON)
    answer(ask(transcript.path, transcript.request), [b"data: " + hostile + b"\n\n"], EVENTS)
    answer(ask(transcript.path, transcript.request), [hostile + b"\n"], LINES)


def test_times_are_bounded_and_paid_for() -> None:
    output = ParserOutput(BUDGET)
    done = ask("/v1/chat/completions", {**CHAT, "stream": True}, output)
    answer(done, sse(*(chunk({"content": "x"}) for _ in range(CONTENT_TIMES + 50))))
    assert len(done.reported.content_times_ns) == CONTENT_TIMES
    assert (done.reported.content_deltas, budget_left(output)) == (CONTENT_TIMES + 50, BUDGET)
    poor = ParserOutput(6000)
    answer(
        spent := ask("/v1/chat/completions", CHAT, poor), sse(*(chunk({"content": "x"}) for _ in range(600)))
    )
    assert (len(spent.reported.content_times_ns), spent.reported.content_deltas) == (512, 600)


def test_a_gap_ends_the_estimate_not_the_rest() -> None:
    first, second = sse(chunk({"content": "a"}), chunk({"content": "b"}))
    done = answer(ask("/v1/chat/completions", CHAT), [first, 100, b'x"}}\n\n', second])
    assert (done.reported.content_deltas, done.reported.output_tokens) == (2, None)


def test_an_engines_id_is_known_while_the_answer_streams() -> None:
    done = ask("/v1/chat/completions", {**CHAT, "stream": True})
    done.reader.response_head(Head({b"content-type": EVENTS}))
    assert done.reader.request_id == ""
    done.reader.response_body(sse(chunk({"role": "assistant"}))[0], 10)
    assert done.reader.request_id == "chatcmpl-1"
