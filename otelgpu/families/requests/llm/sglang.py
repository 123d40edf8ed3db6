"""SGLang's ``/generate``.

Shapes: https://docs.sglang.ai/basic_usage/native_api.html, python/sglang/srt/managers/io_struct.py
(``GenerateReqInput``) and tokenizer_manager.py (``meta_info``: ``id``, ``prompt_tokens``,
``completion_tokens``, ``cached_tokens``, ``finish_reason``, a dictionary with a ``type``; ``queue_time`` in
seconds where the server keeps it). A stream's events repeat the whole ``text`` so far, or bring only what
is new (``--incremental-streaming-output``); ``completion_tokens`` is cumulative either way, so it shows what
is new. A batch is answered by a list, or by events with an ``index``.
"""

from __future__ import annotations

import msgspec

from otelgpu.families.requests.llm.api import Api, error_type, filled
from otelgpu.families.requests.llm.facts import MAX_CHOICES, MAX_TEXT, Facts, count


class _SamplingParams(msgspec.Struct):
    max_new_tokens: int | None = None
    n: int | None = None


class _Request(msgspec.Struct):
    text: msgspec.Raw = msgspec.Raw()
    input_ids: msgspec.Raw = msgspec.Raw()
    sampling_params: _SamplingParams | list[_SamplingParams] | None = None
    stream: bool | None = None


class _Finish(msgspec.Struct):
    type: str | None = None


class _MetaInfo(msgspec.Struct):
    id: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: _Finish | str | None = None
    queue_time: float | None = None


class _Output(msgspec.Struct):
    text: msgspec.Raw = msgspec.Raw()
    output_ids: msgspec.Raw = msgspec.Raw()
    index: int = 0
    meta_info: _MetaInfo | None = None
    error: msgspec.Raw = msgspec.Raw()


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_outputs = msgspec.json.Decoder(_Output | list[_Output]).decode


class SGLang(Api):
    """``/generate``."""

    provider = "sglang"

    def request(self, facts: Facts, body: bytes) -> bool:
        """Read the limits and whether a stream is asked for; ``sampling_params`` distinguishes it from other APIs."""
        request = _decode_request(body)
        params = request.sampling_params
        if params is None or not (filled(request.text) or filled(request.input_ids)):
            return False
        first = params if isinstance(params, _SamplingParams) else next(iter(params), _SamplingParams())
        facts.asked(None, request.stream, first.max_new_tokens, first.n)
        if facts.capture is not None:
            facts.capture.asked(request.text)
        return True

    def response(self, facts: Facts, body: bytes) -> bool:
        """Read a whole generation, or a batch of them."""
        outputs = _decode_outputs(body)
        if isinstance(outputs, _Output):
            return self._take(facts, outputs, outputs.index, 0)
        fits = [self._take(facts, output, i, 0) for i, output in enumerate(outputs[:MAX_CHOICES])]
        return any(fits)

    def event(self, facts: Facts, data: bytes, time_ns: int) -> bool:
        """Read a part of a generation."""
        output = _decode_outputs(data)
        return isinstance(output, _Output) and self._take(facts, output, output.index, time_ns)

    @staticmethod
    def _take(facts: Facts, output: _Output, choice: int, time_ns: int) -> bool:
        if filled(output.error):
            facts.failed(error_type(output.error))
        meta = output.meta_info
        if meta is None:
            return False
        facts.request_id = facts.request_id or (meta.id or "")[:MAX_TEXT]
        if choice == 0:
            facts.used(meta.prompt_tokens, None, meta.cached_tokens)
            facts.took(queue_s=meta.queue_time)
        elif choice not in facts.progress and choice % (facts.choices or 1) == 0:
            facts.used((facts.input_tokens or 0) + (count(meta.prompt_tokens) or 0), None)
        reason = meta.finish_reason
        facts.finished(reason.type if isinstance(reason, _Finish) else reason, choice)
        new = facts.advanced(meta.completion_tokens, choice)
        if new and time_ns and (filled(output.text) or filled(output.output_ids)):
            facts.content_at(time_ns)
            facts.content_tokens = facts.output_tokens
        if facts.capture is not None and choice == 0:
            facts.capture.answered_so_far(output.text)
        return True
