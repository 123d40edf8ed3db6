r"""Finds ZMTP 3 messages in the bytes of one direction of a connection, with gaps in them.

In: bytes in stream order, the lengths of the gaps between them, the calls that moved them. Out: messages, each
the bodies of its frames, of which only what an engine's reader can use is kept. It must not know their content.

Format: https://rfc.zeromq.org/spec/23/ (3.0) and https://rfc.zeromq.org/spec/37/ (3.1): a greeting of 64 bytes,
then frames ``flags, size, body``. A gap within a body is survived, since its size is known; one over a frame's
head loses the framing, until a call begins as an engine's message does.

Example: ``b"\x01\x01\x00" b"\x00\x03abc"`` is one message of the bodies ``b"\x00"`` and ``b"abc"``.
Invariant: what is reported depends only on the bytes and the gaps, unless framing was lost, not on the cuts.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable

from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Call

GREETING_BYTES = 64
SIGNATURE_BYTES = 10
MAX_HEAD_BYTES = 1 << 20
TAIL_BYTES = 4096  # of a large call, the kernel captures as many at its end

_MORE, _LONG, _COMMAND = 1, 2, 4
_MAX_FRAME_BYTES = 1 << 40
_KEPT_FRAMES = 2
_MECHANISM = slice(12, 32)
_PAYLOAD_STARTS = frozenset((0x80, *range(0x90, 0xA0), 0xDC, 0xDD))  # a pickle's, and MessagePack arrays'

_REQUEST_TYPE = rb"\x01\x01\x00"
_FRAME_HEAD = rb"(?:[\0\x01].|[\x02\x03]\0{3}.{5})"
_TEXT_HEAD = rb"(?:[\xa1-\xbf]|\xd9.|\xda..)"
_MESSAGE_START = re.compile(
    b"|".join(
        (
            # ADD: an array of a request's fields that begins with its id.
            _REQUEST_TYPE + _FRAME_HEAD + rb"(?:[\x99-\x9f]|\xdc\0.)" + _TEXT_HEAD + rb"[!-~]{2}",
            # A step's outputs: [engine_index, [[request_id, …
            _FRAME_HEAD
            + rb"[\x92-\x9f][\x00-\x7f](?:[\x91-\x9f]|\xdc..)[\x92-\x9f]"
            + _TEXT_HEAD
            + rb"[!-~]{2}",
            # The same of a step that gave no outputs: its statistics, a map.
            _FRAME_HEAD + rb"[\x92-\x9f][\x00-\x7f]\x90(?:[\x81-\x8f]|\xde..)\xb0num_running_reqs",
            # A message with its class' name.
            _FRAME_HEAD + rb"(?:[\x94-\x9f]|\xdc\0.)[\xb0-\xbf](?:Batch|Tokenized)[A-Z]",
            # A heart beat.
            rb"\x04.\x04P[IO]NG",
        )
    ),
    re.DOTALL,
)


class State(enum.Enum):
    """Where a direction is."""

    GREETING = enum.auto()
    FRAMES = enum.auto()
    LOST = enum.auto()  # framing unknown
    STOPPED = enum.auto()  # nothing more is read


def starts_message(data: bytes) -> bool:
    """Whether these bytes are surely the beginning of an engine's message, or of a heartbeat."""
    return _MESSAGE_START.match(data) is not None


def could_be_signature(data: bytes) -> bool:
    """Whether these bytes, up to ten, begin as libzmq's greeting: ff, a length for ZMTP 1, 7f."""
    return b"\xff".startswith(data[:1]) and not any(data[1:8]) and b"\x7f".startswith(data[9:SIGNATURE_BYTES])


class Body:
    """What was captured of a frame's body: ``head`` without a gap from its first byte, ``tail`` up to its last."""

    __slots__ = ("_open", "_output", "_tail_kept", "head", "size", "tail")

    def __init__(self, size: int, output: ParserOutput) -> None:
        self.size = size
        self.head = bytearray()
        self.tail = bytearray()
        self._open = True
        self._tail_kept = False
        self._output = output

    @property
    def complete(self) -> bool:
        """Whether ``head`` is all of it."""
        return len(self.head) == self.size

    def add(self, data: bytes) -> None:
        """Take its next bytes."""
        if self._open:
            missing = MAX_HEAD_BYTES - len(self.head)
            fitting, data = data[:missing], data[missing:]
            if self._output.reserve(len(fitting)):
                self.head += fitting
                if not data:
                    return
            self._open = False
        self._tail_kept = self._tail_kept or self._output.reserve(TAIL_BYTES)
        if self._tail_kept:
            self.tail += data[-TAIL_BYTES:]
            del self.tail[:-TAIL_BYTES]

    def gap(self) -> None:
        """Note a gap."""
        self._open = False
        self.tail.clear()

    def drop(self) -> None:
        """Give back what it holds of the budget. It must not be used any more."""
        self._output.release(len(self.head) + self._tail_kept * TAIL_BYTES)


Sink = Callable[[list[Body], Call, Call], None]
"""Takes a message: its first frames' bodies, the call that moved its first byte and the one that moved its last."""


