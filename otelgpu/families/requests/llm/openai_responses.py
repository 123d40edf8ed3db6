"""OpenAI's ``/v1/responses``.

Shapes: https://platform.openai.com/docs/api-reference/responses and …/responses-streaming. A stream's
events name their ``type``: ``response.created`` has the id and the model, every ``….delta`` a part of the
answer (text, reasoning, tool arguments, refusal), and ``response.completed``, ``.incomplete`` or
``.failed`` the usage. There is no finish reason: the reason for being incomplete is given, else the status.
"""

from __future__ import annotations

import msgspec

from otelgpu.families.requests.llm.api import Api, error_type, filled
from otelgpu.families.requests.llm.facts import Facts
from otelgpu.families.requests.llm.search import Search

_OVER = frozenset(("response.completed", "response.incomplete", "response.failed"))


class _Request(msgspec.Struct):
    model: str | None = None
    input: msgspec.Raw = msgspec.Raw()
    stream: bool | None = None
    max_output_tokens: int | None = None


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _ReasoningTokens(msgspec.Struct):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    """``usage`` of a response, here and in the realtime API (where the details' name is singular)."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _CachedTokens | None = None
    input_token_details: _CachedTokens | None = None
    output_tokens_details: _ReasoningTokens | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Input tokens that came from a cache."""
        details = self.input_tokens_details or self.input_token_details
        return details.cached_tokens if details is not None else None

    @property
    def reasoning_tokens(self) -> int | None:
        """Output tokens that were not shown."""
        details = self.output_tokens_details
        return details.reasoning_tokens if details is not None else None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Error(msgspec.Struct):
    code: str | None = None


class _Response(msgspec.Struct):
    object: str | None = None
    id: str | None = None
    model: str | None = None
    status: str | None = None
    usage: Usage | None = None
    incomplete_details: _Incomplete | None = None
    error: msgspec.Raw = msgspec.Raw()
    output: msgspec.Raw = msgspec.Raw()


class _Event(msgspec.Struct):
    type: str = ""
    delta: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()
    code: str | None = None
    error: msgspec.Raw = msgspec.Raw()


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_error = msgspec.json.Decoder(_Error).decode


class Responses(Api):
    """``/v1/responses``."""

    provider = "openai"
    search = Search(input_tokens="input_tokens", output_tokens="output_tokens", finish="status")

    def request(self, facts: Facts, body: bytes) -> bool:
        """Read the model, the limit, and whether a stream is asked for."""
        request = _decode_request(body)
        if request.model is None or not filled(request.input):
            return False
        facts.asked(request.model, request.stream, request.max_output_tokens, None)
        if facts.capture is not None:
            facts.capture.asked(request.input)
        return True

    def response(self, facts: Facts, body: bytes) -> bool:
        """Read a whole response."""
        response = _decode_response(body)
        if response.object != "response":
            if filled(response.error):
                facts.failed(error_type(response.error))
            return False
        self._take(facts, response)
        if facts.capture is not None:
            facts.capture.answered(response.output)
        return True

    def event(self, facts: Facts, data: bytes, time_ns: int) -> bool:
        """Read one event."""
        event = _decode_event(data)
        if event.type.endswith(".delta"):
            if filled(event.delta):
                facts.content_at(time_ns)
                if facts.capture is not None:
                    facts.capture.answered(event.delta)
        elif event.type == "error" or filled(event.error):
            facts.failed(event.code or error_type(event.error))
        elif filled(event.response) and (event.type in _OVER or not facts.response_id):
            self._take(facts, _decode_response(event.response))
        return event.type.startswith("response.")

    @staticmethod
    def _take(facts: Facts, response: _Response) -> None:
        facts.named(response.id, response.model)
        usage = response.usage
        if usage is not None:
            facts.used(usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens)
        if response.incomplete_details is not None and response.incomplete_details.reason:
            facts.finished(response.incomplete_details.reason)
        elif response.status not in (None, "queued", "in_progress"):
            facts.finished(response.status)
        if filled(response.error):
            facts.failed(_decode_error(response.error).code)
