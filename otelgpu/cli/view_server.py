"""The viewer's page on loopback, with what its file gets. For one person on this machine.

Only who knows the address gets an answer: it has a random token. A name that resolves to 127.0.0.1 (DNS
rebinding) does not help a foreign page, for the Host header has to be ours.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec

LOOPBACK: Final = "127.0.0.1"

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


class ViewServer(ThreadingHTTPServer):
    """Serves ``page`` and, under it, ``data?at=PLACE``: what ``answer`` gives for the place."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(
        self,
        port: int,
        page: str,
        policy: str,
        answer: Callable[[str], dict[str, Any]],
        seen: Callable[[], None] = lambda: None,
    ) -> None:
        """Listens on loopback; port 0 is any that is free. Calls ``seen`` when it gave the page. Raises OSError."""
        super().__init__((LOOPBACK, port), _Handler)
        self.page = page.encode()
        self.policy = policy
        self.answer = answer
        self.seen = seen
        self.token = secrets.token_urlsafe(18)
        self.hosts = {f"{LOOPBACK}:{self.server_port}", f"localhost:{self.server_port}"}

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    timeout = 30
    server_version = "otelgpu"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        _, token, *rest = address.path.split("/")
        if self.headers.get("Host") not in self.server.hosts:
            self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", b"not this host's name\n")
        elif not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"not found\n")
        elif rest == [""]:
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
            self.server.seen()
        elif rest == ["data"]:
            place = parse_qs(address.query).get("at", [""])[0]
            self._send(HTTPStatus.OK, "application/json", msgspec.json.encode(self.server.answer(place)))
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"not found\n")

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        policy = f"{self.server.policy}; frame-ancestors 'none'"
        for name, value in {**_HEADERS, "Content-Security-Policy": policy}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal is for the person."""
