"""Google's ``models/M:generateContent`` and ``:streamGenerateContent`` (Gemini API and Vertex AI).

Shapes: https://ai.google.dev/api/generate-content. A stream is server-sent events (``?alt=sse``), each a
whole ``GenerateContentResponse``; without ``alt`` it is one JSON array, whose parts are read together when
it is complete: such a stream has no times of its content. Thought tokens are output tokens too
(``thoughtsTokenCount``).
"""

from __future__ import annotations

import msgspec

from otelgpu.families.requests.llm.api import Api, filled
from otelgpu.families.requests.llm.facts import Facts, count
from otelgpu.families.requests.llm.search import Search


class _GenerationConfig(msgspec.Struct, rename="camel"):
    max_output_tokens: int | None = None
    candidate_count: int | None = None


class _Request(msgspec.Struct, rename="camel"):
    contents: msgspec.Raw = msgspec.Raw()
    generation_config: _GenerationConfig | None = None


class _Part(msgspec.Struct, rename="camel"):
    text: msgspec.Raw = msgspec.Raw()
    function_call: msgspec.Raw = msgspec.Raw()
    inline_data: msgspec.Raw = msgspec.Raw()


class _Content(msgspec.Struct):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    index: int = 0


class _Usage(msgspec.Struct, rename="camel"):
    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    cached_content_token_count: int | None = None


class _Error(msgspec.Struct):
    status: str | None = None


class _Response(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    usage_metadata: _Usage | None = None
    model_version: str | None = None
    response_id: str | None = None
    error: _Error | None = None


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_responses = msgspec.json.Decoder(_Response | list[_Response]).decode


class Gemini(Api):
    """Both methods."""

    provider = "gcp.gemini"
    search = Search(
        id="responseId",
        model="modelVersion",
        finish="finishReason",
        input_tokens="promptTokenCount",
        output_tokens="candidatesTokenCount",
    )

    def request(self, facts: Facts, body: bytes) -> bool:
        """Read the limits; the model and the stream are in the path."""
        request = _decode_request(body)
        if not filled(request.contents):
            return False
        config = request.generation_config or _GenerationConfig()
        facts.asked(None, facts.stream, config.max_output_tokens, config.candidate_count)
        if facts.capture is not None:
            facts.capture.asked(request.contents)
        return True

    def response(self, facts: Facts, body: bytes) -> bool:
        """Read a whole response, or a stream that is one JSON array."""
        responses = _decode_responses(body)
        if isinstance(responses, _Response):
            return self._take(facts, responses, 0)
        fits = [self._take(facts, response, 0) for response in responses]
        return any(fits)

    def event(self, facts: Facts, data: bytes, time_ns: int) -> bool:
        """Read one event."""
        response = _decode_responses(data)
        return isinstance(response, _Response) and self._take(facts, response, time_ns)

    @staticmethod
    def _take(facts: Facts, response: _Response, time_ns: int) -> bool:
        facts.named(response.response_id, response.model_version)
        if response.error is not None:
            facts.failed(response.error.status)
        for candidate in response.candidates or ():
            facts.finished(candidate.finish_reason, candidate.index)
            parts = (candidate.content.parts if candidate.content is not None else None) or ()
            if time_ns and any(
                filled(p.text) or filled(p.function_call) or filled(p.inline_data) for p in parts
            ):
                facts.content_at(time_ns)
            if facts.capture is not None:
                for part in parts:
                    facts.capture.answered(part.text, part.function_call)
        usage = response.usage_metadata
        if usage is not None:
            thoughts = count(usage.thoughts_token_count)
            output = count(usage.candidates_token_count)
            facts.used(
                usage.prompt_token_count,
                None if output is None else output + (thoughts or 0),
                usage.cached_content_token_count,
                thoughts,
            )
        return response.candidates is not None or usage is not None