class ZmtpFrameReader:
    """The state of one direction. ``feed`` and ``gap`` must be called in stream order."""

    __slots__ = (
        "_bodies",
        "_call",
        "_first",
        "_flags",
        "_frame",
        "_head",
        "_left",
        "_output",
        "_sink",
        "_skipped",
        "state",
    )

    def __init__(self, output: ParserOutput, sink: Sink, *, late: bool) -> None:
        self._output = output
        self._sink = sink
        self.state = State.LOST if late else State.GREETING
        self._skipped = "late_bytes_skipped" if late else "resync_bytes_skipped"
        self._head = bytearray()  # of a greeting or of a frame, while it is incomplete
        self._call: Call | None = None
        self._first: Call | None = None  # that of the message's first byte
        self._bodies: list[Body] = []
        self._frame = 0  # of the message, from 0
        self._flags = 0
        self._left = 0  # bytes of the frame's body

    @property
    def busy(self) -> bool:
        """Whether a message is under way."""
        return self._first is not None

    def feed(self, call: Call, data: bytes) -> None:
        """Take the next bytes."""
        begins, self._call = call is not self._call, call
        if self.state is State.LOST:
            if begins and len(data) >= SIGNATURE_BYTES and could_be_signature(data):
                self.state = State.GREETING
            elif begins and starts_message(data):
                self.state = State.FRAMES
            else:
                self._output.count(self._skipped, len(data))
                return
            self._skipped = "resync_bytes_skipped"
        at = 0
        while at < len(data) and self.state in (State.GREETING, State.FRAMES):
            if self.state is State.GREETING:
                at = self._greet(data, at)
            elif self._left:
                at = self._fill(call, data, at)
            else:
                at = self._open_frame(call, data, at)

    def gap(self, call: Call, size: int) -> None:
        """Note a gap."""
        self._call = call
        if self.state is State.FRAMES and 0 < size <= self._left:
            self._left -= size
            if self._body is not None:
                self._body.gap()
            self._finish_if_whole(call)
        elif self.state in (State.GREETING, State.FRAMES):
            self._output.count("capture_gaps")
            self._lose()

    def stop(self) -> None:
        """Forget the message that is under way; nothing more is read."""
        if self.busy and self.state is State.FRAMES:
            self._output.count("zmtp_messages_cut")
        self._forget()
        self.state = State.STOPPED

    def _greet(self, data: bytes, at: int) -> int:
        taken = data[at : at + GREETING_BYTES - len(self._head)]
        self._head += taken
        if not could_be_signature(bytes(self._head)):
            self._output.count("zmtp_malformed")
            self._lose()
        elif len(self._head) > SIGNATURE_BYTES and self._head[SIGNATURE_BYTES] < 3:
            self._output.count("zmtp_version_unsupported")
            self.stop()
        elif len(self._head) == GREETING_BYTES:
            null = self._head[_MECHANISM].rstrip(b"\0") == b"NULL"
            self._head.clear()
            self.state = State.FRAMES
            if not null:
                self._output.count("zmtp_mechanism_unsupported")
                self.stop()
        return at + len(taken)

    def _open_frame(self, call: Call, data: bytes, at: int) -> int:
        if self._first is None:
            self._first = call
        if not self._head:
            self._head.append(data[at])
            at += 1
        flags = self._head[0]
        if flags > 7 or flags & (_MORE | _COMMAND) == _MORE | _COMMAND or (flags & _COMMAND and self._frame):
            self._malformed()
            return len(data)
        width = 9 if flags & _LONG else 2
        taken = data[at : at + width - len(self._head)]
        self._head += taken
        if len(self._head) == width:
            size = int.from_bytes(self._head[1:], "big")
            self._head.clear()
            if size > _MAX_FRAME_BYTES:
                self._malformed()
                return len(data)
            self._flags, self._left = flags, size
            if self._frame < _KEPT_FRAMES:
                self._bodies.append(Body(size, self._output))
            self._finish_if_whole(call)
        return at + len(taken)

    @property
    def _body(self) -> Body | None:
        return self._bodies[self._frame] if self._frame < len(self._bodies) else None

    def _fill(self, call: Call, data: bytes, at: int) -> int:
        taken = data[at : at + self._left]
        self._left -= len(taken)
        body = self._body
        if body is not None:
            if self._wanted(body, taken[0]):
                body.add(taken)
            else:
                body.gap()
        self._finish_if_whole(call)
        return at + len(taken)

    def _wanted(self, body: Body, first: int) -> bool:
        """Whether a frame's content is worth its memory: what may be an engine's, or follows a request's type."""
        if self._frame:
            return self._bodies[0].head == b"\0"
        return bool(body.head) or body.size == 1 or first in _PAYLOAD_STARTS

    def _finish_if_whole(self, call: Call) -> None:
        if self._left:
            return
        if self._flags & _MORE:
            self._frame += 1
            return
        if not self._flags & _COMMAND and self._first is not None:
            self._sink(self._bodies, self._first, call)
        self._forget()

    def _malformed(self) -> None:
        self._output.count("zmtp_malformed")
        self._lose()

    def _lose(self) -> None:
        self._forget()
        self.state = State.LOST

    def _forget(self) -> None:
        for body in self._bodies:
            body.drop()
        self._bodies = []
        self._head.clear()
        self._first = None
        self._frame = self._flags = self._left = 0
