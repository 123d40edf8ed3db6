"""Asks a gRPC server of tests/servers/programs: ``python -m tests.servers.load_grpc LOAD``. In and out as of load.py.

The clients are grpcio's. Every second one has a connection of its own, for one request after the other; up to
`SHARERS` of the rest have one together, as calls have that are made on one channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import grpc.aio

from tests.servers.load import DEADLINE_S, Kind, Load, Outcome, go_through, main, traceparent_of
from tests.servers.programs import kserve

SHARERS: Final = 8
_CUT_AFTER: Final = kserve.TOKENS_BEFORE_WAITING
_CUT_BEFORE_S: Final = 0.01  # the request is with the server, or under way
_TIMEOUT_S: Final = 60.0
_METHODS: Final[dict[Kind, str]] = {"missing": "Missing", "health": "ServerLive"}
_MODELS: Final[dict[Kind, str]] = {
    "fail": kserve.FAILING,
    "unknown": "unknown",
    **dict.fromkeys(("cut stream", "cut answer", "deadline"), kserve.PATIENT),
}
_NOT_ANSWERED: Final = ("cut answer", "deadline")
_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)


class Channel:
    """A connection to the server."""

    def __init__(self, channel: Any, port: int, *, shared: bool) -> None:
        self.channel, self.port, self.shared = channel, port, shared

    @classmethod
    async def open(cls, port: int, *, shared: bool) -> Channel:
        """A new one. No other may be opened meanwhile: grpcio does not say which port a channel has."""
        before = set(_own_ports(port))
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS)
        await asyncio.wait_for(channel.channel_ready(), _TIMEOUT_S)
        (own,) = set(_own_ports(port)) - before
        return cls(channel, own, shared=shared)


class Client:
    """One of those that ask at the same time, on one channel."""

    def __init__(self, channel: Channel, numbers: Iterator[int]) -> None:
        self._channel, self._numbers = channel, numbers
        self.outcomes: list[Outcome] = []

    async def run(self, kinds: Sequence[Kind], until_ns: int) -> None:
        """See `go_through`."""
        await go_through(kinds, self._ask, until_ns)

    async def _ask(self, kind: Kind) -> None:
        number = next(self._numbers)
        traced = (
            self._channel.shared or number % 2 == 1
        )  # what else says whose span it is of those that are under way
        call = Call(self._channel.channel, kind, number, traceparent_of(number) if traced else "")
        status = await call.finish()
        streamed = "stream" in kind
        self.outcomes.append(
            Outcome(
                number=number,
                kind=kind,
                path=call.path,
                port=self._channel.port,
                sent_ns=call.sent_ns,
                traceparent=call.traceparent,
                status=200 if call.answered else 0,
                seconds=(time.monotonic_ns() - call.sent_ns) / 1e9,
                ttft_s=(call.first_message_ns - call.sent_ns) / 1e9 if streamed else None,
                tokens=call.messages if streamed else None,
                usage=False,
                multiplexed=self._channel.shared,
                rpc_status=status,
                messages=call.messages,
            )
        )


class Call:
    """A call, begun when it is made."""

    def __init__(self, channel: Any, kind: Kind, number: int, traceparent: str) -> None:
        self.kind, self.traceparent = kind, traceparent
        method = _METHODS.get(kind, "ModelStreamInfer" if "stream" in kind else "ModelInfer")
        self.path = f"/{kserve.SERVICE}/{method}"
        self.messages, self.first_message_ns = 0, 0
        request = (
            b"" if kind == "health" else kserve.infer_request(_MODELS.get(kind, kserve.TINY), str(number))
        )
        self._unwritten = request if kind in _NOT_ANSWERED else None
        self.sent_ns = time.monotonic_ns()
        began = {
            "timeout": DEADLINE_S if kind == "deadline" else _TIMEOUT_S,
            "metadata": (("traceparent", traceparent),) if traceparent else None,
        }
        # To the server these are one; of the first, the message can be waited for until it has been written.
        if self._unwritten is not None:
            self._call = channel.stream_stream(self.path)(**began)
        else:
            self._call = channel.unary_stream(self.path)(request, **began)

    async def finish(self) -> str:
        """Read its messages, or cancel it; the name of its status."""
        try:
            if self._unwritten is not None:
                await self._call.write(self._unwritten)
                await self._call.done_writing()
            if self.kind == "cut answer":
                await asyncio.sleep(_CUT_BEFORE_S)
                self._call.cancel()
            else:
                await self._read()
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass  # as its status says
        return str((await self._call.code()).name)

    @property
    def answered(self) -> bool:
        """Whether its response has a head."""
        return self.messages > 0 or self.kind in ("missing", "fail", "unknown")

    async def _read(self) -> None:
        while await self._call.read() is not grpc.aio.EOF:
            self.first_message_ns = self.first_message_ns or time.monotonic_ns()
            self.messages += 1
            if self.kind == "cut stream" and self.messages == _CUT_AFTER:
                self._call.cancel()
                return


def _own_ports(server: int) -> Iterator[int]:
    """Of this process's connections to a port of the server."""
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(each.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(each.name))) as end:
                    if end.getpeername()[1:2] == (server,):
                        yield end.getsockname()[1]


async def _channels(load: Load) -> list[Channel]:
    """That of each client."""
    found: list[Channel] = []
    for index in range(load.together):
        shared = index % 2 == 1
        if shared and index % (2 * SHARERS) > 1:
            found.append(found[-2])
        else:
            found.append(await Channel.open(load.port, shared=shared))
    return found


async def ask(load: Load) -> list[Outcome]:
    """Ask, and give what came of each."""
    numbers = iter(range(load.first, sys.maxsize))
    channels = await _channels(load)
    clients = [Client(channel, numbers) for channel in channels]
    until_ns = time.monotonic_ns() + round(load.least_s * 1e9)
    await asyncio.gather(*(client.run(load.kinds(index), until_ns) for index, client in enumerate(clients)))
    for each in set(channels):
        await each.channel.close()
    return [outcome for client in clients for outcome in client.outcomes]


if __name__ == "__main__":
    main(ask)
