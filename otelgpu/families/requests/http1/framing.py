r"""Finds HTTP/1 messages in the bytes of one direction of a connection, with gaps in them.

In: bytes in stream order, and the lengths of the gaps between them. Out: calls on a :class:`Http1MessageSink`.
It must not know about exchanges, threads or times.

llhttp (httptools) parses heads; plain ones that come whole, which most do, are read by the compiled library
(:mod:`otelgpu.spanwriter.heads`), to the same values. Bodies are framed here (RFC 9112, sections 6 and 7): the kernel
captures only the beginning and end of a large body, llhttp cannot be moved forward over bytes that it is not given, and
it reports no position; a body with gaps costs the same as one without. A test compares both on whole bodies.

Invariant: ``offset`` is the stream offset of the next byte, and what the sink is given depends only on the
bytes and the gaps, never on how they were cut into calls (apart from how body bytes are grouped).

Example: ``b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nab"`` then a gap of 5, then ``b"yzGET"`` gives
started, head, body(ab), body_gap(5), body(yz), ended(47), started.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Container, Sequence
from functools import cache
from typing import Final, Protocol

import httptools

from otelgpu.spanwriter.heads import BODY, BODY_UNKNOWN, FIRST, MINOR, STATUS, HeadReader

MAX_HEAD_BYTES = 65536
_MAX_LINE_BYTES = 4096
_MAX_VALUE_BYTES = 1024
_MAX_VALUES = 32

#: Names of the headers that this family reads, whoever sends them.
HEADERS = frozenset(
    (
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"sec-websocket-extensions",
        b"traceparent",
        b"tracestate",
        b"transfer-encoding",
        b"upgrade",
        b"user-agent",
    )
)
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r?\n")
REQUEST_START = re.compile(
    rb"(?:GET|HEAD|POST|PUT|DELETE|CONNECT|OPTIONS|TRACE|PATCH|QUERY|PROPFIND|REPORT) [/*A-Za-z0-9\[]"
)
RESPONSE_START = re.compile(rb"HTTP/1\.[01] [1-9][0-9][0-9](?:[ \r]|$)")
_VERSIONS = ("1.0", "1.1")
_BODILESS: Final = (204, 304)
#: The methods of heads that are plain. All others are llhttp's.
_PLAIN_METHODS: Final = {
    name.encode(): name for name in ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
}


class InvalidHttp(Exception):
    """The bytes are not HTTP/1. Never leaves this family."""


class State(enum.IntEnum):
    """Where in a message a direction is."""

    IDLE = 0
    HEAD = 1
    LENGTH = 2
    CHUNK_SIZE = 3
    CHUNK_DATA = 4
    CHUNK_END = 5
    TRAILER = 6
    UNTIL_CLOSE = 7
    LOST = 8  # framing unknown; only a start of a message can be recognised
    STOPPED = 9  # nothing more is read


# By names of this module: to look up a member of an enumeration takes Python 3.11 a quarter of a microsecond.
(
    _IDLE,
    _HEAD,
    _LENGTH,
    _CHUNK_SIZE,
    _CHUNK_DATA,
    _CHUNK_END,
    _TRAILER,
    _UNTIL_CLOSE,
    _LOST,
    _STOPPED,
) = State


class Head:
    """The head of one message: what llhttp reports, bounded. The callbacks are httptools' protocol."""

    __slots__ = ("_wanted", "complete", "method", "status", "target", "values", "version")

    def __init__(self, wanted: Container[bytes] = HEADERS) -> None:
        self._wanted = wanted
        self.complete = False
        self.method = ""
        self.status = 0
        self.target = b""
        self.version = ""
        self.values: dict[bytes, list[bytes]] = {}

    def on_url(self, part: bytes) -> None:
        """Collect the request target, which may come in several parts."""
        self.target += part

    def on_header(self, name: bytes, value: bytes | None) -> None:
        """Keep the few headers that are used; all others, secrets among them, are dropped here."""
        key = name.lower()
        if key in self._wanted:
            values = self.values.setdefault(key, [])
            if len(values) < _MAX_VALUES:
                values.append((value or b"")[:_MAX_VALUE_BYTES].strip(b" \t"))

    def on_headers_complete(self) -> None:
        """Note that the blank line was seen."""
        self.complete = True

    def last(self, name: bytes) -> bytes:
        """Return the last value of a header, or nothing."""
        values = self.values.get(name)
        return values[-1] if values else b""

    def all(self, name: bytes) -> list[bytes]:
        """Return all values of a header."""
        return self.values.get(name, [])

    @property
    def keep_alive(self) -> bool:
        """Whether the sender lets the connection go on after this message (RFC 9112, section 9.3)."""
        values = self.all(b"connection")
        if not values:
            return self.version == "1.1"
        tokens = b",".join(values).lower().replace(b" ", b"").split(b",")
        return b"close" not in tokens and (self.version == "1.1" or b"keep-alive" in tokens)


