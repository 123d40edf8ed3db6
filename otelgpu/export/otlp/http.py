"""OTLP over HTTP/1.1 with protobuf bodies: payload bytes in, one outcome out. Retrying is the sender's.

Source: https://opentelemetry.io/docs/specs/otlp/#otlphttp. ``http.client`` is used rather than requests:
it costs 10 MiB less memory, uses no ``.netrc``, proxy or redirect behind the user's back, and lets one
deadline bound connect, send and every read. The connection is kept alive between payloads.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from otelgpu import __version__
from otelgpu.export.base import Outcome, Payload, Refused, Retry, Signal
from otelgpu.export.otlp.compression import Compression, compressor
from otelgpu.export.otlp.responses import partial_success, short, status_message
from otelgpu.export.otlp.settings import OtlpSettings
from otelgpu.export.otlp.tls import tls_context

USER_AGENT = f"OTel-OTLP-Exporter-otelgpu/{__version__}"
MAX_RESPONSE_BYTES = 64 * 1024

_RETRYABLE = frozenset({429, 502, 503, 504})


class HttpTransport:
    """A kept-alive connection to one URL."""

    def __init__(self, settings: OtlpSettings) -> None:
        """Connects lazily. Raises :class:`ExportError` for unusable certificates, and what is not installed."""
        url = urlsplit(settings.endpoint)
        self._host, self._port = url.hostname or "", url.port
        self._path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._signal: Signal = settings.signal
        self._compress = compressor(settings.compression)
        self._headers = _headers(settings)
        self._tls = tls_context(settings) if settings.secure else None
        self._connection: HTTPConnection | None = None
        self._deadline = 0.0

    def send(self, payload: Payload, timeout_s: float) -> Outcome:
        """See :class:`~otelgpu.export.base.Transport`."""
        deadline = time.monotonic() + timeout_s
        body = self._compress(payload.body)
        reused = self._connection is not None
        try:
            return self._exchange(body, deadline)
        except (OSError, HTTPException) as error:
            self.close()
            # The server may close an idle connection just as it is used again: that costs no attempt.
            if not (reused and isinstance(error, ConnectionError)):
                return Retry(None, _reason(error))
        try:
            return self._exchange(body, deadline)
        except (OSError, HTTPException) as error:
            self.close()
            return Retry(None, _reason(error))

    def close(self) -> None:
        """See :class:`~otelgpu.export.base.Transport`."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.sock is not None:
            try:
                connection.sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits in send()
            except OSError:
                pass
        connection.close()

    def _exchange(self, body: bytes, deadline: float) -> Outcome:
        self._deadline = deadline
        connection = self._connection
        if connection is None:
            connection = self._connection = self._connect()
        if connection.sock is not None:
            connection.sock.settimeout(_left(deadline))
        connection.request("POST", self._path, body=body, headers=self._headers)
        response = connection.getresponse()
        answer = response.read(MAX_RESPONSE_BYTES)
        if not response.isclosed() or response.will_close:
            self.close()
        return self._outcome(response, answer)

    def _connect(self) -> HTTPConnection:
        timeout_s = _left(self._deadline)
        connection: HTTPConnection
        if self._tls is not None:
            connection = HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._tls)
        else:
            connection = HTTPConnection(self._host, self._port, timeout=timeout_s)

        def response(sock: socket.socket, *rest: Any, **options: Any) -> HTTPResponse:
            return HTTPResponse(_Readable(sock, lambda: self._deadline), *rest, **options)  # type: ignore[arg-type]

        connection.response_class = response  # type: ignore[assignment]
        connection.connect()
        return connection

    def _outcome(self, response: HTTPResponse, answer: bytes) -> Outcome:
        status = response.status
        if 200 <= status < 300:
            return partial_success(self._signal, answer)
        reason = short(f"HTTP {status} {status_message(answer) or response.reason}")
        if status in _RETRYABLE:
            return Retry(retry_after_s(response.headers.get("Retry-After"), time.time()), reason)
        if 300 <= status < 400:
            return Refused(
                short(f"{reason}: redirects to {response.headers.get('Location', '?')} are not followed")
            )
        return Refused(reason)


class _Readable:
    """The part of a socket that ``HTTPResponse`` uses; each read has only what is left of the deadline."""

    def __init__(self, sock: socket.socket, deadline: Callable[[], float]) -> None:
        self._sock = sock
        self._deadline = deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        """A buffered reader; it keeps the socket open, as ``socket.makefile`` does."""
        return io.BufferedReader(_Reader(self._sock, self._deadline))


class _Reader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: Callable[[], float]) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_left(self._deadline()))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _left(deadline: float) -> float:
    """Seconds to the deadline; raises :class:`TimeoutError` when there are none, as a socket would."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def retry_after_s(value: str | None, unix_s: float) -> float | None:
    """``Retry-After`` (RFC 9110, 10.2.3): seconds, or an HTTP date seen from ``unix_s``; None if neither."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - unix_s)
    except (ValueError, TypeError, OverflowError):
        return None


def _headers(settings: OtlpSettings) -> dict[str, str]:
    headers = {"Content-Type": "application/x-protobuf", "User-Agent": USER_AGENT, **dict(settings.headers)}
    if settings.compression is not Compression.NONE:
        headers["Content-Encoding"] = settings.compression
    return headers


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return short(text or type(error).__name__)
