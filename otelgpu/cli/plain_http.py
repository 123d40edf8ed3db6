"""One request to one server, and what it answers: bounded in time and bytes, whatever it does; no redirect is followed.

The request is one of HTTP/1.0 (RFC 1945), so that the answer ends with its length or with the connection.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from contextlib import ExitStack
from typing import Final

from msgspec import Struct

_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
_LENGTH: Final = re.compile(rb"^content-length:[ \t]*(\d{1,18})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_END: Final = b"\r\n\r\n"
_PIECE_BYTES: Final = 1 << 16


class Answer(Struct, frozen=True):
    """``is_cut``: the body is shorter than was said, or there is more than is read of it."""

    status: int
    body: bytes
    is_cut: bool


def answer_to(
    request: bytes,
    address: tuple[str, int],
    *,
    seconds: float,
    most_bytes: int,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """``seconds`` are for connection and answer together, ``most_bytes`` for the answer with its headers.

    ``tls``: whom to trust; the request is sent when it has shown that it is the host of the address.

    Raises OSError, with words in ``strerror`` or as its text: nobody is there, time is over, it is no HTTP; of TLS
    ssl.SSLError.
    """
    try:
        content, head, is_broken = _content(request, address, seconds, most_bytes, tls)
    except TimeoutError as error:
        raise TimeoutError(f"no answer within {seconds:g} s") from error
    status = _STATUS.match(content)
    if status is None:
        raise OSError("it does not speak HTTP")
    length = _LENGTH.search(content, 0, head)
    body = bytes(memoryview(content)[head + len(_END) :])
    is_cut = is_broken or len(content) >= most_bytes if length is None else len(body) < int(length[1])
    return Answer(int(status[1]), body, is_cut=is_cut)


def _content(
    request: bytes, address: tuple[str, int], seconds: float, most_bytes: int, tls: ssl.SSLContext | None
) -> tuple[bytearray, int, bool]:
    """All that comes in time, where its headers end, and whether TLS broke off without its end. Raises OSError."""
    until_s = time.monotonic() + seconds
    found, wanted, head, is_broken = bytearray(), most_bytes, -1, False
    unsent: OSError | None = None
    with ExitStack() as ends:
        connection = ends.enter_context(socket.create_connection(address, timeout=seconds))
        if tls is not None:
            connection.settimeout(_left_s(until_s))
            secured = tls.wrap_socket(connection, server_hostname=address[0], suppress_ragged_eofs=False)
            connection = ends.enter_context(secured)
        connection.settimeout(_left_s(until_s))
        try:
            connection.sendall(request)
        except (ConnectionError, ssl.SSLEOFError) as error:
            unsent = error  # why stands there to be read: of TLS 1.3, what is wrong with who asks
        while len(found) < wanted:
            connection.settimeout(_left_s(until_s))
            try:
                part = connection.recv(min(_PIECE_BYTES, wanted - len(found)))
            except ssl.SSLEOFError:  # whoever stands between can do that, and cannot make the end of TLS
                part, is_broken = b"", True
            if not part:
                break
            looked_at = max(len(found) - len(_END), 0)
            found += part
            if head < 0:
                head = found.find(_END, looked_at)
                length = _LENGTH.search(found, 0, head) if head >= 0 else None
                if length is not None:
                    wanted = min(wanted, head + len(_END) + int(length[1]))
    if unsent is not None and not found:
        raise unsent
    return found, head if head >= 0 else len(found), is_broken


def _left_s(until_s: float) -> float:
    """Raises TimeoutError where nothing is left."""
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