Framing = tuple[State, int]  # the state after the head (IDLE: no body), and the body's length where known
NO_BODY: Framing = (_IDLE, 0)


def request_framing(head: Head) -> Framing:
    """Return how the body of a request is delimited (RFC 9112, section 6.3)."""
    if head.all(b"transfer-encoding"):
        return _CHUNK_SIZE, 0
    return _length_framing(head, NO_BODY)


def response_framing(head: Head, method: str) -> Framing:
    """Return how the body of a response to ``method`` is delimited (RFC 9112, section 6.3)."""
    status = head.status
    if status < 200 or status in _BODILESS or method == "HEAD" or (method == "CONNECT" and status < 300):
        return NO_BODY
    encodings = head.all(b"transfer-encoding")
    if encodings:
        chunked = encodings[-1].lower().rpartition(b",")[2].strip(b" \t") == b"chunked"
        return (_CHUNK_SIZE if chunked else _UNTIL_CLOSE), 0
    return _length_framing(head, (_UNTIL_CLOSE, 0))


def _length_framing(head: Head, without: Framing) -> Framing:
    values = head.all(b"content-length")
    if not values:
        return without
    text = values[-1]
    if not text.isdigit() or len(text) > 19:
        raise InvalidHttp("content-length")
    length = int(text)
    return (_LENGTH, length) if length else NO_BODY


class Http1MessageSink(Protocol):
    """Receives the messages of one direction."""

    def started(self) -> None:
        """Note that the first byte of a message was read."""

    def head(self, head: Head) -> Framing:
        """Take a complete head; return the framing of what follows."""

    def body(self, data: bytes) -> None:
        """Take body bytes, chunk framing removed; only while ``wants_body`` is set."""

    def body_gap(self, size: int) -> None:
        """Note that ``size`` body bytes were not captured."""

    def ended(self, size: int) -> None:
        """Note that the message is complete; ``size`` bytes on the socket, head included."""


@cache
def _plain_heads(wanted: frozenset[bytes]) -> HeadReader:
    return HeadReader(sorted(wanted))


