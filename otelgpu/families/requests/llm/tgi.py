"""Hugging Face text-generation-inference: ``/generate``, ``/generate_stream`` and ``/``.

Shapes: https://huggingface.github.io/text-generation-inference (OpenAPI) and router/src/server.rs, lib.rs.
A response has ``generated_text`` and, where asked for, ``details``; a stream's events have one ``token``
each, the last one ``generated_text`` and ``details`` (``finish_reason``, ``generated_tokens``, newer
servers ``input_length``). Durations and counts of an answer that is not streamed come in headers: see
``reader``.
"""

from __future__ import annotations

import msgspec

from otelgpu.families.requests.llm.api import Api, filled
from otelgpu.families.requests.llm.facts import Facts
from otelgpu.families.requests.llm.search import Search


class _Parameters(msgspec.Struct):
    max_new_tokens: int | None = None
    best_of: int | None = None


class _Request(msgspec.Struct):
    inputs: msgspec.Raw = msgspec.Raw()
    parameters: _Parameters | None = None
    stream: bool | None = None


class _Details(msgspec.Struct):
    finish_reason: str | None = None
    generated_tokens: int | None = None
    input_length: int | None = None
    prefill: list[msgspec.Raw] | None = None


class _Token(msgspec.Struct):
    text: msgspec.Raw = msgspec.Raw()
    special: bool = False


class _Output(msgspec.Struct):
    generated_text: msgspec.Raw = msgspec.Raw()
    token: _Token | None = None
    details: _Details | None = None
    error: msgspec.Raw = msgspec.Raw()
    error_type: str | None = None


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_outputs = msgspec.json.Decoder(_Output | list[_Output]).decode


class Tgi(Api):
    """The native API."""

    provider = "tgi"
    search = Search(output_tokens="generated_tokens", input_tokens="input_length")

    def request(self, facts: Facts, body: bytes) -> bool:
        """Read the limit and whether a stream is asked for; ``max_new_tokens`` distinguishes it from other APIs."""
        request = _decode_request(body)
        parameters = request.parameters
        if parameters is None or parameters.max_new_tokens is None or not filled(request.inputs):
            return False
        facts.asked(None, request.stream, parameters.max_new_tokens, None)
        if facts.capture is not None:
            facts.capture.asked(request.inputs)
        return True

    def response(self, facts: Facts, body: bytes) -> bool:
        """Read a whole generation; ``/`` wraps it in a list."""
        outputs = _decode_outputs(body)
        output = outputs if isinstance(outputs, _Output) else next(iter(outputs), _Output())
        if not output.generated_text:
            return self._failed(facts, output)
        self._take(facts, output.details)
        if facts.capture is not None:
            facts.capture.answered(output.generated_text)
        return True

    def event(self, facts: Facts, data: bytes, time_ns: int) -> bool:
        """Read one token."""
        output = _decode_outputs(data)
        if not isinstance(output, _Output):
            return False
        token = output.token
        if token is None:
            return self._failed(facts, output)
        if filled(token.text) and not token.special:
            facts.content_at(time_ns)
            if facts.capture is not None:
                facts.capture.answered(token.text)
        self._take(facts, output.details)
        return True

    @staticmethod
    def _take(facts: Facts, details: _Details | None) -> None:
        if details is None:
            return
        facts.finished(details.finish_reason)
        prompt = details.input_length
        if prompt is None and details.prefill:
            prompt = len(details.prefill)
        facts.used(prompt, details.generated_tokens)

    @staticmethod
    def _failed(facts: Facts, output: _Output) -> bool:
        if output.error_type is None:
            return False
        facts.failed(output.error_type)
        return True
