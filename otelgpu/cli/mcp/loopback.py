"""A server over HTTP, on loopback only, for who has its token.

Every request needs ``Authorization: Bearer TOKEN``. A name that resolves to 127.0.0.1 (DNS rebinding) does not help a
foreign page: the Host header has to be ours, and so has an Origin, where there is one.
"""

from __future__ import annotations

import hmac
import socket
from typing import Any, Final

import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from otelgpu.errors import OtelgpuError

PATH: Final = "/mcp"
LARGEST_BODY: Final = 1 << 20
"""Bytes of a request."""
MOST_SESSIONS: Final = 16
MOST_CONNECTIONS: Final = 32
_IDLE_S: Final = 600.0
_LOOPBACK: Final = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}


class TokenRequired:
    """Lets through what has the token; of the rest nothing reaches ``app``."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http" and not self._is_allowed(scope):
            refused = PlainTextResponse(
                "a token is needed\n", 401, {"WWW-Authenticate": 'Bearer realm="otelgpu"'}
            )
            await refused(scope, receive, send)
        elif scope["type"] in ("http", "lifespan"):
            await self._app(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        given = [value for key, value in scope["headers"] if key == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)


def listen(host: str, port: int) -> socket.socket:
    """A socket on loopback; port 0: any that is free. Raises :class:`OtelgpuError`."""
    listener = socket.socket(_LOOPBACK[host], socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(MOST_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise OtelgpuError(
            f"cannot listen on {host} port {port}: {error.strerror}", hint="give another port, or 0 for any"
        ) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """Its host and port, as a Host header has them."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def serve_loopback(server: Server[Any], listener: socket.socket, token: str) -> None:
    """Until SIGINT or SIGTERM."""
    port = listener.getsockname()[1]
    hosts = [address_of(listener), f"localhost:{port}"]
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        max_request_body_size=LARGEST_BODY,
        max_sessions=MOST_SESSIONS,
        session_idle_timeout=_IDLE_S,
        transport_security=TransportSecuritySettings(
            enable_dns_rebinding_protection=True,
            allowed_hosts=hosts,
            allowed_origins=[f"http://{host}" for host in hosts],
        ),
    )
    settings = uvicorn.Config(
        TokenRequired(app, token),
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
    )
    await uvicorn.Server(settings).serve(sockets=[listener])
