"""Text of a prompt and its answer, for users who asked for it (``ParserOutput.capture_content``); bounded.

In: JSON values as an API sent them. Out: :class:`~otelgpu.model.exchange.Content`, at most MAX_BYTES of
UTF-8 each way. Texts of several choices are appended in the order in which they came. The opt-in is
OpenTelemetry's ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT``: NO_CONTENT (or unset), SPAN_ONLY,
EVENT_ONLY, SPAN_AND_EVENT (https://pypi.org/project/opentelemetry-util-genai/; older instrumentations:
true, false).
"""

from __future__ import annotations

from typing import Final

import msgspec

from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.model.exchange import Content

MAX_BYTES: Final = 65536

_decode_string = msgspec.json.Decoder(str).decode


class Capture:
    """The text of one exchange under the output's budget; :meth:`drop` gives it back."""

    __slots__ = ("_output", "_request", "_reserved", "_response")

    def __init__(self, output: ParserOutput) -> None:
        self._output = output
        self._reserved = 0
        self._request = bytearray()
        self._response = bytearray()

    def asked(self, *values: msgspec.Raw | bytes) -> None:
        """Take the request's messages or prompt: the text of a JSON string, any other value as JSON."""
        for value in values:
            self._add(self._request, _text(bytes(value)))

    def answered(self, *values: msgspec.Raw | bytes) -> None:
        """Take a part of the answer, in the same way."""
        for value in values:
            self._add(self._response, _text(bytes(value)))

    def answered_so_far(self, value: msgspec.Raw) -> None:
        """Take the whole answer so far, of an API that repeats it, or else what is new of it."""
        text = _text(bytes(value))
        if text.startswith(bytes(self._response)):
            self._response.clear()
        self._add(self._response, text)

    def asked_text(self, text: bytes) -> None:
        """Take a prompt that is UTF-8 as it stands."""
        self._add(self._request, text)

    def answered_text(self, text: bytes) -> None:
        """Take a part of the answer that is UTF-8 as it stands."""
        self._add(self._response, text)

    def _add(self, text: bytearray, more: bytes) -> None:
        more = more[: MAX_BYTES - len(text)]
        grown = len(text) + len(more) + len(self._request if text is self._response else self._response)
        if grown > self._reserved:
            if not self._output.reserve(grown - self._reserved):
                return
            self._reserved = grown
        text += more

    def content(self) -> Content:
        """Return what was taken, cut at whole characters."""
        return Content(
            request=self._request.decode("utf-8", "ignore"), response=self._response.decode("utf-8", "ignore")
        )

    def drop(self) -> None:
        """Forget the text."""
        self._output.release(self._reserved)
        self._reserved = 0
        self._request = bytearray()
        self._response = bytearray()


def _text(value: bytes) -> bytes:
    if not value or value == b"null":
        return b""
    return _decode_string(value).encode("utf-8", "ignore") if value.startswith(b'"') else value
