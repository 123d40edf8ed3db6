"""OpenAI's chat and text completions, as OpenAI, vLLM, SGLang, TGI, llama.cpp, Ollama and others serve them.

Shapes: https://platform.openai.com/docs/api-reference/chat (``chat.completion``, ``chat.completion.chunk``)
and ``/completions``. A stream's events are whole objects, the last one before ``[DONE]`` carries ``usage``
where ``stream_options.include_usage`` asked for it; vLLM's ``continuous_usage_stats`` puts cumulative
``usage`` into every event, which gives the number of tokens in its deltas. ``reasoning_content`` and
``reasoning`` are vLLM's and SGLang's.

Which server it is (``gen_ai.provider.name``) is taken from what only that server writes; else ``openai``,
the flavour:

* vLLM (vllm/entrypoints/openai/protocol.py): ``stop_reason`` or ``token_ids`` in a choice,
  ``prompt_token_ids``, ``prompt_logprobs`` or ``kv_transfer_params`` beside them;
* SGLang (python/sglang/srt/entrypoints/openai/protocol.py): ``matched_stop`` in a choice,
  ``metadata.weight_version``;
* llama.cpp (tools/server): ``timings``; the header ``Server: llama.cpp``;
* Ollama (openai/openai.go): ``system_fingerprint`` is ``fp_ollama``;
* TGI (router/src/server.rs): the headers that ``reader`` knows.
"""

from __future__ import annotations

import msgspec

from otelgpu.families.requests.llm.api import LONGEST_EMPTY, Api, error_type, filled
from otelgpu.families.requests.llm.capture import Capture
from otelgpu.families.requests.llm.facts import Facts
from otelgpu.families.requests.llm.llamacpp import Timings, take_timings

_OLLAMA_FINGERPRINT = b'"fp_ollama"'


