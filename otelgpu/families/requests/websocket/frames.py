r"""Finds messages in the WebSocket frames of one direction of a connection, with gaps in them.

In: bytes in stream order, and the lengths of the gaps between them. Out: calls on a :class:`WebSocketMessageSink`.
It must not know what messages mean. Format: RFC 6455, section 5; RSV1 as RFC 7692 has it.

Invariant: what the sink is given depends only on the bytes and the gaps, not on how they were cut into calls.

Example: ``b"\x01\x03Hel"``, ``b"\x89\x00"`` (a ping) and ``b"\x80\x02lo"`` give one message, ``Hello``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Protocol

from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Call

MAX_MESSAGE_BYTES: Final = 1 << 20
_FIN, _RSV1, _RSV23, _OPCODE = 0x80, 0x40, 0x30, 0x0F
_MASKED, _LENGTH = 0x80, 0x7F
_MAX_CONTROL_BYTES: Final = 125


class InvalidFrame(Exception):
    """The bytes are no WebSocket frames. Never leaves this family."""


class Opcode(IntEnum):
    """What a frame is (RFC 6455, section 5.2)."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


_OPCODES: Final = frozenset(Opcode)


class Frame:
    """The head of a frame."""

    __slots__ = ("compressed", "final", "mask", "opcode", "size")

    def __init__(self, head: bytes) -> None:
        self.opcode = head[0] & _OPCODE
        self.final = bool(head[0] & _FIN)
        self.compressed = bool(head[0] & _RSV1)
        masked = bool(head[1] & _MASKED)
        self.mask = head[-4:] if masked else b""
        length = head[1] & _LENGTH
        end = len(head) - 4 * masked
        self.size = length if length < 126 else int.from_bytes(head[2:end], "big")

    @property
    def control(self) -> bool:
        """Whether it is no part of a message."""
        return self.opcode >= Opcode.CLOSE

    def valid(self, first: int, *, masked: bool, deflate: bool) -> bool:
        """Whether a peer may send it; ``first``: its first byte."""
        if first & _RSV23 or self.opcode not in _OPCODES or bool(self.mask) is not masked:
            return False
        if self.control:
            return self.final and not self.compressed and self.size <= _MAX_CONTROL_BYTES
        return self.size < 1 << 63 and (deflate or not self.compressed)


def head_size(head: bytes) -> int:
    """Bytes of the frame head that begins with these two."""
    length = head[1] & _LENGTH
    extended = 2 if length == 126 else 8 if length == 127 else 0
    return 2 + extended + (4 if head[1] & _MASKED else 0)


def are_frames(data: bytes, *, masked: bool, deflate: bool) -> bool:
    """Whether the bytes are whole frames from the first to the last one."""
    position = 0
    while position + 2 <= len(data):
        size = head_size(data[position : position + 2])
        head = data[position : position + size]
        if len(head) < size:
            return False
        frame = Frame(head)
        if not frame.valid(head[0], masked=masked, deflate=deflate):
            return False
        position += size + frame.size
    return position == len(data) > 0


class WebSocketMessageSink(Protocol):
    """Receives the messages of one direction."""

    def message(self, payload: bytes | None, *, compressed: bool, first: Call, offset: int) -> None:
        """Take a complete message, or None for one that was not kept; ``first`` brought its first byte."""

    def closed(self) -> None:
        """Note that this endpoint sends no more messages (a close frame)."""


