"""Endpoints that answer with vectors or scores: OpenAI's ``/v1/embeddings`` and vLLM's relatives of it.

Shapes: https://platform.openai.com/docs/api-reference/embeddings; vLLM's ``/pooling``, ``/score``,
``/rerank`` and ``/classify`` (https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html). They
are not streamed and have input tokens only. Semantic conventions name the operation ``embeddings``; for
scores and ranks they have no name, and the endpoint's own is used: ``score``, ``rerank``, ``classify``.
"""

from __future__ import annotations

import msgspec

from otelgpu.families.requests.llm.api import Api, error_type, filled
from otelgpu.families.requests.llm.facts import Facts
from otelgpu.families.requests.llm.openai_completions import take_usage
from otelgpu.families.requests.llm.search import Search


class _Request(msgspec.Struct):
    model: str | None = None
    input: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    query: msgspec.Raw = msgspec.Raw()  # of ranks
    documents: msgspec.Raw = msgspec.Raw()
    text_1: msgspec.Raw = msgspec.Raw()  # of scores
    text_2: msgspec.Raw = msgspec.Raw()
    queries: msgspec.Raw = msgspec.Raw()  # text_1's newer name


class _Response(msgspec.Struct):
    id: str | int | None = None
    model: str | None = None
    data: msgspec.Raw = msgspec.Raw()
    results: msgspec.Raw = msgspec.Raw()
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_response = msgspec.json.Decoder(_Response).decode


class Embeddings(Api):
    """One of these endpoints."""

    provider = "openai"
    search = Search()

    def request(self, facts: Facts, body: bytes) -> bool:
        """Read the model."""
        request = _decode_request(body)
        pairs = (request.query, request.documents, request.text_1, request.text_2, request.queries)
        paired = sum(map(filled, pairs)) > 1  # scores and ranks are of one thing against others
        if request.model is None or not (filled(request.input) or filled(request.messages) or paired):
            return False
        facts.asked(request.model, None, None, None)
        if facts.capture is not None:
            facts.capture.asked(request.input, request.messages, *pairs)
        return True

    def response(self, facts: Facts, body: bytes) -> bool:
        """Read the model and the usage; vectors are not kept, content or not."""
        response = _decode_response(body)
        if filled(response.error):
            facts.failed(error_type(response.error))
        if response.model is None or not (response.data or response.results) or not filled(response.usage):
            return False
        facts.named(response.id, response.model)
        take_usage(facts, response.usage)
        return True
