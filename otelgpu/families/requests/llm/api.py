"""The contract of an LLM API: how the bodies of its requests and responses are read.

In: whole JSON bodies, events of a stream, parts of bodies with gaps. Out: values in
:class:`~otelgpu.families.requests.llm.facts.Facts`. An API has no state and raises only MALFORMED, on bytes
that are not what it promises. Every method returns whether the bytes can only be this API's, whatever it took
from them: paths like ``/generate`` exist in many applications, and only bytes that fit make an exchange on
such a path a generation.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from otelgpu.families.requests.llm.facts import Facts
from otelgpu.families.requests.llm.search import Search

#: What msgspec raises on bytes that are not the JSON asked for (bad UTF-8 is a ValueError).
MALFORMED: Final = (ValueError, RecursionError)

_EMPTY: Final = frozenset((b"", b"null", b'""', b"[]", b"{}"))
LONGEST_EMPTY: Final = 4
"""Bytes of the longest JSON value that is empty: what is longer is filled."""


class MessageHead(Protocol):
    """The head of an HTTP message, as readers use it."""

    @property
    def status(self) -> int:
        """The status code of a response."""

    def last(self, name: bytes) -> bytes:
        """Return the last value of a header by its lower-case name, or nothing."""

    def all(self, name: bytes) -> list[bytes]:
        """Return all values of a header by its lower-case name."""


class Api:
    """One API. Subclasses read its bodies; methods that they do not define are not needed for it."""

    provider = ""  # gen_ai.provider.name, unless the response shows another flavour
    search = Search()
    says_why_it_ends = False  # whether each stream that was not broken off has a finish reason, or ``[DONE]``

    def request(self, facts: Facts, body: bytes) -> bool:
        """Read a whole request body."""
        return False

    def response(self, facts: Facts, body: bytes) -> bool:
        """Read a whole response body."""
        return False

    def event(self, facts: Facts, data: bytes, time_ns: int) -> bool:
        """Read an event of a streamed response that was moved at a time."""
        return False

    def is_line(self, text: bytes) -> bool:
        """Whether a response of unknown type that begins so is a stream of lines, and not one JSON value."""
        return False


def filled(raw: msgspec.Raw) -> bool:
    """Whether a JSON value is there and is not null, nor an empty string, list or object."""
    return len(raw) > LONGEST_EMPTY or bytes(raw) not in _EMPTY


class ErrorBody(msgspec.Struct):
    """``{"error": {"type": …}}``, the shape that OpenAI, Anthropic and vLLM share."""

    type: str | None = None


_decode_error = msgspec.json.Decoder(ErrorBody).decode


def error_type(raw: msgspec.Raw) -> str | None:
    """Return the type that an error object names; None where it has none or is another thing."""
    try:
        return _decode_error(raw).type
    except MALFORMED:
        return None
