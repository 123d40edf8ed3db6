"""A tiny HTTP/1.1 server for probes and scrapes: ``/healthz``, ``/readyz`` and ``/metrics``, and nothing else.

One thread serves every connection without ever waiting for one, so that a peer that is slow, silent or one of
hundreds keeps nobody else from an answer: what does not end in time is cut off, and when there are too many
connections the oldest makes room. A connection is for one request.

Metrics are the loop's, in another thread: a scrape asks (``fd`` becomes readable), and the loop answers when it
comes by. A loop that does not come by in time makes the scrape fail, so that old figures never pass for new ones.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct, field

from otelgpu.errors import OtelgpuError

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

MAX_CONNECTIONS: Final = 32
MAX_HEAD_BYTES: Final = 8192
CONNECTION_SECONDS: Final = 5.0
"""How long a peer has for its request, and again for taking the answer."""
ANSWER_SECONDS: Final = 5.0
"""How long a scrape waits for the loop."""
FRESH_SECONDS: Final = 1.0
"""Metrics that are not older are good enough: who asks more often costs the loop nothing."""

_BACKLOG: Final = 1024  # a full one has who connects wait for a second
_LOOPBACK: Final = "127.0.0.1"
_END: Final = b"\r\n\r\n"
_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/1\.([01])")
_PLAIN: Final = "text/plain; charset=utf-8"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}


class Health(Protocol):
    """What probes ask; called from the server's thread."""

    def not_live(self) -> list[str]:
        """Why this program should be started anew; empty: it need not be."""

    def not_ready(self) -> list[str]:
        """Why it does not do its work at present; empty: it does."""

    def conditions(self) -> list[str]:
        """What is to be known of one that does, a line each."""


class AddressError(OtelgpuError):
    """Nothing can be served at an address."""


