"""A server that stands anything: in one thread, on two ports, for as many connections as come.

In: nothing. Out: a JSON line ``{"http": port, "sink": port}`` on stdout; it then serves until it is killed. ``http``
answers each request that it can read; one to ``/v1/chat/completions`` gets a completion whose JSON is 64 KiB
compressed and 64 MiB inflated. ``sink`` reads and says nothing. Standard library only.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import resource

LARGEST_HEAD = 65_536
BACKLOG = 4096
PADDING = 64 << 20


def response(body: bytes, *fields: bytes) -> bytes:
    return b"\r\n".join((b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *fields, b"", body))


PLAIN = response(b"ok")
INFLATING = response(
    gzip.compress(b'{"id":"chatcmpl-1","model":"m","choices":[],"padding":"%s"}' % (b" " * PADDING)),
    b"Content-Type: application/json",
    b"Content-Encoding: gzip",
)


class Http(asyncio.Protocol):
    """HTTP/1.1 with Content-Length; what is no request is read and dropped."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._rest = b""
        self._body_bytes = 0
        self._answer = PLAIN

    def data_received(self, data: bytes) -> None:
        while data:
            if self._body_bytes:
                passed = min(self._body_bytes, len(data))
                self._body_bytes -= passed
                data = data[passed:]
                if self._body_bytes:
                    return
                self._transport.write(self._answer)
                continue
            head, blank, data = (self._rest + data).partition(b"\r\n\r\n")
            if not blank:
                self._rest = head[-LARGEST_HEAD:]
                return
            self._rest = b""
            self._head(head)

    def _head(self, head: bytes) -> None:
        self._answer = INFLATING if head.startswith(b"POST /v1/chat/completions ") else PLAIN
        _, found, length = head.lower().partition(b"\r\ncontent-length:")
        digits = length.split(b"\r\n")[0].strip()
        self._body_bytes = int(digits) if found and digits.isdigit() else 0
        if not self._body_bytes:
            self._transport.write(self._answer)


async def serve() -> None:
    loop = asyncio.get_running_loop()
    http = await loop.create_server(Http, "127.0.0.1", 0, backlog=BACKLOG)
    sink = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, backlog=BACKLOG)
    ports = {"http": http.sockets[0].getsockname()[1], "sink": sink.sockets[0].getsockname()[1]}
    print(json.dumps(ports), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(serve())
