"""Anthropic's ``/v1/messages``, as Anthropic and vLLM serve it.

Shapes: https://docs.anthropic.com/en/api/messages and …/messages-streaming. A stream's events name their
``type``: ``message_start`` has the id, the model and the input tokens, ``content_block_delta`` a part of
the answer (text, thinking, tool input), ``message_delta`` the stop reason and the output tokens so far,
``error`` an error. Tokens read from or written to the prompt cache come beside ``input_tokens`` and are
added: semantic conventions count them in.
"""

from __future__ import annotations

import msgspec

from otelgpu.families.requests.llm.api import Api, ErrorBody, filled
from otelgpu.families.requests.llm.facts import Facts, count
from otelgpu.families.requests.llm.search import Search


class _Request(msgspec.Struct):
    model: str | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    messages: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Message(msgspec.Struct):
    """A whole response, and what ``message_start`` carries."""

    type: str | None = None
    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None
    content: msgspec.Raw = msgspec.Raw()
    error: ErrorBody | None = None


class _Delta(msgspec.Struct):
    text: msgspec.Raw = msgspec.Raw()
    thinking: msgspec.Raw = msgspec.Raw()
    partial_json: msgspec.Raw = msgspec.Raw()
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    delta: _Delta | None = None
    message: _Message | None = None
    usage: _Usage | None = None
    error: ErrorBody | None = None


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_event = msgspec.json.Decoder(_Event).decode


class Messages(Api):
    """``/v1/messages``."""

    provider = "anthropic"
    search = Search(finish="stop_reason", input_tokens="input_tokens", output_tokens="output_tokens")

    def request(self, facts: Facts, body: bytes) -> bool:
        """Read the model, the limit, and whether a stream is asked for; only the last is optional."""
        request = _decode_request(body)
        if request.model is None or request.max_tokens is None or not filled(request.messages):
            return False
        facts.asked(request.model, request.stream, request.max_tokens, None)
        if facts.capture is not None:
            facts.capture.asked(request.system, request.messages)
        return True

    def response(self, facts: Facts, body: bytes) -> bool:
        """Read a whole message."""
        message = _decode_message(body)
        if message.error is not None:
            facts.failed(message.error.type)
        if message.type != "message" or message.usage is None:
            return False
        self._take(facts, message)
        if facts.capture is not None:
            facts.capture.answered(message.content)
        return True

    def event(self, facts: Facts, data: bytes, time_ns: int) -> bool:
        """Read one event."""
        event = _decode_event(data)
        kind = event.type
        if kind == "content_block_delta" and event.delta is not None:
            delta = event.delta
            if filled(delta.text) or filled(delta.thinking) or filled(delta.partial_json):
                facts.content_at(time_ns)
            if facts.capture is not None:
                facts.capture.answered(delta.thinking, delta.text, delta.partial_json)
        elif kind == "message_start" and event.message is not None:
            self._take(facts, event.message)
        elif kind == "message_delta":
            facts.finished(event.delta.stop_reason if event.delta is not None else None)
            if event.usage is not None:
                _take_usage(facts, event.usage)
        elif kind == "error" and event.error is not None:
            facts.failed(event.error.type)
        return kind.startswith(("message_", "content_block_"))

    @staticmethod
    def _take(facts: Facts, message: _Message) -> None:
        facts.named(message.id, message.model)
        facts.finished(message.stop_reason)
        if message.usage is not None:
            _take_usage(facts, message.usage)


def _take_usage(facts: Facts, usage: _Usage) -> None:
    cached = count(usage.cache_read_input_tokens)
    reported = count(usage.input_tokens)
    if reported is not None:
        reported += (cached or 0) + (count(usage.cache_creation_input_tokens) or 0)
    facts.used(reported, usage.output_tokens, cached)
