"""The short way for a token of a streamed response gives what the long way gives, whatever comes between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.requests.connection import Connection as ConnectionState
from otelgpu.families.requests.http1.parser import Http1
from otelgpu.model.inputs import Batch
from tests.unit.families.requests.traffic import (
    LAST_CHUNK,
    READ,
    WRITE,
    Connection,
    Seen,
    chunk,
    new_state,
    request,
    response,
)

EVENT = b'data: {"id":"chatcmpl-1","model":"m","choices":[{"index":0,"delta":{"content":"t"}}]}\n\n'
TOKEN = chunk(EVENT)
ASKED = request("POST", "/v1/chat/completions", b'{"model":"m","stream":true,"messages":[{}]}')
HEAD = response(200, None, content_type="text/event-stream", transfer_encoding="chunked")
EPIPE, EAGAIN = 32, 11
OWN_TASK = 7
Step = Callable[["Stream"], list[Batch]]


class Stream:
    """A connection seen at the server or at the client: what either sends, in calls of the observed process."""

    def __init__(self, role: str) -> None:
        self.connection = Connection()
        self.connection.run_task(OWN_TASK)
        self.role = role
        self.to_client, self.to_server = (WRITE, READ) if role == "SERVER" else (READ, WRITE)

    def answer(self, data: bytes, **options: Any) -> list[Batch]:
        return self.connection._call(self.to_client, data, **options)

    def by_task(self, task: int, data: bytes) -> list[Batch]:
        self.connection.run_task(task)
        answered = self.answer(data)
        self.connection.run_task(OWN_TASK)
        return answered

    def ask(self, data: bytes, **options: Any) -> list[Batch]:
        return self.connection._call(self.to_server, data, **options)


STEPS: dict[str, Step] = {
    "a token": lambda s: s.answer(TOKEN),
    "a token by another thread": lambda s: s.answer(TOKEN, tid=202),
    "a token by another task": lambda s: s.by_task(8, TOKEN),
    "two tokens": lambda s: s.answer(TOKEN + TOKEN),
    "a token in two calls": lambda s: s.answer(TOKEN[:9]) + s.answer(TOKEN[9:]),
    "half an event": lambda s: s.answer(chunk(EVENT[:20])),
    "the other half": lambda s: s.answer(chunk(EVENT[20:])),
    "a chunk with an extension": lambda s: s.answer(TOKEN.replace(b"\r\n", b";x=1\r\n", 1)),
    "a chunk and what is no chunk": lambda s: s.answer(TOKEN + b"zz\r\n"),
    "a token that is not captured": lambda s: s.answer(TOKEN, captured=0),
    "a token that is captured in part": lambda s: s.answer(TOKEN, captured=30),
    "a token without a record": lambda s: s.connection.skip(s.to_client, len(TOKEN)),
    "a token whose record is lost": lambda s: s.answer(TOKEN)[:0],
    "[DONE]": lambda s: s.answer(chunk(b"data: [DONE]\n\n")),
    "the end": lambda s: s.answer(LAST_CHUNK),
    "the next answer": lambda s: s.answer(LAST_CHUNK + HEAD),
    "another request": lambda s: s.ask(ASKED),
    "a part of another request": lambda s: s.ask(ASKED, captured=30),
    "nothing, for now": lambda s: s.connection.result(s.to_client, -EAGAIN),
    "a broken pipe": lambda s: s.connection.result(s.to_client, -EPIPE),
    "the other end is silent": lambda s: s.connection.result(s.to_server, 0),
    "shutdown": lambda s: s.connection.shut_down(),
}


def seen_of(role: str, steps: list[str]) -> Seen:
    """A stream of three tokens, and then these steps."""
    stream = Stream(role)
    seen = Seen(new_state()).feed(stream.connection.open(role=role))
    for data in (stream.ask(ASKED), stream.answer(HEAD), *(stream.answer(TOKEN) for _ in range(3))):
        seen.feed(data)
    for step in steps:
        seen.feed(STEPS[step](stream))
    seen.take(seen.state.expire(stream.connection.now_ns + 10**10))
    return seen.feed(stream.connection.close())


@given(role=st.sampled_from(("SERVER", "CLIENT")), steps=st.lists(st.sampled_from(list(STEPS)), max_size=12))
def test_the_short_way_gives_what_the_long_way_gives(role: str, steps: list[str]) -> None:
    short = seen_of(role, steps)
    with patch.object(ConnectionState, "take_streamed", lambda *_: False):
        long = seen_of(role, steps)
    assert (short.exchanges, short.assignments, short.opened, short.named, short.tasks, short.counts()) == (
        long.exchanges,
        long.assignments,
        long.opened,
        long.named,
        long.tasks,
        long.counts(),
    )


def test_tokens_take_the_short_way() -> None:
    taken = []
    feed = Http1.feed

    def counting(self: Http1, *arguments: Any, **options: Any) -> None:
        taken.append(arguments)
        feed(self, *arguments, **options)

    with patch.object(Http1, "feed", counting):
        seen = seen_of("SERVER", ["a token"] * 100 + ["the end"])
    (exchange,) = seen.exchanges
    assert exchange.generation is not None
    assert exchange.generation.content_deltas == 103
    assert len(taken) == 4  # the request, the head, the token that names it, the end
