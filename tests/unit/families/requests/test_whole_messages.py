"""The short way for calls that move one whole message gives what the long way gives, whatever comes between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from otelgpu.families.requests.http1.parser import Http1
from otelgpu.model.inputs import Batch
from tests.rig.examples import examples
from tests.unit.families.requests.traffic import (
    READ,
    WRITE,
    Connection,
    Seen,
    chunk,
    new_state,
    request,
    response,
)

SHORT_WAYS = ("_take_request", "_take_response")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
JSON = b'{"model":"m","messages":[{}]}'
ANSWER = b'{"id":"c-1","model":"m","choices":[{"message":{"content":"t"}}],"usage":{"completion_tokens":1}}'
EPIPE, EAGAIN = 32, 11
OWN_TASK = 7

REQUESTS = {
    "get": request("GET", "/work"),
    "with a query": request("GET", "/work;a=1?key=secret", user_agent="curl/8"),
    "with a parent": request("GET", "/work", traceparent=PARENT, tracestate="a=b"),
    "with two parents": b"GET / HTTP/1.1\r\ntraceparent: a\r\ntraceparent: %s\r\n\r\n" % PARENT.encode(),
    "post": request("POST", "/work", b"abc", content_type="text/plain"),
    "empty post": request("POST", "/work", b""),
    "completion": request("POST", "/v1/chat/completions", JSON),
    "head": request("HEAD", "/work"),
    "connect": b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n",
    "1.0": b"GET /work HTTP/1.0\r\n\r\n",
    "1.0, keep-alive": b"GET /work HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    "keep-alive": request("GET", "/work", connection="Keep-Alive"),
    "close": request("GET", "/work", connection="close"),
    "keep-alive and close": b"GET / HTTP/1.1\r\nconnection: keep-alive\r\nConnection: close\r\n\r\n",
    "upgrade": request("GET", "/work", connection="upgrade", upgrade="other"),
    "chunked": b"POST /w HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"ab") + chunk(b""),
    "an empty line before": b"\r\n" + request("GET", "/work"),
    "two": request("GET", "/one") + request("GET", "/two"),
    "and a half": request("GET", "/one") + b"GET /t",
    "no HTTP": b"GET /work HTTP/1.1\r\nbad\x00: 1\r\n\r\n",
    "garbage": b"SSH-2.0-OpenSSH\r\n",
    "a long body": request("POST", "/work", b"x" * 300),
}
RESPONSES = {
    "ok": response(200, b"ok"),
    "json": response(200, ANSWER, content_type="application/json"),
    "an error": response(503, b"no"),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "not modified": b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n",
    "a length alone": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
    "a body alone": b"abcde",
    "empty": response(200, b""),
    "until it closes": b"HTTP/1.1 200 OK\r\n\r\nabc",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\n",
    "chunked": response(200, None, transfer_encoding="chunked") + chunk(b"ab") + chunk(b""),
    "two": response(200, b"ok") + response(201, b"ok"),
    "and more": response(200, b"ok") + b"HTTP/1.1",
    "switching": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: other\r\n\r\n",
    "closes": response(200, b"ok", connection="close"),
    "1.0": b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n",
}
HOW: dict[str, dict[str, Any]] = {
    "": {},
    " by another thread": {"tid": 202},
    " captured in part": {"captured": 20},
    " captured at both ends": {"captured": 20, "tail": 3},
    " not captured": {"captured": 0},
    " that had arrived": {"arrival_ns": 1_000_000},
}
Step = Callable[["Ends"], list[Batch]]


class Ends:
    """A connection seen at the server or at the client."""

    def __init__(self, role: str) -> None:
        self.connection = Connection()
        self.to_client, self.to_server = (WRITE, READ) if role == "SERVER" else (READ, WRITE)

    def ask(self, data: bytes, **options: Any) -> list[Batch]:
        return self.connection._call(self.to_server, data, **options)

    def answer(self, data: bytes, **options: Any) -> list[Batch]:
        return self.connection._call(self.to_client, data, **options)

    def moved(self, direction: str, *parts: bytes) -> list[Batch]:
        return self.connection.moved(direction, *parts)

    def run_task(self, task: int) -> list[Batch]:
        self.connection.run_task(task)
        return []

    def publish(self, source: int) -> list[Batch]:
        self.connection.published = (b"t" * 16, b"s" * 8, 1, source) if source else None
        return []


def _asking(data: bytes, options: dict[str, Any]) -> Step:
    return lambda ends: ends.ask(data, **options)


def _answering(data: bytes, options: dict[str, Any]) -> Step:
    return lambda ends: ends.answer(data, **options)


TWO = REQUESTS["get"], REQUESTS["post"]


def arrived(batches: list[Batch]) -> list[Batch]:
    """The same of what had come to the host before it was read."""
    for batch in batches:
        batch.records["chunk"]["arrival_ns"] = 1_000_000
    return batches


def between(asked: list[Batch], answered: list[Batch]) -> list[Batch]:
    """An answer by another thread between two buffers of a call, as records of several threads may come."""
    first, second = arrived(asked)
    for batch in answered:
        batch.records["chunk"]["head"]["time_ns"] = first.records["chunk"]["head"]["time_ns"]
    sequences = [batch.records["chunk"]["sequence"].copy() for batch in (second, *answered)]
    for batch, sequence in zip((*answered, second), sequences, strict=True):
        batch.records["chunk"]["sequence"] = sequence
    return [first, *answered, second]


STEPS: dict[str, Step] = {
    **{f"asks {n}{how}": _asking(d, o) for n, d in REQUESTS.items() for how, o in HOW.items()},
    **{f"answers {n}{how}": _answering(d, o) for n, d in RESPONSES.items() for how, o in HOW.items()},
    "a request in two calls": lambda e: e.ask(REQUESTS["post"][:30]) + e.ask(REQUESTS["post"][30:]),
    "an answer in two calls": lambda e: e.answer(RESPONSES["ok"][:20]) + e.answer(RESPONSES["ok"][20:]),
    "two requests in one call": lambda e: e.moved(e.to_server, REQUESTS["get"], REQUESTS["post"]),
    "two requests that had arrived in one call": lambda e: arrived(e.moved(e.to_server, *TWO)),
    "an answer while that goes on": lambda e: between(
        e.moved(e.to_server, *TWO), e.answer(RESPONSES["ok"], tid=202)
    ),
    "two answers in one call": lambda e: e.moved(e.to_client, RESPONSES["ok"], RESPONSES["empty"]),
    "a request whose record is lost": lambda e: e.ask(REQUESTS["get"])[:0],
    "an answer whose record is lost": lambda e: e.answer(RESPONSES["ok"])[:0],
    "a request without a record": lambda e: e.connection.skip(e.to_server, len(REQUESTS["get"])),
    "an answer without a record": lambda e: e.connection.skip(e.to_client, len(RESPONSES["ok"])),
    "another task": lambda e: e.run_task(8),
    "no task": lambda e: e.publish(0),
    "a published context": lambda e: e.publish(1),
    "nothing, for now": lambda e: e.connection.result(e.to_client, -EAGAIN),
    "a broken pipe": lambda e: e.connection.result(e.to_client, -EPIPE),
    "the client is silent": lambda e: e.connection.result(e.to_server, 0),
    "the server is silent": lambda e: e.connection.result(e.to_client, 0),
    "shutdown": lambda e: e.connection.shut_down(),
}
PLAIN_ASKED = [
    f"asks {name}" for name in ("get", "with a query", "with a parent", "post", "head", "keep-alive")
]
PLAIN_ANSWERED = [f"answers {name}" for name in ("ok", "an error", "no content", "empty")]


def seen_of(opening: dict[str, Any] | None, role: str, steps: list[str]) -> Seen:
    """What these steps show on a connection; ``opening``: how it was opened, None: nobody saw that."""
    ends, seen = Ends(role), Seen(new_state())
    ends.run_task(OWN_TASK)
    if opening is not None:
        seen.feed(ends.connection.open(role=role, **opening))
    for step in steps:
        seen.feed(STEPS[step](ends))
    seen.take(seen.state.expire(ends.connection.now_ns + 10**10))
    return seen.feed(ends.connection.close())


@contextmanager
def by_the_long_way() -> Iterator[None]:
    """All bytes are taken as if no short way were there."""
    with (
        patch.object(Http1, "_take_request", lambda *_: False),
        patch.object(Http1, "_take_response", lambda *_: False),
    ):
        yield


EXCHANGES = st.tuples(st.sampled_from(PLAIN_ASKED), st.sampled_from(PLAIN_ANSWERED)).map(list)
ANY = st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=4)
OPENINGS = st.sampled_from([{}, {"nonblocking": True}, {"late": True}, None])


@example({}, "SERVER", [["asks get", "asks garbage", "answers ok", "asks get", "answers ok"]])
@example({}, "SERVER", [["two requests in one call", "two answers in one call", "asks get", "answers ok"]])
@example({}, "SERVER", [["asks get that had arrived", "two answers in one call", "two requests in one call"]])
@example({}, "SERVER", [["asks get", "asks post not captured", "answers ok", "answers ok", "asks get"]])
@example(
    {"late": True}, "SERVER", [["asks get", "answers a body alone", "asks get", "asks get", "answers ok"]]
)
@example({}, "SERVER", [["an answer while that goes on", "answers ok"]])
@example({}, "SERVER", [["asks close", "answers ok", "asks get", "answers ok"]])
@examples(400)
@given(OPENINGS, st.sampled_from(("SERVER", "CLIENT")), st.lists(EXCHANGES | ANY, max_size=6))
def test_the_short_way_gives_what_the_long_way_gives(
    opening: dict[str, Any] | None, role: str, parts: list[list[str]]
) -> None:
    steps = [step for part in parts for step in part]
    short = seen_of(opening, role, steps)
    with by_the_long_way():
        long = seen_of(opening, role, steps)
    assert facts_of(short) == facts_of(long)


def facts_of(seen: Seen) -> tuple[object, ...]:
    return (seen.exchanges, seen.assignments, seen.opened, seen.named, seen.tasks, seen.counts())


@pytest.mark.parametrize("role", ["SERVER", "CLIENT"])
@pytest.mark.parametrize("asked", PLAIN_ASKED)
@pytest.mark.parametrize("answered", PLAIN_ANSWERED)
def test_plain_exchanges_take_the_short_way(role: str, asked: str, answered: str) -> None:
    if asked == "asks head" and answered != "answers no content":
        asked = "asks get"  # what has a body is no answer to HEAD
    taken: Counter[bool] = Counter()

    def counted(name: str) -> Callable[..., bool]:
        way = getattr(Http1, name)

        def take(self: Http1, *arguments: Any) -> bool:
            found: bool = way(self, *arguments)
            taken[found] += 1
            return found

        return take

    with patch.multiple(Http1, **{name: counted(name) for name in SHORT_WAYS}):
        seen = seen_of({}, role, [asked, answered] * 10)
    assert (len(seen.exchanges), taken[True]) == (10, 20)
