"""What real servers send, shortened: one exchange per API, with what is to be read from it.

Every prompt holds ASKED and every answer SAID, so that a test can look for text that was kept. Shapes: the
sources named in the docstring of each API's module.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

ASKED = "quince-prompt"
SAID = "medlar-answer"

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
LINES = b"application/x-ndjson"


@dataclass(frozen=True)
class Transcript:
    """A request and the writes of its response: write ``i`` at time ``(i + 1) * 10``."""

    name: str
    path: str
    request: Any
    writes: tuple[bytes, ...]
    reported: dict[str, Any]
    content_type: bytes = EVENTS
    headers: dict[bytes, bytes] = field(default_factory=dict)
    text: bool = True  # whether the API carries text at all

    def __str__(self) -> str:
        return self.name


def sse(*events: Any, kind: bool = False) -> tuple[bytes, ...]:
    """Server-sent events; with ``kind`` each names its type, as Anthropic's and the Responses API's do."""
    return tuple(
        (f"event: {event['type']}\n".encode() if kind else b"")
        + b"data: "
        + json.dumps(event).encode()
        + b"\n\n"
        for event in events
    )


def lines(*objects: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() + b"\n" for value in objects)


def body(value: Any) -> tuple[bytes, ...]:
    return (json.dumps(value).encode(),)


DONE = b"data: [DONE]\n\n"


def chunk(delta: Any, reason: str | None = None, choice: dict[str, Any] | None = None, **rest: Any) -> Any:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "served",
        "choices": [
            {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, **(choice or {})}
        ],
        **rest,
    }


CHAT = {"model": "asked", "messages": [{"role": "user", "content": ASKED}]}

TRANSCRIPTS = (
    Transcript(
        "openai chat stream", "/v1/chat/completions",
        {**CHAT, "stream": True, "max_completion_tokens": 99, "n": 2},
        (
            *sse(
                chunk({"role": "assistant", "content": ""}), chunk({"content": SAID}), chunk({"content": "!"}),
                chunk({}, "stop"),
                {
                    "id": "chatcmpl-1", "model": "served", "choices": [],
                    "usage": {
                        "prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17,
                        "prompt_tokens_details": {"cached_tokens": 8},
                        "completion_tokens_details": {"reasoning_tokens": 2},
                    },
                },
            ),
            DONE,
        ),
        {
            "operation": "chat", "provider": "openai", "request_model": "asked", "response_model": "served",
            "response_id": "chatcmpl-1", "stream": True, "max_tokens": 99, "choices": 2, "first_chunk_ns": 10,
            "first_content_ns": 20, "last_content_ns": 30, "content_deltas": 2, "finish_reasons": ("stop",),
            "input_tokens": 12, "output_tokens": 5, "cached_tokens": 8, "reasoning_tokens": 2,
            "usage_reported": True, "content_tokens": None,
        },
    ),
    Transcript(
        "vllm chat stream with continuous usage", "/v1/chat/completions",
        {**CHAT, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        (
            *sse(
                chunk({"role": "assistant", "content": ""}, usage={"prompt_tokens": 7, "completion_tokens": 0},
                      prompt_token_ids=None),
                chunk({"reasoning": SAID}, usage={"prompt_tokens": 7, "completion_tokens": 3}),
                chunk({"content": "b"}, "length", {"stop_reason": None},
                      usage={"prompt_tokens": 7, "completion_tokens": 8}),
            ),
            DONE,
        ),
        {
            "provider": "vllm", "content_deltas": 2, "content_tokens": 8, "output_tokens": 8, "input_tokens": 7,
            "finish_reasons": ("length",), "first_content_ns": 20,
        },
    ),
    Transcript(
        "sglang chat", "/v1/chat/completions", CHAT,
        body({
            "id": "5f", "object": "chat.completion", "model": "served",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": SAID}, "finish_reason": "stop",
                         "matched_stop": 128009}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": None,
                      "reasoning_tokens": 1},
            "metadata": {"weight_version": "default"},
        }),
        {"provider": "sglang", "stream": False, "output_tokens": 4, "reasoning_tokens": 1, "response_id": "5f",
         "first_content_ns": 0, "first_chunk_ns": 0},
        JSON,
    ),
    Transcript(
        "llama.cpp chat stream", "/v1/chat/completions", {**CHAT, "stream": True},
        (
            *sse(
                chunk({"role": "assistant", "content": None}), chunk({"content": SAID}),
                chunk({}, "stop", timings={"cache_n": 4, "prompt_n": 6, "prompt_ms": 203.5, "predicted_n": 1,
                                           "predicted_ms": 33.0}),
            ),
            DONE,
        ),
        {"provider": "llama.cpp", "prefill_s": 0.2035, "decode_s": 0.033, "cached_tokens": 4, "output_tokens": 1,
         "usage_reported": False},
    ),
    Transcript(
        "ollama's openai chat", "/v1/chat/completions", CHAT,
        body({"id": "chatcmpl-7", "model": "m", "system_fingerprint": "fp_ollama",
              "choices": [{"index": 0, "message": {"content": SAID}, "finish_reason": "stop"}]}),
        {"provider": "ollama", "output_tokens": None},
        JSON,
    ),
    Transcript(
        "tgi's openai chat", "/v1/chat/completions", CHAT,
        body({"id": "", "model": "m", "choices": [{"index": 0, "message": {"content": SAID}}],
              "usage": {"prompt_tokens": 2, "completion_tokens": 3}}),
        {"provider": "tgi", "queue_s": 0.25, "output_tokens": 3},
        JSON, {b"x-queue-time": b"250", b"x-inference-time": b"1000"},
    ),
    Transcript(
        "openai text stream", "/v1/completions",
        {"model": "asked", "prompt": ASKED, "stream": True, "max_tokens": 16},
        (
            *sse(
                {"id": "cmpl-1", "model": "m", "choices": [{"index": 0, "text": SAID, "finish_reason": None}]},
                {"id": "cmpl-1", "model": "m", "choices": [{"index": 0, "text": "b", "finish_reason": "length"}]},
            ),
            DONE,
        ),
        {"operation": "text_completion", "max_tokens": 16, "output_tokens": 2, "usage_reported": False},
    ),
    Transcript(
        "openai responses stream", "/v1/responses",
        {"model": "asked", "input": ASKED, "stream": True, "max_output_tokens": 50},
        sse(
            {"type": "response.created", "response": {"id": "resp_1", "model": "served", "status": "in_progress"}},
            {"type": "response.in_progress", "response": {"id": "resp_1", "status": "in_progress"}},
            {"type": "response.output_item.added", "item": {"type": "message"}},
            {"type": "response.reasoning_text.delta", "delta": "hm"},
            {"type": "response.output_text.delta", "item_id": "msg_1", "delta": SAID},
            {"type": "response.output_text.done", "text": SAID},
            {"type": "response.completed", "response": {
                "id": "resp_1", "object": "response", "model": "served", "status": "completed", "error": None,
                "usage": {"input_tokens": 36, "input_tokens_details": {"cached_tokens": 30}, "output_tokens": 87,
                          "output_tokens_details": {"reasoning_tokens": 20}, "total_tokens": 123}}},
            kind=True,
        ),
        {
            "operation": "chat", "response_id": "resp_1", "response_model": "served", "first_chunk_ns": 10,
            "first_content_ns": 40, "content_deltas": 2, "input_tokens": 36, "cached_tokens": 30,
            "output_tokens": 87, "reasoning_tokens": 20, "finish_reasons": ("completed",), "max_tokens": 50,
        },
    ),
    Transcript(
        "openai responses", "/v1/responses", {"model": "asked", "input": [{"role": "user", "content": ASKED}]},
        body({"id": "resp_2", "object": "response", "model": "served", "status": "incomplete", "error": None,
              "incomplete_details": {"reason": "max_output_tokens"},
              "output": [{"type": "message", "content": [{"type": "output_text", "text": SAID}]}],
              "usage": {"input_tokens": 1, "output_tokens": 2}}),
        {"finish_reasons": ("max_output_tokens",), "input_tokens": 1, "output_tokens": 2, "stream": False},
        JSON,
    ),
    Transcript(
        "openai embeddings", "/v1/embeddings", {"model": "asked", "input": [ASKED]},
        body({"object": "list", "model": "served", "data": [{"index": 0, "embedding": [0.1, 0.2]}],
              "usage": {"prompt_tokens": 8, "total_tokens": 8}}),
        {"operation": "embeddings", "input_tokens": 8, "output_tokens": None, "response_model": "served"},
        JSON, text=False,
    ),
    Transcript(
        "vllm rerank", "/v1/rerank", {"model": "asked", "query": ASKED, "documents": ["a", "b"]},
        body({"id": "rerank-1", "model": "served", "usage": {"prompt_tokens": 9},
              "results": [{"index": 0, "document": {"text": SAID}, "relevance_score": 0.9}]}),
        {"operation": "rerank", "response_id": "rerank-1", "input_tokens": 9},
        JSON, text=False,
    ),
    Transcript(
        "vllm score", "/score", {"model": "asked", "text_1": ASKED, "text_2": ["a"]},
        body({"id": "score-1", "model": "served", "data": [{"index": 0, "score": 1}], "usage": {"prompt_tokens": 4}}),
        {"operation": "score", "input_tokens": 4},
        JSON, text=False,
    ),
    Transcript(
        "vllm token ids", "/inference/v1/generate",
        {"model": "asked", "token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 8}, "stream": True},
        (
            *sse(
                {"request_id": "r-9", "choices": [{"index": 0, "token_ids": [5, 6], "finish_reason": None}]},
                {"request_id": "r-9", "choices": [{"index": 0, "token_ids": [7], "finish_reason": "length"}]},
            ),
            DONE,
        ),
        {"provider": "vllm", "request_id": "r-9", "output_tokens": 3, "content_tokens": 3, "content_deltas": 2,
         "max_tokens": 8, "finish_reasons": ("length",)},
        text=False,
    ),
    Transcript(
        "anthropic stream", "/v1/messages",
        {"model": "asked", "max_tokens": 64, "stream": True, "messages": [{"role": "user", "content": ASKED}]},
        sse(
            {"type": "message_start", "message": {
                "id": "msg_1", "type": "message", "role": "assistant", "model": "served", "content": [],
                "stop_reason": None,
                "usage": {"input_tokens": 25, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 10,
                          "output_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "ping"},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": SAID}},
            {"type": "content_block_delta", "index": 1,
             "delta": {"type": "input_json_delta", "partial_json": "{\"a\""}},
            {"type": "content_block_delta", "index": 1,
             "delta": {"type": "signature_delta", "signature": "Eq"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
             "usage": {"output_tokens": 15}},
            {"type": "message_stop"},
            kind=True,
        ),
        {
            "operation": "chat", "provider": "anthropic", "response_id": "msg_1", "response_model": "served",
            "input_tokens": 38, "cached_tokens": 10, "output_tokens": 15, "finish_reasons": ("end_turn",),
            "first_chunk_ns": 10, "first_content_ns": 40, "content_deltas": 2, "max_tokens": 64,
        },
    ),
    Transcript(
        "anthropic", "/v1/messages",
        {"model": "asked", "max_tokens": 64, "messages": [{"role": "user", "content": ASKED}]},
        body({"id": "msg_2", "type": "message", "model": "served", "stop_reason": "max_tokens",
              "content": [{"type": "text", "text": SAID}], "usage": {"input_tokens": 5, "output_tokens": 6}}),
        {"input_tokens": 5, "output_tokens": 6, "finish_reasons": ("max_tokens",), "stream": False},
        JSON,
    ),
    Transcript(
        "sglang generate stream", "/generate",
        {"text": ASKED, "sampling_params": {"max_new_tokens": 16, "temperature": 0}, "stream": True},
        (
            *sse(
                {"text": SAID, "meta_info": {"id": "rid-1", "finish_reason": None, "prompt_tokens": 6,
                                             "completion_tokens": 2, "cached_tokens": 5}},
                {"text": SAID + " and", "meta_info": {"id": "rid-1", "finish_reason": None, "prompt_tokens": 6,
                                                      "completion_tokens": 4, "cached_tokens": 5}},
                {"text": SAID + " and", "meta_info": {
                    "id": "rid-1", "finish_reason": {"type": "length", "length": 4}, "prompt_tokens": 6,
                    "completion_tokens": 4, "cached_tokens": 5, "e2e_latency": 0.5, "queue_time": 0.125}},
            ),
            DONE,
        ),
        {
            "operation": "text_completion", "provider": "sglang", "request_id": "rid-1", "input_tokens": 6,
            "output_tokens": 4, "cached_tokens": 5, "content_tokens": 4, "content_deltas": 2, "queue_s": 0.125,
            "finish_reasons": ("length",), "max_tokens": 16, "usage_reported": True,
        },
    ),
    Transcript(
        "sglang generate batch", "/generate", {"text": [ASKED, "b"], "sampling_params": {"max_new_tokens": 4}},
        body([
            {"text": SAID, "meta_info": {"id": "a", "finish_reason": {"type": "stop"}, "prompt_tokens": 2,
                                         "completion_tokens": 3}},
            {"text": "x", "meta_info": {"id": "b", "finish_reason": {"type": "length"}, "prompt_tokens": 5,
                                        "completion_tokens": 4}},
        ]),
        {"input_tokens": 7, "output_tokens": 7, "finish_reasons": ("stop", "length"), "request_id": "a"},
        JSON,
    ),
    Transcript(
        "tgi generate_stream", "/generate_stream", {"inputs": ASKED, "parameters": {"max_new_tokens": 20}},
        sse(
            {"index": 1, "token": {"id": 1, "text": SAID, "logprob": -1, "special": False}, "generated_text": None,
             "details": None},
            {"index": 2, "token": {"id": 2, "text": "</s>", "logprob": -1, "special": True},
             "generated_text": SAID,
             "details": {"finish_reason": "eos_token", "generated_tokens": 2, "seed": None, "input_length": 9}},
        ),
        {"provider": "tgi", "input_tokens": 9, "output_tokens": 2, "content_deltas": 1, "stream": True,
         "finish_reasons": ("eos_token",), "max_tokens": 20},
    ),
    Transcript(
        "tgi root", "/", {"inputs": ASKED, "parameters": {"max_new_tokens": 20, "details": True}},
        body([{"generated_text": SAID, "details": {"finish_reason": "length", "generated_tokens": 20,
                                                   "prefill": [{"id": 1}, {"id": 2}], "tokens": []}}]),
        {"input_tokens": 2, "output_tokens": 20, "queue_s": 0.003},
        JSON,
        {b"x-queue-time": b"3", b"x-inference-time": b"40", b"x-prompt-tokens": b"2", b"x-generated-tokens": b"20"},
    ),
    Transcript(
        "llama.cpp completion stream", "/completion",
        {"model": "asked", "prompt": ASKED, "n_predict": 5, "stream": True},
        sse(
            {"index": 0, "content": SAID, "stop": False, "id_slot": 0, "tokens_predicted": 2,
             "tokens_evaluated": 7},
            {"index": 0, "content": "", "stop": True, "model": "q.gguf", "tokens_predicted": 5,
             "tokens_evaluated": 7, "stop_type": "limit", "stopping_word": "", "tokens_cached": 11,
             "timings": {"prompt_n": 7, "prompt_ms": 20.0, "predicted_n": 5, "predicted_ms": 400.0}},
        ),
        {"provider": "llama.cpp", "request_model": "asked", "input_tokens": 7, "output_tokens": 5,
         "prefill_s": 0.02, "decode_s": 0.4,
         "finish_reasons": ("limit",), "content_deltas": 1, "content_tokens": 2, "max_tokens": 5},
    ),
    Transcript(
        "an openai completion where llama.cpp's could be", "/completions", {"model": "asked", "prompt": ASKED},
        body({"id": "cmpl-3", "model": "m", "choices": [{"index": 0, "text": SAID, "finish_reason": "stop"}],
              "usage": {"prompt_tokens": 1, "completion_tokens": 2}}),
        {"provider": "openai", "response_id": "cmpl-3", "output_tokens": 2},
        JSON,
    ),
    Transcript(
        "ollama chat stream", "/api/chat", {"model": "asked", "messages": [{"role": "user", "content": ASKED}]},
        lines(
            {"model": "m", "created_at": "t", "message": {"role": "assistant", "content": SAID}, "done": False},
            {"model": "m", "created_at": "t", "message": {"role": "assistant", "content": "!"}, "done": False},
            {"model": "m", "created_at": "t", "message": {"role": "assistant", "content": ""}, "done": True,
             "done_reason": "stop", "total_duration": 9, "load_duration": 5, "prompt_eval_count": 10,
             "prompt_eval_duration": 246000000, "eval_count": 17, "eval_duration": 4000000000},
        ),
        {"operation": "chat", "provider": "ollama", "stream": True, "input_tokens": 10, "output_tokens": 17,
         "prefill_s": 0.246, "decode_s": 4.0, "finish_reasons": ("stop",), "content_deltas": 2,
         "first_content_ns": 10, "last_content_ns": 20, "queue_s": None},
        LINES,
    ),
    Transcript(
        "ollama generate", "/api/generate", {"model": "asked", "prompt": ASKED, "stream": False,
                                             "options": {"num_predict": 7}},
        body({"model": "m", "response": SAID, "done": True, "done_reason": "length", "eval_count": 7}),
        {"operation": "text_completion", "stream": False, "output_tokens": 7, "max_tokens": 7},
        JSON,
    ),
    Transcript(
        "ollama embed", "/api/embed", {"model": "asked", "input": ASKED},
        body({"model": "m", "embeddings": [[0.1]], "load_duration": 1, "prompt_eval_count": 8}),
        {"operation": "embeddings", "stream": False, "input_tokens": 8},
        JSON, text=False,
    ),
    Transcript(
        "triton generate_stream", "/v2/models/vllm_model/versions/1/generate_stream",
        {"text_input": ASKED, "parameters": {"stream": True, "max_tokens": 12}},
        sse({"model_name": "vllm_model", "model_version": "1", "text_output": SAID},
            {"model_name": "vllm_model", "model_version": "1", "text_output": "!"}),
        {"operation": "text_completion", "provider": "triton", "request_model": "vllm_model",
         "response_model": "vllm_model", "stream": True, "content_deltas": 2, "max_tokens": 12,
         "usage_reported": False},
    ),
    Transcript(
        "kserve infer", "/v2/models/llm/infer",
        {"id": "42", "inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [ASKED]}]},
        body({"id": "42", "model_name": "llm", "model_version": "1",
              "outputs": [{"name": "text_output", "shape": [1], "datatype": "BYTES", "data": [SAID]}]}),
        {"operation": "text_completion", "request_model": "llm", "request_id": "42", "response_id": "42"},
        JSON,
    ),
    Transcript(
        "kserve infer of another model", "/v2/models/resnet/infer",
        {"inputs": [{"name": "image", "shape": [1], "datatype": "FP32", "data": [0.5]}]},
        body({"model_name": "resnet", "outputs": [{"name": "class", "data": [1]}]}),
        {"operation": "infer", "request_model": "resnet", "output_tokens": None},
        JSON, text=False,
    ),
    Transcript(
        "gemini stream", "/v1beta/models/gemini-pro:streamGenerateContent",
        {"contents": [{"parts": [{"text": ASKED}]}], "generationConfig": {"maxOutputTokens": 30}},
        sse(
            {"candidates": [{"content": {"parts": [{"text": SAID}], "role": "model"}, "index": 0}],
             "modelVersion": "gemini-pro-001", "responseId": "g-1",
             "usageMetadata": {"promptTokenCount": 4, "totalTokenCount": 4}},
            {"candidates": [{"content": {"parts": [{"text": "!"}]}, "finishReason": "STOP", "index": 0}],
             "usageMetadata": {"promptTokenCount": 4, "candidatesTokenCount": 6, "thoughtsTokenCount": 10,
                               "cachedContentTokenCount": 1}},
        ),
        {"operation": "generate_content", "provider": "gcp.gemini", "request_model": "gemini-pro",
         "response_model": "gemini-pro-001", "response_id": "g-1", "stream": True, "input_tokens": 4,
         "output_tokens": 16, "reasoning_tokens": 10, "cached_tokens": 1, "finish_reasons": ("STOP",),
         "content_deltas": 2, "max_tokens": 30},
    ),
)  # fmt: skip
