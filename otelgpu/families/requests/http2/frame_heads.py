r"""Heads of HTTP/2 frames (RFC 9113, sections 4.1 and 6): their types, and which bytes may be some.

In: bytes, or the fields of a head. Out: whether they are what senders usually write. Pure.

Example: ``\0\0\2 \0 \1 \0\0\0\1`` is DATA of two bytes that end stream 1.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20
PRIORITY_BYTES: Final = 5  # of HEADERS with that flag

MAX_STREAM: Final = 0x7FFFFFFF
HEAD: Final = Struct(">HBBBI")  # length in two parts, type, flags, stream

ON_STREAM: Final = frozenset((DATA, HEADERS, PRIORITY, RST_STREAM, PUSH_PROMISE, CONTINUATION))
ON_CONNECTION: Final = frozenset((SETTINGS, PING, GOAWAY))
LENGTHS: Final = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}  # of the types that have only one
_FLAGS: Final = {  # that a frame type defines
    DATA: 0x09,
    HEADERS: 0x2D,
    PRIORITY: 0,
    RST_STREAM: 0,
    SETTINGS: 0x01,
    PUSH_PROMISE: 0x0C,
    PING: 0x01,
    GOAWAY: 0,
    WINDOW_UPDATE: 0,
    CONTINUATION: 0x04,
}
_ALTSVC, _ORIGIN, _PRIORITY_UPDATE = 0x0A, 0x0C, 0x10  # RFC 7838, 8336, 9218
_EXTENSIONS: Final = frozenset((_ALTSVC, _ORIGIN, _PRIORITY_UPDATE))
#: RFC 9113, section 6.5.2; few raise it, and none without a large body.
USUAL_FRAME_BYTES: Final = 16384
_LARGE_FRAME_BYTES: Final = 1 << 20
_GOAWAY_BYTES: Final = 8


def starts_preface(data: bytes) -> bool:
    """Whether ``data`` surely begins with the preface, or is its beginning."""
    return data.startswith(PREFACE[:HEAD_BYTES]) and PREFACE.startswith(data[: len(PREFACE)])


def starts_frames(data: bytes, *, from_client: bool) -> bool:
    """Whether ``data`` surely begins with frames; strict, but true of what senders usually write.

    Every head up to the end of ``data`` must be one of a known type, with flags that the type defines, on a
    stream as the type asks, and of a usual length. Other bytes pass that by chance once in some billions.
    """
    if from_client and starts_preface(data):
        return True
    position, end, block = 0, len(data), 0
    if end < HEAD_BYTES:
        return False
    while end - position >= HEAD_BYTES:
        high, low, kind, flags, stream = HEAD.unpack_from(data, position)
        length = high << 8 | low
        if not plausible(length, kind, flags, stream, from_client=from_client, block=block):
            return False
        block = block_after(kind, flags, stream)
        position += HEAD_BYTES + length
    return True


def block_after(kind: int, flags: int, stream: int) -> int:
    """The stream of the header block that goes on in the next frame; 0: none does."""
    return stream if kind in (HEADERS, PUSH_PROMISE, CONTINUATION) and not flags & END_HEADERS else 0


def plausible(length: int, kind: int, flags: int, stream: int, *, from_client: bool, block: int = 0) -> bool:
    """Whether a head is what senders usually write; ``block``: what :func:`block_after` gives for the one before."""
    if block or kind == CONTINUATION:
        return (
            kind == CONTINUATION
            and stream == block
            and not flags & ~END_HEADERS
            and length <= USUAL_FRAME_BYTES
        )
    if kind in _EXTENSIONS:
        return stream <= MAX_STREAM and length <= USUAL_FRAME_BYTES
    known = _FLAGS.get(kind)
    if known is None or flags & ~known or stream > MAX_STREAM:
        return False
    if kind in ON_CONNECTION:
        if stream:
            return False
    elif kind != WINDOW_UPDATE and not stream:
        return False
    if kind in (DATA, HEADERS) and not stream & 1 and from_client:
        return False
    if kind == SETTINGS:
        return not length % 6 and not (flags & ACK and length) and length <= USUAL_FRAME_BYTES
    if kind == PUSH_PROMISE and from_client:
        return False
    if kind == DATA:
        return length <= _LARGE_FRAME_BYTES and (length > 0 or flags == END_STREAM)
    if kind == GOAWAY and length < _GOAWAY_BYTES:
        return False
    return 0 < length <= USUAL_FRAME_BYTES and LENGTHS.get(kind, length) == length
