"""Whatever chunks of a connection are lost: what is said of a request is true, or left out and the span incomplete."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from otelgpu.families.requests.decode import MOST_CHUNKS_MISSED
from otelgpu.model.exchange import Exchange
from otelgpu.model.inputs import Batch
from tests.rig.examples import examples
from tests.unit.families.requests.traffic import (
    MS,
    READ,
    WRITE,
    Connection,
    Seen,
    chunk,
    opened,
    request,
    response,
)

LATER = 100_000 * MS
STATUSES = (200, 404, 500)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKENS = 4


class Asked(Struct):
    """One request: of what kind, and whether the next one is sent along with it."""

    number: int
    stream: bool
    pipelined: bool
    parts: bool  # head and body are buffers of their own

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.stream else f"/items/{self.number}"

    @property
    def status(self) -> int:
        return 200 if self.stream else STATUSES[self.number % 3]

    @property
    def traceparent(self) -> str:
        return f"00-{self.number + 1:032x}-{self.number + 1:016x}-01"

    def sent(self) -> tuple[bytes, bytes]:
        """Its head and its body."""
        if not self.stream:
            return request("GET", self.path, traceparent=self.traceparent), b""
        body = json.dumps({"model": "m", "stream": True, "messages": [], "user": str(self.number)}).encode()
        whole = request("POST", "/v1/chat/completions", body, traceparent=self.traceparent)
        return whole[: -len(body)], body


class Truth(Struct):
    """What happened to one."""

    start_ns: int
    first_token_ns: int = 0
    end_ns: int = 0


def event(number: int, text: str, *, finish: str | None = None) -> bytes:
    said = {"id": f"chatcmpl-{number}", "model": "m"}
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    return chunk(b"data: " + json.dumps({**said, "choices": [choice]}).encode() + b"\n\n")


def serve(c: Connection, asked: list[Asked], truths: dict[int, Truth]) -> Iterator[Batch]:
    """All system calls of the server."""
    waiting: list[Asked] = []
    for each in asked:
        waiting.append(each)
        if each.pipelined and each is not asked[-1]:
            continue
        buffers = [part for one in waiting for part in one.sent() if part]
        yield from c.moved(READ, *(buffers if each.parts else [b"".join(buffers)]))
        read_ns = c.now_ns + c.took_ns
        for one in waiting:
            truths[one.number] = Truth(start_ns=read_ns)
            yield from answer(c, one, truths[one.number])
        waiting.clear()


def answer(c: Connection, one: Asked, truth: Truth) -> Iterator[Batch]:
    if not one.stream:
        whole = response(one.status, b"x" * 40, x_number=str(one.number))
        yield from c.moved(WRITE, *((whole[:-40], whole[-40:]) if one.parts else (whole,)))
    else:
        first, *rest = [event(one.number, f"w{n}") for n in range(TOKENS)]
        yield from c.moved(WRITE, *((HEAD, first) if one.parts else (HEAD + first,)))
        truth.first_token_ns = c.now_ns
        for piece in rest:
            yield from c.moved(WRITE, piece)
        yield from c.moved(
            WRITE, event(one.number, "", finish="stop"), chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n"
        )
    truth.end_ns = c.now_ns + c.took_ns


def check(found: Exchange, one: Asked, truth: Truth) -> None:
    """What is said is true; what is not said is marked."""
    said = {
        "status": (found.status_code or None, one.status),
        "parent": (found.parent and found.parent.trace_id.hex(), f"{one.number + 1:032x}"),
    }
    if found.answered:
        said["end"] = (found.end_ns, truth.end_ns)
    if one.stream and found.generation is not None:
        first_ns = found.generation.first_content_ns
        said["first token"] = (first_ns or None, truth.first_token_ns)
        said["tokens"] = (found.generation.output_tokens, TOKENS)
    untrue = {name: pair for name, pair in said.items() if pair[0] not in (None, pair[1])}
    assert not untrue
    assert found.start_ns <= truth.start_ns
    assert found.error_type in ("", "500") if one.status == 500 else found.error_type == ""
    if not found.incomplete:
        assert {name: pair for name, pair in said.items() if pair[0] != pair[1]} == {}
        assert found.start_ns == truth.start_ns


REQUESTS = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=6)


@examples(300)
@given(
    kinds=REQUESTS,
    bursts=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), max_size=3),
    end=st.sampled_from(("close", "eof", "shut", "")),
)
def test_what_is_said_in_spite_of_lost_chunks_is_true(
    kinds: list[tuple[bool, bool, bool]], bursts: list[tuple[int, int]], end: str
) -> None:
    c, seen = opened()
    asked = [Asked(n, stream, pipelined, parts) for n, (stream, pipelined, parts) in enumerate(kinds)]
    truths: dict[int, Truth] = {}
    for number, batch in enumerate(list(serve(c, asked, truths))):
        if not any(begin <= number < begin + size for begin, size in bursts):
            seen.feed(batch)
    finish(c, seen, end)
    for found in seen.exchanges:
        for one in identified(found, asked):
            check(found, one, truths[one.number])


def finish(c: Connection, seen: Seen, end: str) -> None:
    """How the connection ends: closed, at once or after one side said that it sends no more; or not at all."""
    if end == "eof":
        seen.feed(c.result(READ, 0))
    elif end == "shut":
        seen.feed(c.shut_down())
    if end:
        seen.feed(c.close())
    seen.take(seen.state.expire(LATER, final=True))


def identified(found: Exchange, asked: list[Asked]) -> list[Asked]:
    """Which request it is of, by what was read of it."""
    said = found.path.rsplit("/", 1)[-1]
    if said.isdigit():
        return [asked[int(said)]]
    if found.parent is not None:
        return [asked[int.from_bytes(found.parent.trace_id) - 1]]
    return []


def test_after_parsing_was_put_off_for_good_a_response_is_not_taken_for_the_one_that_was_lost() -> None:
    """More chunks are lost than one message is made of; then one request is seen, and the response to another."""
    c, seen = opened()
    seen.feed(c.read(request("GET", "/before")))
    for _ in range(MOST_CHUNKS_MISSED + 1):
        c.result(READ, -errno.EAGAIN)
    seen.feed(c.read(request("GET", "/seen")))
    c.write(response(200, b"1"))
    c.read(request("GET", "/lost"))
    seen.feed(c.write(response(404, b"2"))).feed(c.close())
    seen.take(seen.state.expire(LATER, final=True))
    assert [(one.path, one.status_code, one.error) for one in seen.exchanges] == [("/seen", 0, "capture_gap")]


def test_of_a_call_whose_first_part_was_lost_no_byte_of_the_next_one_is_taken_for_repeated() -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a")))
    _, body = c.moved(WRITE, response(200, b"x" * 600)[:-600], b"x" * 600)
    seen.feed(body).take(seen.state.expire(LATER))
    c.now_ns = 2 * LATER
    seen.feed(c.read(request("GET", "/b"))).feed(c.write(response(404, b"y" * 30))).feed(c.close())
    seen.take(seen.state.expire(3 * LATER, final=True))
    assert [(one.path, one.status_code, one.error) for one in seen.exchanges] == [
        ("/a", 0, "capture_gap"),
        ("/b", 404, ""),
    ]
    assert "bytes_repeated" not in seen.counts()


@pytest.mark.parametrize("end", ["close", "eof", "shut"])
def test_a_response_that_may_have_been_lost_fails_nobody(end: str) -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a")))
    c.write(response(200, b"1"))
    finish(c, seen, end)
    assert [(one.error_type, one.incomplete) for one in seen.exchanges] == [("", "capture_gap")]


@pytest.mark.parametrize("end", ["close", "eof", "shut"])
def test_where_nothing_was_lost_a_request_without_a_response_failed(end: str) -> None:
    c, seen = opened()
    seen.feed(c.read(request("GET", "/a")))
    finish(c, seen, end)
    assert [(one.error_type, one.incomplete) for one in seen.exchanges] == [("connection_closed", "")]