def parse_address(text: str) -> tuple[str, int]:
    """``PORT``, ``:PORT``, ``HOST:PORT`` or ``[IPV6]:PORT``; loopback without a host. Raises :class:`AddressError`."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535 or (":" in host and host[0] != "["):
        raise AddressError(f"health_address {text!r} is no address", "write PORT, HOST:PORT or [IPV6]:PORT")
    return host.removeprefix("[").removesuffix("]") or _LOOPBACK, int(port)


class _Peer(Struct):
    sock: socket.socket
    deadline: float
    received: bytearray = field(default_factory=bytearray)
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    ignored: int = 0  # bytes that came after the request
    head_only: bool = False
    answered: bool = False
    waits: bool = False  # for metrics


class HealthServer:
    """Serves from :meth:`start` to :meth:`close`. ``render`` turns metrics into Prometheus text."""

    def __init__(
        self, address: str, health: Health, render: Callable[[MetricsData], tuple[str, bytes]]
    ) -> None:
        """Binds ``address``. Raises :class:`AddressError`."""
        self._health, self._render = health, render
        self._listener = _listen(address)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._peers: dict[int, _Peer] = {}  # by descriptor, the oldest first
        self._latest: tuple[float, MetricsData] | None = None  # when it was read; written by the loop
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="otelgpu-health", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def is_asked(self) -> bool:
        """Whether somebody waits for metrics; for the loop, which is then to :meth:`answer`."""
        try:
            return os.eventfd_read(self.fd) > 0
        except BlockingIOError:
            return False

    def answer(self, data: MetricsData) -> None:
        """The metrics as of now; for the loop."""
        self._latest = time.monotonic(), data
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Serve no more; idempotent."""
        if self._closing:
            return
        self._closing = True
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join(1.0)
        for peer in list(self._peers.values()):
            self._drop(peer)
        self._selector.close()
        self._listener.close()
        os.close(self._wake)
        os.close(self.fd)

    # -- the server's thread ----------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(self._patience()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fd == self._wake:
                    os.eventfd_read(self._wake)
                    self._answer_scrapes()
                elif (peer := self._peers.get(key.fd)) is not None:
                    self._go_on(peer)
            self._end_late()

    def _patience(self) -> float | None:
        if not self._peers:
            return None
        return max(min(peer.deadline for peer in self._peers.values()) - time.monotonic(), 0)

    def _accept(self) -> None:
        for _ in range(MAX_CONNECTIONS):
            try:
                sock, _address = self._listener.accept()
            except OSError:  # none is left, it gave up meanwhile, or there is no descriptor for it
                return
            sock.setblocking(False)
            while len(self._peers) >= MAX_CONNECTIONS:
                self._drop(next(iter(self._peers.values())))
            peer = self._peers[sock.fileno()] = _Peer(sock, time.monotonic() + CONNECTION_SECONDS)
            self._selector.register(sock, selectors.EVENT_READ)
            self._go_on(peer)  # most have sent their request by now, and need not fear for their place

    def _go_on(self, peer: _Peer) -> None:
        try:
            if peer.unsent:
                self._send(peer)
            else:
                self._receive(peer)
        except BlockingIOError:
            return
        except OSError:
            self._drop(peer)

    def _receive(self, peer: _Peer) -> None:
        read = peer.sock.recv(MAX_HEAD_BYTES)
        if not read:
            self._drop(peer)
        elif peer.answered or peer.waits:  # what comes after the head is nobody's
            peer.ignored += len(read)
            if peer.ignored > MAX_HEAD_BYTES:
                self._drop(peer)
        else:
            peer.received += read
            if _END in peer.received:
                self._request(peer, bytes(peer.received.partition(_END)[0]))
            elif len(peer.received) >= MAX_HEAD_BYTES:
                self._respond(peer, 431, _PLAIN, b"the request is too long\n")

    def _request(self, peer: _Peer, head: bytes) -> None:
        line, *fields = head.split(b"\r\n")
        found = _REQUEST_LINE.fullmatch(line)
        if found is None:
            other = re.fullmatch(rb"\S+ \S+ HTTP/[0-9.]+", line) is not None
            self._respond(peer, 505 if other else 400, _PLAIN, b"not HTTP/1.1\n")
            return
        method, target, version = found.groups()
        peer.head_only = method == b"HEAD"
        hosts = sum(each.lower().startswith(b"host:") for each in fields)
        if hosts != 1 and version == b"1":
            self._respond(peer, 400, _PLAIN, b"a request has one Host\n")
        elif method not in (b"GET", b"HEAD"):
            self._respond(peer, 405, _PLAIN, b"only GET and HEAD\n")
        else:
            self._route(peer, re.sub(rb"(?i)\Ahttps?://[^/?]*", b"", target).partition(b"?")[0])

    def _route(self, peer: _Peer, path: bytes) -> None:
        match path:
            case b"/healthz":
                self._report(peer, self._health.not_live())
            case b"/readyz":
                self._report(peer, self._health.not_ready())
            case b"/metrics":
                peer.waits = True
                peer.deadline = time.monotonic() + ANSWER_SECONDS
                if self._latest is not None and time.monotonic() - self._latest[0] < FRESH_SECONDS:
                    self._answer_scrapes()
                else:
                    os.eventfd_write(self.fd, 1)
            case _:
                self._respond(peer, 404, _PLAIN, b"there are /healthz, /readyz and /metrics\n")

    def _report(self, peer: _Peer, reasons: list[str]) -> None:
        if reasons:
            reported = json.dumps({"status": "unavailable", "reasons": reasons}).encode() + b"\n"
            self._respond(peer, 503, "application/json", reported)
        else:
            self._respond(peer, 200, _PLAIN, "\n".join(["ok", *self._health.conditions()]).encode())

    def _answer_scrapes(self) -> None:
        waiting = [peer for peer in self._peers.values() if peer.waits]
        if waiting and self._latest is not None:
            kind, body = self._render(self._latest[1])
            for peer in waiting:
                self._respond(peer, 200, kind, body)

    def _respond(self, peer: _Peer, status: int, kind: str, body: bytes) -> None:
        peer.answered, peer.waits = True, False
        peer.deadline = time.monotonic() + CONNECTION_SECONDS
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
            + ("Allow: GET, HEAD\r\n" if status == 405 else "")
            + "\r\n"
        ).encode()
        peer.unsent = memoryview(head if peer.head_only else head + body)
        self._selector.modify(peer.sock, selectors.EVENT_WRITE)
        self._go_on(peer)

    def _send(self, peer: _Peer) -> None:
        while peer.unsent:
            peer.unsent = peer.unsent[peer.sock.send(peer.unsent) :]
        # To close with input unread would take the answer back: the peer is to close first.
        peer.sock.shutdown(socket.SHUT_WR)
        self._selector.modify(peer.sock, selectors.EVENT_READ)

    def _end_late(self) -> None:
        now = time.monotonic()
        for peer in [each for each in self._peers.values() if each.deadline <= now]:
            if peer.waits:
                self._respond(peer, 503, _PLAIN, b"the rings are not being drained: see /healthz\n")
            elif not peer.answered and peer.received:
                self._respond(peer, 408, _PLAIN, b"the request did not come in time\n")
            else:
                self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        self._peers.pop(peer.sock.fileno(), None)
        try:
            self._selector.unregister(peer.sock)
        except (KeyError, ValueError):
            pass  # it was dropped before
        peer.sock.close()


def _listen(address: str) -> socket.socket:
    host, port = parse_address(address)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise AddressError(
            f"cannot serve health_address {address}: {error.strerror or error}",
            "give another port, or end what listens there",
        ) from error
    return listener
