"""vLLM's ``/inference/v1/generate``: token ids in, token ids out.

Shapes: vllm/entrypoints/serve/disagg/protocol.py (``GenerateRequest``, ``GenerateResponse``,
``GenerateResponseStreamChoice``), read in public copies of vLLM 0.1x: a request has ``token_ids`` and
``sampling_params``, a response ``request_id`` and ``choices[].token_ids``. Whether every version sends
``usage`` is not known here; token ids are counted where it does not.
"""

from __future__ import annotations

import msgspec

from otelgpu.families.requests.llm.api import Api, error_type, filled
from otelgpu.families.requests.llm.facts import MAX_TEXT, Facts
from otelgpu.families.requests.llm.openai_completions import take_usage


class _SamplingParams(msgspec.Struct):
    max_tokens: int | None = None
    n: int | None = None


class _Request(msgspec.Struct):
    token_ids: msgspec.Raw = msgspec.Raw()
    sampling_params: _SamplingParams | None = None
    model: str | None = None
    stream: bool | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Response(msgspec.Struct):
    request_id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_response = msgspec.json.Decoder(_Response).decode


class VllmGenerate(Api):
    """``/inference/v1/generate``."""

    provider = "vllm"

    def request(self, facts: Facts, body: bytes) -> bool:
        """Read the model, the limit, and whether a stream is asked for."""
        request = _decode_request(body)
        params = request.sampling_params
        if params is None or not filled(request.token_ids):
            return False
        facts.asked(request.model, request.stream, params.max_tokens, params.n)
        return True

    def response(self, facts: Facts, body: bytes) -> bool:
        """Read a whole generation."""
        return self._take(facts, _decode_response(body), 0)

    def event(self, facts: Facts, data: bytes, time_ns: int) -> bool:
        """Read a part of a generation."""
        return self._take(facts, _decode_response(data), time_ns)

    @staticmethod
    def _take(facts: Facts, response: _Response, time_ns: int) -> bool:
        if filled(response.error):
            facts.failed(error_type(response.error))
        if response.choices is None:
            return False
        facts.named(None, response.model)
        facts.request_id = facts.request_id or (response.request_id or "")[:MAX_TEXT]
        for choice in response.choices:
            facts.finished(choice.finish_reason, choice.index)
            if choice.token_ids:
                facts.advanced(facts.progress.get(choice.index, 0) + len(choice.token_ids), choice.index)
                if time_ns:
                    facts.content_at(time_ns)
                    facts.content_tokens = facts.output_tokens
        if filled(response.usage):
            take_usage(facts, response.usage)
        return True
