"""Ollama's own API: ``/api/chat``, ``/api/generate``, ``/api/embed``.

Shapes: https://docs.ollama.com/api and …/api/usage. A stream, the default, is newline-delimited JSON; its
last object has ``done``, ``done_reason``, ``prompt_eval_count``, ``eval_count`` and durations in
nanoseconds. ``prompt_eval_duration`` is the prefill, ``eval_duration`` the decoding. ``load_duration``
(loading the model) is no queue and is left out.
"""

from __future__ import annotations

import msgspec

from otelgpu.families.requests.llm.api import MALFORMED, Api, filled
from otelgpu.families.requests.llm.facts import Facts
from otelgpu.families.requests.llm.search import Search

_NS_PER_S = 1_000_000_000


class _Options(msgspec.Struct):
    num_predict: int | None = None


class _Request(msgspec.Struct):
    model: str | None = None
    prompt: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    stream: bool | None = None
    options: _Options | None = None


class _Message(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw()
    thinking: msgspec.Raw = msgspec.Raw()
    tool_calls: msgspec.Raw = msgspec.Raw()


class _Part(msgspec.Struct):
    """A whole response, or one line of a stream."""

    model: str | None = None
    message: _Message | None = None
    response: msgspec.Raw = msgspec.Raw()
    thinking: msgspec.Raw = msgspec.Raw()
    embeddings: msgspec.Raw = msgspec.Raw()
    done: bool | None = None
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    error: msgspec.Raw = msgspec.Raw()


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_part = msgspec.json.Decoder(_Part).decode


class Ollama(Api):
    """One of the endpoints."""

    provider = "ollama"
    search = Search(finish="done_reason", input_tokens="prompt_eval_count", output_tokens="eval_count")

    def request(self, facts: Facts, body: bytes) -> bool:
        """Read the model, the limit, and whether a stream is asked for: it is, unless ``stream`` is false."""
        request = _decode_request(body)
        if request.model is None:
            return False
        stream = request.stream is not False and facts.operation != "embeddings"
        limit = request.options.num_predict if request.options is not None else None
        facts.asked(request.model, stream, limit, None)
        if facts.capture is not None:
            facts.capture.asked(request.messages, request.prompt, request.input)
        return True

    def response(self, facts: Facts, body: bytes) -> bool:
        """Read a whole answer."""
        return self._take(facts, _decode_part(body), 0)

    def event(self, facts: Facts, data: bytes, time_ns: int) -> bool:
        """Read one line of a stream."""
        return self._take(facts, _decode_part(data), time_ns)

    def is_line(self, text: bytes) -> bool:
        """Whether it begins with a line after which others come: one that is not ``done``."""
        line, end, _ = text.partition(b"\n")
        try:
            return bool(end) and _decode_part(line).done is False
        except MALFORMED:
            return False

    @staticmethod
    def _take(facts: Facts, part: _Part, time_ns: int) -> bool:
        if filled(part.error):
            facts.failed(None)
        if part.model is None or (part.done is None and not part.embeddings):
            return False
        facts.named(None, part.model)
        message = part.message or _NO_MESSAGE
        texts = (message.thinking, message.content, part.thinking, part.response, message.tool_calls)
        if time_ns and any(map(filled, texts)):
            facts.content_at(time_ns)
        if facts.capture is not None:
            facts.capture.answered(*texts)
        if part.done:
            facts.finished(part.done_reason)
        if part.done is not False:
            facts.used(part.prompt_eval_count, part.eval_count)
            facts.took(prefill_s=_s(part.prompt_eval_duration), decode_s=_s(part.eval_duration))
        return True


_NO_MESSAGE = _Message()


def _s(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / _NS_PER_S