class _Request(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    max_tokens: msgspec.Raw = msgspec.Raw()
    max_completion_tokens: msgspec.Raw = msgspec.Raw()
    n: msgspec.Raw = msgspec.Raw()


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _ReasoningTokens(msgspec.Struct):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    """``usage`` of a completion, of embeddings and of vLLM's other endpoints."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _CachedTokens | None = None
    completion_tokens_details: _ReasoningTokens | None = None
    reasoning_tokens: int | None = None  # SGLang's place for it


class _Delta(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw()
    reasoning_content: msgspec.Raw = msgspec.Raw()
    reasoning: msgspec.Raw = msgspec.Raw()
    refusal: msgspec.Raw = msgspec.Raw()
    tool_calls: msgspec.Raw = msgspec.Raw()
    function_call: msgspec.Raw = msgspec.Raw()


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    text: msgspec.Raw = msgspec.Raw()
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    """An event of a stream whose id and model are known."""

    choices: list[_Choice] | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class _Response(_Chunk):
    """A response body, or one event of a stream."""

    id: str | int | None = None
    model: str | None = None


class _Answer(msgspec.Struct):
    message: _Delta | None = None
    text: msgspec.Raw = msgspec.Raw()


class _Answers(msgspec.Struct):
    """The text of a whole response, for those who want it."""

    choices: list[_Answer] | None = None


class _ChoiceSigns(msgspec.Struct):
    stop_reason: msgspec.Raw = msgspec.Raw()
    token_ids: msgspec.Raw = msgspec.Raw()
    matched_stop: msgspec.Raw = msgspec.Raw()


class _Metadata(msgspec.Struct):
    weight_version: msgspec.Raw = msgspec.Raw()


class _Signs(msgspec.Struct):
    """What distinguishes the servers; a field that is there and null is a sign too."""

    choices: list[_ChoiceSigns] | None = None
    metadata: _Metadata | None = None
    prompt_logprobs: msgspec.Raw = msgspec.Raw()
    prompt_token_ids: msgspec.Raw = msgspec.Raw()
    kv_transfer_params: msgspec.Raw = msgspec.Raw()
    system_fingerprint: msgspec.Raw = msgspec.Raw()
    timings: Timings | None = None


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_decode_answers = msgspec.json.Decoder(_Answers).decode
_decode_usage = msgspec.json.Decoder(Usage).decode
_decode_signs = msgspec.json.Decoder(_Signs).decode
_decode_int = msgspec.json.Decoder(int | None).decode


class Completions(Api):
    """``/v1/chat/completions`` and ``/v1/completions``."""

    provider = "openai"
    says_why_it_ends = True

    def request(self, facts: Facts, body: bytes) -> bool:
        """Read the model, the limits, and whether a stream is asked for."""
        request = _decode_request(body)
        facts.asked(
            request.model,
            request.stream,
            _number(request.max_completion_tokens, request.max_tokens),
            _number(request.n),
        )
        if facts.capture is not None:
            facts.capture.asked(request.messages, request.prompt)
        return request.model is not None and bool(filled(request.messages) or filled(request.prompt))

    def response(self, facts: Facts, body: bytes) -> bool:
        """Read a whole completion."""
        response = _decode_response(body)
        facts.named(response.id, response.model)
        for choice in response.choices or ():
            facts.finished(choice.finish_reason, choice.index)
        _take_rest(facts, response)
        _take_signs(facts, body)
        if facts.capture is not None:
            for answer in _decode_answers(body).choices or ():
                _capture(facts.capture, answer.message, answer.text)
        return response.choices is not None

    def event(self, facts: Facts, data: bytes, time_ns: int) -> bool:
        """Read a chunk of a completion: the one method here that runs for every token."""
        if facts.response_id and facts.response_model:
            chunk = _decode_chunk(data)
        else:
            chunk = response = _decode_response(data)
            facts.named(response.id, response.model)
        choices = chunk.choices
        content = finished = False
        for choice in choices or ():
            delta = choice.delta
            if (delta is not None and len(delta.content) > LONGEST_EMPTY) or _has_content(choice):
                content = True
                facts.content_at(time_ns)
            if choice.finish_reason:
                finished = True
                facts.finished(choice.finish_reason, choice.index)
            if facts.capture is not None:
                _capture(facts.capture, delta, choice.text)
        if chunk.usage or chunk.error:
            _take_rest(facts, chunk)
        if content and facts.output_tokens is not None:
            facts.content_tokens = facts.output_tokens
        if finished or not facts.signs_sought:
            facts.signs_sought = True
            _take_signs(facts, data)
        return choices is not None


def _take_rest(facts: Facts, chunk: _Chunk) -> None:
    """Take what stands beside the choices."""
    if filled(chunk.usage):
        take_usage(facts, chunk.usage)
    if filled(chunk.error):
        facts.failed(error_type(chunk.error))


def take_usage(facts: Facts, raw: msgspec.Raw) -> None:
    """Take a ``usage`` object. Raises MALFORMED."""
    usage = _decode_usage(raw)
    cached = usage.prompt_tokens_details
    reasoning = usage.completion_tokens_details
    facts.used(
        usage.prompt_tokens,
        usage.completion_tokens,
        cached.cached_tokens if cached is not None else None,
        reasoning.reasoning_tokens if reasoning is not None else usage.reasoning_tokens,
    )


def _has_content(choice: _Choice) -> bool:
    delta = choice.delta
    if delta is None:
        return filled(choice.text)
    return (
        filled(delta.content)
        or filled(delta.reasoning_content)
        or filled(delta.reasoning)
        or filled(delta.tool_calls)
        or filled(delta.function_call)
        or filled(delta.refusal)
        or filled(choice.text)
    )


def _capture(capture: Capture, delta: _Delta | None, text: msgspec.Raw) -> None:
    if delta is not None:
        capture.answered(
            delta.reasoning_content, delta.reasoning, delta.content, delta.refusal, delta.tool_calls
        )
    capture.answered(text)


def _take_signs(facts: Facts, data: bytes) -> None:
    """Take the flavour of the server; signs that are malformed are none."""
    try:
        signs = _decode_signs(data)
    except (ValueError, RecursionError):
        return
    choices = signs.choices or ()
    if signs.timings is not None:
        facts.provider = "llama.cpp"
        take_timings(facts, signs.timings)
    elif (signs.metadata is not None and signs.metadata.weight_version) or any(
        c.matched_stop for c in choices
    ):
        facts.provider = "sglang"
    elif (
        signs.prompt_logprobs
        or signs.prompt_token_ids
        or signs.kv_transfer_params
        or any(c.stop_reason or c.token_ids for c in choices)
    ):
        facts.provider = "vllm"
    elif bytes(signs.system_fingerprint) == _OLLAMA_FINGERPRINT:
        facts.provider = "ollama"


def _number(*values: msgspec.Raw) -> int | None:
    """Return the first that is an integer: no other field of a request is lost to a strange number."""
    for value in values:
        try:
            number: int | None = _decode_int(value) if value else None
        except (ValueError, RecursionError):
            continue
        if number is not None:
            return number
    return None