class WebSocketFrameReader:
    """The state of one direction. ``feed`` and ``gap`` must be called in stream order.

    ``wanted``: whether messages are kept, within a bound and the output's budget, or only counted off.
    """

    __slots__ = (
        "_compressed",
        "_deflate",
        "_first",
        "_first_offset",
        "_frame",
        "_head",
        "_in_message",
        "_kept",
        "_left",
        "_masked",
        "_output",
        "_resumed",
        "_sink",
        "_skipping",
        "_wanted",
        "lost",
    )

    def __init__(
        self, sink: WebSocketMessageSink, output: ParserOutput, *, masked: bool, deflate: bool, wanted: bool
    ) -> None:
        self._sink = sink
        self._output = output
        self._masked = masked
        self._deflate = deflate
        self._wanted = wanted
        self._head = b""  # an unfinished one
        self._frame: Frame | None = None  # whose payload is being read
        self._left = 0  # bytes of it to come
        self._kept = bytearray()  # of the message under way
        self._in_message = False
        self._skipping = False
        self._compressed = False
        self._first: Call | None = None
        self._first_offset = 0
        self._resumed = False  # behind a gap: a message may go on of which the start was not seen
        self.lost = False  # framing is unknown

    def feed(self, call: Call, data: bytes, offset: int, *, fresh: bool) -> None:
        """Read the next bytes; ``fresh``: the first of a call. Raises InvalidFrame."""
        if self.lost:
            if not (fresh and are_frames(data, masked=self._masked, deflate=self._deflate)):
                self._output.count("resync_bytes_skipped", len(data))
                return
            self.lost = False
            self._resumed = True
        position, end = 0, len(data)
        while position < end:
            frame = self._frame
            if frame is None:
                position = self._read_head(call, data, position, offset)
                continue
            stop = min(end, position + self._left)
            if not frame.control:
                self._keep(frame, data[position:stop])
            self._left -= stop - position
            position = stop
            if not self._left:
                self._end_frame(frame)

    def gap(self, size: int) -> None:
        """Skip bytes that were not captured."""
        if self.lost:
            return
        frame = self._frame
        within = min(size, self._left) if frame is not None else 0
        if frame is not None:
            if not frame.control:
                self._skip()
            self._left -= within
            if not self._left:
                self._end_frame(frame)
        if size > within:
            self.lost = True
            self._head = b""
            self._frame = None
            if self._in_message:
                self._skip()
                self._end_message()

    def drop(self) -> None:
        """Give back the memory of what is unfinished."""
        self._output.release(len(self._kept))
        self._kept = bytearray()

    def _read_head(self, call: Call, data: bytes, position: int, offset: int) -> int:
        begun = len(self._head)
        head = self._head + data[position : position + 14 - begun]
        if not begun and not self._in_message:
            self._first, self._first_offset = call, offset + position
        size = head_size(head) if len(head) >= 2 else 2
        if len(head) < size:
            self._head = head
            return len(data)
        head = head[:size]
        frame = Frame(head)
        if not frame.valid(head[0], masked=self._masked, deflate=self._deflate):
            raise InvalidFrame
        self._head = b""
        if not frame.control:
            self._begin(frame)
        self._frame = frame
        self._left = frame.size
        if not frame.size:
            self._end_frame(frame)
        return position + size - begun

    def _begin(self, frame: Frame) -> None:
        if self._in_message:
            if frame.opcode != Opcode.CONTINUATION:
                raise InvalidFrame
            return
        continues = frame.opcode == Opcode.CONTINUATION
        if continues and not self._resumed:
            raise InvalidFrame
        self._resumed = False
        self._in_message = True
        self._compressed = frame.compressed
        self._skipping = continues or not self._wanted

    def _keep(self, frame: Frame, data: bytes) -> None:
        if self._skipping:
            return
        if len(self._kept) + self._left > MAX_MESSAGE_BYTES or not self._output.reserve(len(data)):
            self._skip()
            return
        if frame.mask:
            data = unmask(data, frame.mask, frame.size - self._left)
        self._kept += data

    def _skip(self) -> None:
        self._skipping = True
        self.drop()

    def _end_frame(self, frame: Frame) -> None:
        self._frame = None
        if frame.opcode == Opcode.CLOSE:
            self._sink.closed()
        elif frame.final and not frame.control:
            self._end_message()

    def _end_message(self) -> None:
        payload = None if self._skipping else bytes(self._kept)
        self.drop()
        self._in_message = False
        if self._first is not None:
            self._sink.message(
                payload, compressed=self._compressed, first=self._first, offset=self._first_offset
            )


def unmask(data: bytes, mask: bytes, done: int) -> bytes:
    """Return payload bytes in clear, of which ``done`` came before them (RFC 6455, section 5.3)."""
    turned = mask[done % 4 :] + mask[: done % 4]
    size = len(data)
    key = int.from_bytes((turned * (size // 4 + 1))[:size], "little")
    return (int.from_bytes(data, "little") ^ key).to_bytes(size, "little")
