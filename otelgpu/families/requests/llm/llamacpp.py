"""llama.cpp's own ``/completion``, and the ``timings`` that its server adds to OpenAI's API too.

Shapes: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. A response, and each event
of a stream, has ``content`` and ``stop``; the last event has ``tokens_predicted``, ``tokens_evaluated``,
``stop_type`` ("eos", "limit", "word") and ``timings`` in milliseconds. Newer servers report
``tokens_predicted`` in every event.
"""

from __future__ import annotations

import msgspec

from otelgpu.families.requests.llm.api import Api, error_type, filled
from otelgpu.families.requests.llm.facts import Facts
from otelgpu.families.requests.llm.search import Search

_MS_PER_S = 1000


class Timings(msgspec.Struct):
    """How long a server worked; ``cache_n`` tokens of the prompt came from its cache."""

    prompt_ms: float | None = None
    predicted_ms: float | None = None
    cache_n: int | None = None


class _Request(msgspec.Struct):
    model: str | None = None
    prompt: msgspec.Raw = msgspec.Raw()
    n_predict: int | None = None
    stream: bool | None = None


class _Response(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw()
    stop: bool | None = None
    index: int = 0
    model: str | None = None
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    stop_type: str | None = None
    timings: Timings | None = None
    error: msgspec.Raw = msgspec.Raw()


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_response = msgspec.json.Decoder(_Response).decode


class LlamaCpp(Api):
    """``/completion`` and ``/completions`` of llama-server."""

    provider = "llama.cpp"
    search = Search(
        finish="stop_type", input_tokens="tokens_evaluated", output_tokens="tokens_predicted", id="id_slot"
    )

    def request(self, facts: Facts, body: bytes) -> bool:
        """Read the limit and whether a stream is asked for; only ``n_predict`` distinguishes it from other APIs."""
        request = _decode_request(body)
        if request.n_predict is None or not filled(request.prompt):
            return False
        facts.asked(request.model, request.stream, request.n_predict, None)
        if facts.capture is not None:
            facts.capture.asked(request.prompt)
        return True

    def response(self, facts: Facts, body: bytes) -> bool:
        """Read a whole completion."""
        response = _decode_response(body)
        if response.stop is None and not filled(response.error):
            return False
        self._take(facts, response)
        return response.stop is not None

    def event(self, facts: Facts, data: bytes, time_ns: int) -> bool:
        """Read a part of a completion."""
        response = _decode_response(data)
        if response.stop is None and not filled(response.error):
            return False
        self._take(facts, response)
        if filled(response.content):
            facts.content_at(time_ns)
            if response.tokens_predicted:
                facts.content_tokens = facts.output_tokens
        return response.stop is not None

    @staticmethod
    def _take(facts: Facts, response: _Response) -> None:
        facts.named(None, response.model)
        facts.advanced(response.tokens_predicted, response.index)
        facts.used(response.tokens_evaluated, None)
        if response.stop:
            facts.finished(response.stop_type, response.index)
        if response.timings is not None:
            take_timings(facts, response.timings)
        if filled(response.error):
            facts.failed(error_type(response.error))
        if facts.capture is not None:
            facts.capture.answered(response.content)


def take_timings(facts: Facts, timings: Timings) -> None:
    """Take what ``timings`` report."""
    facts.used(None, None, timings.cache_n)
    facts.took(
        prefill_s=timings.prompt_ms / _MS_PER_S if timings.prompt_ms is not None else None,
        decode_s=timings.predicted_ms / _MS_PER_S if timings.predicted_ms is not None else None,
    )