class Http1MessageReader:
    """The state of one direction. ``feed`` and ``gap`` must be called in stream order.

    ``wanted``: names of the headers that its heads keep.
    """

    __slots__ = (
        "_carry",
        "_head",
        "_left",
        "_parser",
        "_plain",
        "_request",
        "_sink",
        "_tail",
        "_wanted",
        "message_start",
        "offset",
        "state",
        "wants_body",
    )

    def __init__(self, *, request: bool, sink: Http1MessageSink, wanted: frozenset[bytes] = HEADERS) -> None:
        self._wanted = wanted
        self._plain = _plain_heads(wanted)
        self.state = _IDLE
        self.offset = 0
        self.message_start = 0
        self.wants_body = False
        self._request = request
        self._sink = sink
        self._parser: httptools.HttpRequestParser | httptools.HttpResponseParser | None = None
        self._head: Head | None = None
        self._tail = b""  # the last three bytes of an unfinished head
        self._carry = b""  # an unfinished line of chunk framing
        self._left = 0  # body or chunk bytes to come; in a trailer, its bytes so far

    @property
    def in_message(self) -> bool:
        """Whether a message has started and its end is to come."""
        return _IDLE < self.state < _LOST

    @property
    def message_bytes(self) -> int:
        """Bytes since the first one of the last message that started."""
        return self.offset - self.message_start

    @property
    def partial_head(self) -> Head | None:
        """The head under way, with the method and version as far as they are known; None in a body."""
        head, parser = self._head, self._parser
        if head is not None and parser is not None:
            head.version = parser.get_http_version()
            if isinstance(parser, httptools.HttpRequestParser):
                head.method = parser.get_method().decode("ascii")
        return head

    def starts_message(self, data: bytes) -> bool:
        """Whether ``data`` looks like the first bytes of a message; used when framing is unknown."""
        if not self._request:
            return RESPONSE_START.match(data) is not None
        return REQUEST_START.match(data.lstrip(b"\r\n")) is not None

    def restart(self) -> None:
        """Expect a message next."""
        self._forget(_IDLE)

    def lose(self) -> None:
        """Framing is unknown from here on."""
        self._forget(_LOST)

    def stop(self) -> None:
        """Read nothing from here on."""
        self._forget(_STOPPED)

    def _forget(self, state: State) -> None:
        self.state = state
        self._parser = self._head = None
        self._tail = self._carry = b""
        self._left = 0

    def feed(self, data: bytes) -> None:
        """Read the next bytes. Raises InvalidHttp when they are not HTTP/1."""
        base = self.offset
        self.offset = base + len(data)
        if self._carry:
            base -= len(self._carry)
            data = self._carry + data
            self._carry = b""
        position, end = 0, len(data)
        while position < end:
            position = _STEPS[self.state](self, data, position, base)

    def take_chunk(self, data: bytes) -> bytes | None:
        """Read one whole chunk of a body that is wanted, and return what is in it.

        None: it is something else, and nothing was read; :meth:`feed` takes it.
        """
        if self.state is not _CHUNK_SIZE or self._carry or not self.wants_body:
            return None
        match = _CHUNK_LINE.match(data)
        if match is None or not (size := int(match[1], 16)):
            return None
        start = match.end()
        if start + size + 2 != len(data) or not data.endswith(b"\r\n"):
            return None
        self.offset += len(data)
        return data[start:-2]

    def whole_message(self, data: bytes, *, bodiless: bool = False) -> tuple[int, Sequence[int]] | None:
        """What :meth:`HeadReader.read` finds, if ``data`` is just one message whose head is plain; nothing is read.

        ``bodiless``: it is a response that has no body, whatever its head says.
        """
        if self.state is not _IDLE or (found := self._plain.read(data, 0, self._request)) is None:
            return None
        size, places = found
        body = places[BODY]
        if body == BODY_UNKNOWN and self._request:
            body = 0
        if bodiless or places[STATUS] in _BODILESS:
            body = 0
        return found if body >= 0 and size + body == len(data) else None

    def pass_message(self, size: int) -> int:
        """A whole message of that size was taken in place of :meth:`feed`; where it began."""
        self.message_start = start = self.offset
        self.offset = start + size
        self.wants_body = False
        return start

    def gap(self, size: int) -> bool:
        """Skip ``size`` bytes that were not captured; False when they cost the framing."""
        state, left = self.state, self._left
        if state >= _LOST:
            self.offset += size
            return True
        if state is _UNTIL_CLOSE:
            self.offset += size
            self._sink.body_gap(size)
            return True
        if state is _CHUNK_DATA and size <= left:
            self.offset += size
            self._left = left - size
            self._sink.body_gap(size)
            if size == left:
                self.state = _CHUNK_END
            return True
        if state is _LENGTH:
            within = min(size, left)
            self.offset += within
            self._left = left - within
            self._sink.body_gap(within)
            if within == left:
                self._end(self.offset)
            size -= within
        self.offset += size
        if self.state is _STOPPED or not size:
            return True
        self.lose()
        return False

    def _idle(self, data: bytes, position: int, base: int) -> int:
        end = len(data)
        if data[position] in b"\r\n":  # RFC 9112, section 2.2: empty lines before a message are ignored
            position = end - len(data[position:].lstrip(b"\r\n"))
            if position == end:
                return end
        self.message_start = base + position
        found = self._plain.read(data, position, self._request)
        if found is not None and (head := self.plain_head(data, position, found[1])) is not None:
            self.state = _HEAD
            self._sink.started()
            if self.state is _HEAD:  # else it reads nothing more
                position += found[0]
                self._head_complete(head, base + position)
            return position
        self._head = head = Head(self._wanted)
        parser = httptools.HttpRequestParser(head) if self._request else httptools.HttpResponseParser(head)
        # What the server accepted is a fact: be as lenient as servers are.
        parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_chunked_length=True, lenient_transfer_encoding=True
        )
        self._parser = parser
        self.state = _HEAD
        self._sink.started()
        return position

    def plain_head(self, data: bytes, position: int, places: Sequence[int]) -> Head | None:
        """A head that begins there, of what :meth:`HeadReader.read` found; None: of a method that is llhttp's."""
        head = Head(self._wanted)
        if self._request:
            method = _PLAIN_METHODS.get(data[position : places[0]])
            if method is None:
                return None
            head.method, head.target = method, data[places[1] : places[2]]
        else:
            head.status = places[STATUS]
        head.version = _VERSIONS[places[MINOR]]
        head.complete = True
        names, values = self._plain.names, head.values
        for at in range(FIRST, len(places), 3):
            name, value = names[places[at]], data[places[at + 1] : places[at + 2]]
            if name in values:
                values[name].append(value)
            else:
                values[name] = [value]
        return head

    def _read_head(self, data: bytes, position: int, base: int) -> int:
        head, parser, tail = self._head, self._parser, self._tail
        assert head is not None and parser is not None
        found = (tail + data[position:]).find(b"\r\n\r\n")
        stop = len(data) if found < 0 else position + found + 4 - len(tail)
        if base + stop - self.message_start > MAX_HEAD_BYTES:
            raise InvalidHttp("head too large")
        segment = data[position:stop]
        self._tail = (tail + segment)[-3:]
        try:
            parser.feed_data(segment)
        except httptools.HttpParserUpgrade:
            pass  # the response decides whether the connection is upgraded
        except httptools.HttpParserError as error:
            if not head.complete:  # else it stops behind a 101 that names no Upgrade
                raise InvalidHttp(str(error)) from None
        if head.complete != (found >= 0):
            raise InvalidHttp("head without a blank line")
        if head.complete:
            head.version = parser.get_http_version()
            if isinstance(parser, httptools.HttpRequestParser):
                head.method = parser.get_method().decode("ascii")
            else:
                head.status = parser.get_status_code()
            if head.version not in _VERSIONS or (not self._request and head.status < 100):
                raise InvalidHttp("version or status")
            self._head_complete(head, base + stop)
        return stop

    def _head_complete(self, head: Head, offset: int) -> None:
        self.wants_body = False
        state, left = self._sink.head(head)
        if state is _IDLE:
            self._end(offset)
        else:
            self._forget(state)
            self._left = left

    def _end(self, offset: int) -> None:
        self._forget(_IDLE)
        self._sink.ended(offset - self.message_start)

    def _read_body(self, data: bytes, position: int, base: int) -> int:
        stop = min(len(data), position + self._left)
        if self.wants_body:
            self._sink.body(data[position:stop])
        self._left -= stop - position
        if not self._left:
            if self.state is _CHUNK_DATA:
                self.state = _CHUNK_END
            else:
                self._end(base + stop)
        return stop

    def _read_chunk_size(self, data: bytes, position: int, base: int) -> int:
        match = _CHUNK_LINE.match(data, position)
        if match is None:
            return self._unfinished_line(data, position)
        size = int(match[1], 16)
        start = match.end()
        if size and data.startswith(b"\r\n", start + size):  # all of it is here: the usual case of a stream
            if self.wants_body:
                self._sink.body(data[start : start + size])
            return start + size + 2
        self._left = size
        self.state = _CHUNK_DATA if size else _TRAILER
        return start

    def _read_chunk_end(self, data: bytes, position: int, base: int) -> int:
        self.state = _CHUNK_SIZE
        if data.startswith(b"\r\n", position):
            return position + 2
        if data[position:] != b"\r":
            raise InvalidHttp("chunk")
        self.state = _CHUNK_END
        return self._unfinished_line(data, position)

    def _read_trailer(self, data: bytes, position: int, base: int) -> int:
        newline = data.find(b"\n", position)
        if newline < 0:
            return self._unfinished_line(data, position)
        stop = newline + 1
        self._left += stop - position
        if self._left > MAX_HEAD_BYTES:
            raise InvalidHttp("trailer too large")
        if data[position:stop] in (b"\r\n", b"\n"):
            self._end(base + stop)
        return stop

    def _unfinished_line(self, data: bytes, position: int) -> int:
        end = len(data)
        if end - position > _MAX_LINE_BYTES or data.find(b"\n", position) >= 0:
            raise InvalidHttp("chunk")
        self._carry = data[position:]
        return end

    def _read_until_close(self, data: bytes, position: int, base: int) -> int:
        if self.wants_body:
            self._sink.body(data[position:])
        return len(data)

    def _skip(self, data: bytes, position: int, base: int) -> int:
        return len(data)


_STEPS: dict[State, Callable[[Http1MessageReader, bytes, int, int], int]] = {
    _IDLE: Http1MessageReader._idle,
    _HEAD: Http1MessageReader._read_head,
    _LENGTH: Http1MessageReader._read_body,
    _CHUNK_SIZE: Http1MessageReader._read_chunk_size,
    _CHUNK_DATA: Http1MessageReader._read_body,
    _CHUNK_END: Http1MessageReader._read_chunk_end,
    _TRAILER: Http1MessageReader._read_trailer,
    _UNTIL_CLOSE: Http1MessageReader._read_until_close,
    _LOST: Http1MessageReader._skip,
    _STOPPED: Http1MessageReader._skip,
}
