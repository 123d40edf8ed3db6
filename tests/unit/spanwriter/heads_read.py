"""What a reader of HTTP/1 finds in bytes, with the compiled library and by llhttp alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from otelgpu.families.requests.http1.framing import (
    HEADERS,
    Framing,
    Head,
    Http1MessageReader,
    InvalidHttp,
    State,
    request_framing,
    response_framing,
)
from otelgpu.spanwriter.heads import BODY, BODY_CHUNKED, BODY_UNKNOWN, PERSISTS, HeadReader

NAMES = tuple(sorted(HEADERS))


class Found(NamedTuple):
    """Calls of a sink, and how it ended."""

    calls: Sequence[object]
    state: State | None  # None: it is not HTTP/1
    offset: int


class _NeverPlain:
    names = NAMES

    def read(self, data: bytes, position: int, is_request: bool) -> None:
        return None


class _Sink:
    def __init__(self, *, is_request: bool) -> None:
        self.calls: list[object] = []
        self.is_request = is_request
        self.reader = Http1MessageReader(request=is_request, sink=self, wanted=frozenset(NAMES))

    def started(self) -> None:
        self.calls.append(self.reader.message_start)

    def head(self, head: Head) -> Framing:
        values = {name: list(head.values[name]) for name in sorted(head.values)}
        self.calls.append((head.method, head.target, head.version, head.status, head.complete, values))
        self.reader.wants_body = True
        return request_framing(head) if self.is_request else response_framing(head, "GET")

    def body(self, data: bytes) -> None:
        self.calls.append(data)

    def body_gap(self, size: int) -> None:
        raise AssertionError("nothing is missing")

    def ended(self, size: int) -> None:
        self.calls.append(("ended", size))


def read(data: bytes, *, is_request: bool, compiled: bool) -> Found:
    """All of the bytes at once; ``compiled``: plain heads by the library."""
    sink = _Sink(is_request=is_request)
    if not compiled:
        sink.reader._plain = _NeverPlain()  # type: ignore[assignment]
    try:
        sink.reader.feed(data)
    except InvalidHttp:
        return Found(sink.calls, None, 0)
    return Found(sink.calls, sink.reader.state, sink.reader.offset)


def reads_alike(data: bytes, *, is_request: bool) -> bool:
    """Whether both find the same."""
    ours, theirs = (read(data, is_request=is_request, compiled=compiled) for compiled in (True, False))
    return ours == theirs and is_framed_alike(data, is_request=is_request)


def is_framed_alike(data: bytes, *, is_request: bool) -> bool:
    """Whether the library says of a plain head's body and connection what the fields of the head say."""
    reader = _Sink(is_request=is_request).reader
    found = HeadReader(NAMES).read(data, 0, is_request)
    if found is None or (head := reader.plain_head(data, 0, found[1])) is None:
        return True
    lengths = [min(int(length), 2**31 - 1) for length in head.all(b"content-length")]
    framing = BODY_CHUNKED if head.all(b"transfer-encoding") else [*lengths, BODY_UNKNOWN][0]
    return found[1][BODY] == framing and (head.keep_alive or not found[1][PERSISTS])
