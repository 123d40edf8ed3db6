"""Asks a server of tests/servers/programs, and writes down what its clients saw: ``python -m tests.servers.load LOAD``.

In: `Load`, as JSON. Out: a line of JSON for each request (`Outcome`), in no order. Times are CLOCK_MONOTONIC, which
spans have none of: only differences are compared.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Final, Literal, get_args

import httptools

Kind = Literal[
    "stream",  # a chat completion, as events; its usage is asked for by every second one
    "answer",  # a chat completion, in one piece
    "item",  # GET /items/N
    "pipelined",  # two of them, sent at once
    "missing",  # 404
    "fail",  # 500
    "health",
    "cut stream",  # a stream whose client hangs up after its second token
    "cut answer",  # a chat completion whose client hangs up before the answer
    # Of gRPC, where a generation's client cancels it instead:
    "unknown",  # NOT_FOUND
    "deadline",  # an answer that does not come before it
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
ROUND: Final[tuple[Kind, ...]] = (
    *("stream", "answer", "pipelined", "missing", "answer", "stream", "health", "fail", "answer"),
    *("cut stream", "stream", "item", "answer", "cut answer"),
)
SINGLY: Final[tuple[Kind, ...]] = tuple("item" if kind == "pipelined" else kind for kind in ROUND)
"""For servers that do not read ahead."""
GENERATIONS: Final[tuple[Kind, ...]] = tuple(
    kind for kind in ROUND if kind not in ("pipelined", "item", "fail")
)
"""For those with an API of their own, which has no other routes."""
RPCS: Final[tuple[Kind, ...]] = (
    *("stream", "answer", "missing", "answer", "stream", "health", "fail", "answer"),
    *("cut stream", "stream", "unknown", "answer", "cut answer", "deadline"),
)
"""For those of gRPC: load_grpc.py."""
TOKENS: Final = 6
DEADLINE_S: Final = 0.5
"""Of those that pass: a server with little of a processor has begun by then."""
_CUT_AFTER: Final = 2  # tokens
_CUT_BEFORE_S: Final = 0.002  # an answer takes longer: its calls do
_TIMEOUT_S: Final = 200.0
"""A server that is far behind answers, late: running.py ends a load that takes longer."""
_TRACES: Final = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a server is asked: each of ``together`` connections goes ``rounds`` times through a round of requests.

    Each begins with another kind than its neighbours, and goes on for ``least_s`` seconds at least. ``first``: the
    number of the first request.
    """

    port: int
    first: int
    together: int
    rounds: int
    least_s: float = 0.0
    round: Sequence[Kind] = ROUND

    def kinds(self, client: int) -> list[Kind]:
        """What a client asks for, in order."""
        return list(islice(cycle(self.round), client, client + self.rounds * len(self.round)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a client knows of a request. ``status`` 0: it hung up before there was any.

    ``usage``: whether the usage was sent. ``tokens``: those that it received; None: nobody counts them. ``ttft_s``:
    from before the first byte was sent until the read with the first content had returned. ``multiplexed``: others were
    under way on its connection. ``rpc_status``: gRPC's, by name; empty: it is no call of gRPC. ``messages``: of its
    response.
    """

    number: int
    kind: Kind
    path: str
    port: int
    sent_ns: int
    traceparent: str
    status: int
    seconds: float
    ttft_s: float | None
    tokens: int | None
    usage: bool
    multiplexed: bool = False
    rpc_status: str = ""
    messages: int = 0


def traceparent_of(number: int) -> str:
    """What a request is sent with: `traced_number` is the number again."""
    return f"00-{number + _TRACES:032x}-{number:016x}-01"


def traced_number(trace_id: str) -> int:
    """The number of the request that was sent with a trace."""
    return int(trace_id, 16) - _TRACES


async def go_through(
    kinds: Sequence[Kind], ask: Callable[[Kind], Coroutine[Any, Any, None]], until_ns: int
) -> None:
    """Ask for each of them, and go through all of them again until the time has come."""
    again = True
    while again:
        for kind in kinds:
            await ask(kind)
        again = time.monotonic_ns() < until_ns


class Connection:
    """An HTTP/1.1 connection to the server. Responses are read one after the other, by httptools."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, traced: bool) -> None:
        self._reader, self._writer, self.traced = reader, writer, traced
        self.port: int = writer.get_extra_info("sockname")[1]
        self._parser = httptools.HttpResponseParser(self)
        self._ended: deque[int] = deque()  # statuses of responses that were read whole
        self.status, self.tokens, self.first_content_ns = 0, 0, 0
        self.kept = True
        """Whether the server reads on after its last response."""
        self._data = b""
        self._now_ns = 0

    @classmethod
    async def open(cls, port: int, traced: bool) -> Connection:
        """A new one."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(reader, writer, traced)

    def send(self, data: bytes) -> int:
        """Send a request or two; the time before."""
        self.status, self.tokens, self.first_content_ns, self._data = 0, 0, 0, b""
        sent_ns = time.monotonic_ns()
        self._writer.write(data)
        return sent_ns

    async def response(self, tokens: int | None = None) -> int:
        """Read to the end of a response, or up to so many tokens; its status."""
        while not self._ended:
            if tokens is not None and self.tokens >= tokens:
                return self.status
            data = await asyncio.wait_for(self._reader.read(1 << 16), _TIMEOUT_S)
            self._now_ns = time.monotonic_ns()
            if not data:
                raise ConnectionError("the server closed the connection")
            self._parser.feed_data(data)
        return self._ended.popleft()

    def close(self) -> None:
        """Close it, whatever is under way."""
        self._writer.close()

    # What httptools calls.

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        *events, self._data = (self._data + body).split(b"\n\n")
        self.tokens += sum(event.count(b"token ") for event in events if b'"content":' in event)
        if self.tokens and not self.first_content_ns:
            self.first_content_ns = self._now_ns

    def on_message_complete(self) -> None:
        self.kept = self._parser.should_keep_alive()
        self._ended.append(self._parser.get_status_code())


class Client:
    """One of those that ask at the same time: a connection at a time, a new one after each that was not kept."""

    def __init__(self, port: int, traced: bool, numbers: Iterator[int]) -> None:
        self._port, self._traced, self._numbers = port, traced, numbers
        self._connection: Connection | None = None
        self.outcomes: list[Outcome] = []

    async def run(self, kinds: Sequence[Kind], until_ns: int) -> None:
        """See `go_through`."""
        await go_through(kinds, self._ask, until_ns)
        if self._connection is not None:
            self._connection.close()

    async def _ask(self, kind: Kind) -> None:
        """On a new connection where the server closed the one that it had kept: it may, at any time (RFC 9112, 9.5)."""
        kept = self._connection
        try:
            await self._ask_once(kind)
        except ConnectionError:
            if kept is None or kept.status:
                raise
            self._leave(kept)
            await self._ask_once(kind)

    async def _ask_once(self, kind: Kind) -> None:
        connection = self._connection or await Connection.open(self._port, self._traced)
        self._connection = connection
        asked = [self._request(kind, connection.traced) for _ in range(2 if kind == "pipelined" else 1)]
        sent_ns = connection.send(b"".join(each.head + each.body for each in asked))
        for each in asked:
            status = await self._status(connection, kind)
            self.outcomes.append(
                Outcome(
                    number=each.number,
                    kind=kind,
                    path=each.path,
                    port=connection.port,
                    sent_ns=sent_ns,
                    traceparent=each.traceparent,
                    status=status,
                    seconds=(time.monotonic_ns() - sent_ns) / 1e9,
                    ttft_s=(connection.first_content_ns - sent_ns) / 1e9 if "stream" in kind else None,
                    tokens=connection.tokens if "stream" in kind else TOKENS if kind == "answer" else 0,
                    usage=each.usage,
                )
            )
        if kind.startswith("cut") or not connection.kept:
            self._leave(connection)

    def _leave(self, connection: Connection) -> None:
        connection.close()
        self._connection, self._traced = None, not self._traced

    async def _status(self, connection: Connection, kind: Kind) -> int:
        if kind == "cut answer":
            await asyncio.sleep(_CUT_BEFORE_S)
            return 0
        return await connection.response(_CUT_AFTER if kind == "cut stream" else None)

    def _request(self, kind: Kind, traced: bool) -> Request:
        number = next(self._numbers)
        return Request(kind, number, traceparent_of(number) if traced else "")


class Request:
    """The bytes of a request."""

    def __init__(self, kind: Kind, number: int, traceparent: str) -> None:
        self.number, self.traceparent = number, traceparent
        self.usage, self.body = False, b""
        self.path = {"health": "/health"}.get(kind, f"/{kind}/{number}")
        method = "GET"
        if kind in ("item", "pipelined"):
            self.path = f"/items/{number}"
        if "stream" in kind or "answer" in kind:
            method, self.path = "POST", "/v1/chat/completions"
            asked: dict[str, Any] = {"model": "tiny", "max_tokens": TOKENS}
            asked |= {"user": str(number), "messages": [{"role": "user", "content": "Say token."}]}
            self.usage = "answer" in kind or number % 2 == 0
            if "stream" in kind:
                asked |= {"stream": True} | (
                    {"stream_options": {"include_usage": True}} if self.usage else {}
                )
            self.body = json.dumps(asked).encode()
        fields = {"Host": "localhost", "X-Request-Id": str(number)}
        if method == "POST":
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(self.body))}
        if traceparent:
            fields["traceparent"] = traceparent
        lines = [f"{method} {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        self.head = "".join(line + "\r\n" for line in [*lines, ""]).encode()


async def ask(load: Load) -> list[Outcome]:
    """Ask, and give what came of each; raises what a connection ended with that was neither idle nor hung up."""
    numbers = iter(range(load.first, sys.maxsize))
    clients = [Client(load.port, index % 2 == 1, numbers) for index in range(load.together)]
    until_ns = time.monotonic_ns() + round(load.least_s * 1e9)
    await asyncio.gather(*(client.run(load.kinds(index), until_ns) for index, client in enumerate(clients)))
    return [outcome for client in clients for outcome in client.outcomes]


def main(asking: Callable[[Load], Coroutine[Any, Any, list[Outcome]]]) -> None:
    """Print the outcomes."""
    for outcome in asyncio.run(asking(Load(**json.loads(sys.argv[1])))):
        print(json.dumps(dataclasses.asdict(outcome)))


if __name__ == "__main__":
    main(ask)
