r"""What makes an HTTP/2 exchange a gRPC call: messages in DATA, a status in the trailers.

In: content types, bodies with gaps, trailers. Out: whole messages to their readers, and an
:class:`~otelgpu.model.exchange.Rpc`. It must not know about frames, threads or connections.

Format: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md. A message is a flag byte (1: compressed),
four bytes of length and the message. Which statuses are errors at which end:
https://opentelemetry.io/docs/specs/semconv/rpc/grpc/.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import Struct

from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.model.exchange import Role, Rpc

#: Larger messages are counted and not read.
MAX_MESSAGE_BYTES = 262144
MAX_METHOD = 256
_PREFIX = Struct(">BI")
_PREFIX_BYTES = _PREFIX.size

_CONTENT_TYPE = re.compile(rb"application/grpc(?:[+;].*)?", re.IGNORECASE | re.DOTALL)
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_NS = {
    b"H": 3600_000_000_000,
    b"M": 60_000_000_000,
    b"S": 1_000_000_000,
    b"m": 1_000_000,
    b"u": 1000,
    b"n": 1,
}
#: A client counts its deadline from a little before it writes the request,
_TIMEOUT_TOLERANCE_NS = 5_000_000
#: and gRPC's C core rounds what is left of it up, to some 100 or 1000 steps of a unit (timeout_encoding.cc).
_TIMEOUT_STEPS = 100

_STATUSES = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
_SERVER_ERRORS = frozenset(
    ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
)
#: PROTOCOL-HTTP2.md, "Errors": what a library reports for a stream that was reset. Others: INTERNAL.
_RESET_STATUSES = {
    "REFUSED_STREAM": "UNAVAILABLE",
    "CANCEL": "CANCELLED",
    "ENHANCE_YOUR_CALM": "RESOURCE_EXHAUSTED",
    "INADEQUATE_SECURITY": "PERMISSION_DENIED",
}

#: Takes a whole message and the time it is known by.
MessageTaker = Callable[[bytes, int], None]


def is_grpc(content_type: bytes) -> bool:
    """Whether a body of this type is gRPC's: not gRPC-Web, which frames its trailers."""
    return _CONTENT_TYPE.fullmatch(content_type) is not None


class GrpcMessageReader:
    """Counts the messages of one direction of a call, and assembles those that ``take`` wants.

    ``missed`` is called for each time that some of those were not captured, or could not be kept or read.
    """

    __slots__ = (
        "_head",
        "_kept",
        "_left",
        "_lost",
        "_output",
        "_reserved",
        "_whole",
        "count",
        "encoded",
        "missed",
        "take",
    )

    def __init__(self, output: ParserOutput) -> None:
        self._output = output
        self.take: MessageTaker | None = None
        self.missed: Callable[[], None] | None = None
        self.count = 0  # complete messages, read or not
        self.encoded = False  # a compressed message that was wanted came
        self._head = b""  # of a prefix that is cut
        self._left = 0  # bytes of the message under way that are still to come
        self._kept = bytearray()
        self._whole = False  # whether the message under way is being kept
        self._reserved = 0
        self._lost = False

    @property
    def known_count(self) -> int | None:
        """How many complete messages came; None where some may have been missed."""
        return None if self._lost else self.count

    @property
    def framed(self) -> bool:
        """Whether the body so far is whole messages and nothing else."""
        return self.count > 0 and not (self._lost or self._left or self._head)

    def feed(self, data: bytes, time_ns: int) -> None:
        """Take the next bytes of the body."""
        if self._lost:
            return
        position = 0
        if self._left:
            position = self._more(data, time_ns)
        elif self._head:
            data = self._head + data
            self._head = b""
        end = len(data)
        while end - position >= _PREFIX_BYTES:
            flag, size = _PREFIX.unpack_from(data, position)
            if flag > 1:
                self._lose()
                return
            position += _PREFIX_BYTES
            wanted = self.take is not None and not self._unreadable(flag, size)
            if not wanted:
                self._miss()
            if size <= end - position:
                self.count += 1
                if wanted and self.take is not None:
                    self.take(data[position : position + size], time_ns)
                position += size
                continue
            self._whole = wanted
            self._left = size
            self._keep(data[position:])
            return
        self._head = data[position:]

    def gap(self, size: int) -> None:
        """Note ``size`` missing bytes of the body; 0: an unknown number."""
        if self._lost:
            return
        if not 0 < size <= self._left:
            self._lose()
            return
        self._miss()
        self._left -= size
        self.drop()
        if not self._left:
            self.count += 1

    def drop(self) -> None:
        """Give back what is kept of the message under way."""
        self._output.release(self._reserved)
        self._reserved = 0
        self._kept = bytearray()
        self._whole = False

    def _more(self, data: bytes, time_ns: int) -> int:
        left = self._left
        if len(data) < left:
            self._keep(data)
            return len(data)
        self._left = 0
        self.count += 1
        if self._whole and self.take is not None:
            message = bytes(self._kept) + data[:left]
            self.drop()
            self.take(message, time_ns)
        return left

    def _keep(self, data: bytes) -> None:
        self._left -= len(data)
        if not self._whole:
            return
        if self._output.reserve(len(data)):
            self._reserved += len(data)
            self._kept += data
        else:
            self._output.count("grpc_messages_not_kept")
            self.drop()
            self._miss()

    def _miss(self) -> None:
        if self.missed is not None:
            self.missed()

    def _unreadable(self, flag: int, size: int) -> bool:
        if flag:
            if not self.encoded:
                self.encoded = True
                self._output.count("encoded_body")
            return True
        if size > MAX_MESSAGE_BYTES:
            self._output.count("grpc_messages_not_kept")
            return True
        return False

    def _lose(self) -> None:
        """Where the next message begins is unknown, and how many came."""
        self._output.count("grpc_framing_lost")
        self._miss()
        self.drop()
        self._lost = True
        self._left = 0


