"""Descriptions of the exported names of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otelgpu.engine.description_tables import Described, Descriptions, MetricTable, Table
from otelgpu.families.requests.exchange_signals import SIGNALS
from otelgpu.families.requests.signals.http import ACTIVE_REQUESTS
from otelgpu.model.exchange import StartSource

START_SOURCES: Final[Mapping[StartSource, str]] = {
    StartSource.ARRIVAL: "the request's first byte arrived at the host, before the server read it",
    StartSource.READ: "the call that read it returned",
    StartSource.WRITE: "at a client: the call that wrote it began",
}
"""Value of ``otelgpu.start.source`` → what it stands for."""

DESCRIPTIONS: Final = Descriptions(
    attributes={
        "http.request.method": Described("HTTP method; `_OTHER` for an unknown one.", "POST"),
        "url.path": Described(
            "Path of the request target, without query, fragment and parameters (`;…`).",
            "/v1/chat/completions",
        ),
        "http.route": Described(
            "Derived from the path: segments that vary are `*`; of bounded cardinality. gRPC has `rpc.method`.",
            "/v1/users/*",
        ),
        "url.template": Described("The same for the requests of a client.", "/v1/users/*"),
        "url.scheme": Described("`https` where the bytes were read inside a TLS library.", "http"),
        "network.protocol.name": Described("`http`, `websocket`, or a plug-in's.", "http"),
        "network.protocol.version": Described("Of the request.", "1.1"),
        "otelgpu.start.source": Described("What the span's start is: see below.", "arrival"),
        "rpc.system.name": Described("`grpc`.", "grpc"),
        "rpc.method": Described("Fully qualified.", "inference.GRPCInferenceService/ModelInfer"),
        "rpc.status_code": Described("Name of the status, where it was seen.", "DEADLINE_EXCEEDED"),
        "otelgpu.rpc.request.messages": Described("Messages from the client.", "1"),
        "otelgpu.rpc.response.messages": Described("Messages from the server.", "64"),
        "http.request.size": Described("Bytes of the request on the socket, head included.", "412"),
        "http.response.size": Described("Bytes of the response on the socket, head included.", "9310"),
        "http.response.status_code": Described("Status code; absent when no response was seen.", "200"),
        "server.address": Described("The server's address on the connection.", "10.0.0.5"),
        "server.port": Described("The server's port.", "8000"),
        "client.address": Described("The client's address on the connection.", "10.0.0.9"),
        "client.port": Described("The client's port.", "51234"),
        "user_agent.original": Described("The only request header that is exported.", "openai-python/1.40"),
        "otelgpu.http.time_to_read": Described(
            "Seconds for which the request waited at the host before its server read it: in the accept queue, or "
            "for a busy event loop.",
            "0.0004",
        ),
        "otelgpu.incomplete": Described(
            "Why not all of it was seen, which is no error of its own: `capture_gap` (bytes were not captured), "
            "`response_not_seen`, `connection_evicted` (too many). Where its end is among that, its duration is in no "
            "metric, and tokens are only those that the server reported.",
            "capture_gap",
        ),
        "otelgpu.http.time_to_first_byte": Described(
            "Seconds from the request's first byte to the response's first byte.", "0.0041"
        ),
        "gen_ai.operation.name": Described("`chat`, `text_completion`, `embeddings` …", "chat"),
        "gen_ai.provider.name": Described(
            "Flavour of the API: `openai`, `anthropic`, `vllm`, `sglang` …", "openai"
        ),
        "gen_ai.request.max_tokens": Described("As the client asked.", "256"),
        "gen_ai.request.choice.count": Described("Where the client asked for more than one.", "2"),
        "gen_ai.request.id": Described("The engine's own id, where it differs from the response's.", "req-7"),
        "gen_ai.usage.cache_read.input_tokens": Described("Input tokens that came from a cache.", "512"),
        "gen_ai.usage.reasoning.output_tokens": Described(
            "Output tokens that were spent on reasoning.", "90"
        ),
        "gen_ai.response.time_to_first_chunk": Described(
            "Seconds, at a client: from the start of the request to the first event.", "0.22"
        ),
        "gen_ai.latency.time_in_queue": Described(
            "Seconds, where the server reports it, or its engine is observed: from when the engine was handed the "
            "request (else from its start) to the step that gave its first token.",
            "0.004",
        ),
        "gen_ai.latency.time_in_model_prefill": Described(
            "Seconds, where the server reports it; of an observed engine: the step that gave the first token.",
            "0.2",
        ),
        "gen_ai.latency.time_in_model_decode": Described(
            "Seconds, where the server reports it; of an observed engine: from there to the end of the last step.",
            "1.7",
        ),
        "otelgpu.gen_ai.chunks": Described(
            "Content deltas of the stream; a chunk may hold several tokens.", "64"
        ),
        "otelgpu.gen_ai.chunk_gap.p50": Described(
            "Seconds between one content delta and the next, median.", "0.014"
        ),
        "otelgpu.gen_ai.chunk_gap.p95": Described("95th percentile.", "0.02"),
        "otelgpu.gen_ai.chunk_gap.max": Described("The longest.", "0.4"),
        "otelgpu.gen_ai.stalls": Described("Gaps longer than 0.2 s and than five median gaps.", "1"),
        "gen_ai.input.messages": Described("The prompt: only with the conventions' opt-in variable.", "[…]"),
        "gen_ai.output.messages": Described("The completion: likewise.", "[…]"),
        "gen_ai.request.stream": Described("Whether the client asked for a stream.", "true"),
        "gen_ai.latency.e2e": Described(
            "Seconds from the request's first byte to the response's last.", "1.93"
        ),
        "gen_ai.request.model": Described("Model that the client asked for.", "llama-3-8b"),
        "gen_ai.response.model": Described("Model that the response names.", "llama-3-8b"),
        "gen_ai.response.id": Described("`id` of the response.", "chatcmpl-9f2"),
        "gen_ai.response.finish_reasons": Described("Why each choice ended.", '["stop"]'),
        "gen_ai.usage.input_tokens": Described("Prompt tokens, from `usage`; never estimated.", "17"),
        "gen_ai.usage.output_tokens": Described(
            "Output tokens, from `usage`, else counted content deltas.", "128"
        ),
        "gen_ai.latency.time_to_first_token": Described(
            "Seconds from the request's first byte to the first content (streams only).", "0.213"
        ),
        "otelgpu.gen_ai.time_per_output_token": Described(
            "(duration − time to first token) / (output tokens − 1), in seconds.", "0.0142"
        ),
        "otelgpu.gen_ai.usage.estimated": Described(
            "True: the output tokens were counted, not reported.", "true"
        ),
    },
    metrics=(
        MetricTable(scope=SIGNALS.scope, metrics={ACTIVE_REQUESTS: ("http.request.method", "url.scheme")}),
    ),
    tables={
        "start sources": Table(
            header=("`otelgpu.start.source`", "The span starts when"),
            rows=lambda: [(f"`{source.value}`", START_SOURCES[source]) for source in StartSource],
        )
    },
)