class OpenRpc:
    """One gRPC call in the making.

    ``certain``: a content type or a status shows that it is one, or else, where those fields are unknown, both
    bodies are whole messages and the response has trailers.
    """

    __slots__ = ("_status", "_timeout_ns", "certain", "method", "requests", "responses")

    def __init__(self, output: ParserOutput, path: str, timeout: bytes, *, certain: bool) -> None:
        self.method = path.removeprefix("/")[:MAX_METHOD]
        self.certain = certain
        self.requests = GrpcMessageReader(output)
        self.responses = GrpcMessageReader(output)
        self._status = ""
        match = _TIMEOUT.fullmatch(timeout)
        self._timeout_ns = int(match[1]) * _UNIT_NS[match[2]] if match else 0

    def trailers(self, status: bytes) -> None:
        """Take ``grpc-status`` of the trailers, which may be unknown; of a response's head as well."""
        if self.requests.framed and self.responses.framed:
            self.certain = True
        if status.isdigit() and len(status) < 4:
            self.certain = True
            number = int(status)
            self._status = _STATUSES[number] if number < len(_STATUSES) else str(number)

    def reset(self, code: str, after_ns: int) -> None:
        """Take the name of the error code that ended the stream, unless a status was seen.

        Whoever notices first that the deadline has passed cancels: gRPC's C core at the server too.
        """
        if self._status:
            return
        tolerance_ns = _TIMEOUT_TOLERANCE_NS + self._timeout_ns // _TIMEOUT_STEPS
        if code == "CANCEL" and 0 < self._timeout_ns <= after_ns + tolerance_ns:
            self._status = "DEADLINE_EXCEEDED"
        else:
            self._status = _RESET_STATUSES.get(code, "INTERNAL")

    def finish(self, role: Role) -> Rpc | None:
        """Return what is known, and drop what is held; None when nothing showed that it is gRPC."""
        self.requests.drop()
        self.responses.drop()
        if not self.certain:
            return None
        status = self._status
        failed = status in _SERVER_ERRORS if role is not Role.CLIENT else status not in ("", "OK")
        return Rpc(
            system="grpc",
            method=self.method,
            status=status,
            requests=self.requests.known_count,
            responses=self.responses.known_count,
            failed=failed,
        )
