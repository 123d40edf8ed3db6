"""Requests: how fast answers begin, flow and end."""

from __future__ import annotations

from typing import Final

from tools.dashboards.grafana import Dashboard, Panel, Row, Traces
from tools.dashboards.queries import mean, quantiles, total

_FIRST_TOKEN: Final = "gen_ai_server_time_to_first_token_seconds"
_PER_TOKEN: Final = "gen_ai_server_time_per_output_token_seconds"
_BETWEEN_CHUNKS: Final = "otelgpu_gen_ai_server_time_between_chunks_seconds"
_GENERATION: Final = "gen_ai_server_request_duration_seconds"
_HTTP: Final = "http_server_request_duration_seconds"
_MODEL: Final = "gen_ai_request_model"

REQUESTS: Final = Dashboard(
    uid="otelgpu-requests",
    title="otelgpu / Requests",
    description="How fast answers begin, flow and end, as seen at the server's sockets.",
    jobs=f"{_HTTP}_count",
    rows=(
        Row(
            title="Generations",
            panels=(
                Panel(
                    title="Time to first token",
                    description="From the request's first byte to the first content of the answer. Dots are requests: "
                    "a click opens the trace.",
                    queries=quantiles(_FIRST_TOKEN, _MODEL),
                    unit="s",
                    exemplars=True,
                ),
                Panel(
                    title="Time per output token",
                    description="Of a request: its time after the first token, divided by the tokens that followed.",
                    queries=quantiles(_PER_TOKEN, _MODEL),
                    unit="s",
                    exemplars=True,
                ),
                Panel(
                    title="Gaps between chunks",
                    description="Each gap between two deltas of a stream. A high p99 beside a good time per token: "
                    "streams stall.",
                    queries=quantiles(_BETWEEN_CHUNKS, _MODEL),
                    unit="s",
                    exemplars=True,
                ),
                Panel(
                    title="Duration of generations",
                    description="From the request's first byte to the answer's last.",
                    queries=quantiles(_GENERATION, _MODEL),
                    unit="s",
                    exemplars=True,
                ),
                Panel(
                    title="Generations a second",
                    description="Those that ended, by model and error.",
                    queries=[total(f"{_GENERATION}_count", _MODEL, "error_type")],
                    unit="reqps",
                ),
                Panel(
                    title="Time in the queue",
                    description="Where the server reports it, or its engine is observed.",
                    queries=quantiles("otelgpu_gen_ai_server_time_in_queue_seconds", _MODEL),
                    unit="s",
                    exemplars=True,
                ),
            ),
        ),
        Row(
            title="Energy and cost",
            panels=(
                Panel(
                    title="Energy of a request",
                    description="The average, without what the GPU would have used idle.",
                    queries=[mean("otelgpu_gen_ai_request_energy_joules", _MODEL)],
                    unit="joule",
                ),
                Panel(
                    title="Energy of 1,000 output tokens",
                    description="The same, the average of requests by the tokens that each was answered.",
                    queries=[mean("otelgpu_gen_ai_request_energy_per_1000_tokens_joules", _MODEL)],
                    unit="joule",
                ),
                Panel(
                    title="Power by what for",
                    description="Of GPUs that requests run on: what requests were charged, idle, and the rest.",
                    queries=[total("otelgpu_gpu_energy_joules_total", "otelgpu_gpu_energy_use")],
                    unit="watt",
                ),
                Panel(
                    title="Cost of a request",
                    description="The average, by the configured prices (price_per_kwh, price_per_gpu_hour).",
                    queries=[mean("otelgpu_gen_ai_request_cost", _MODEL, "otelgpu_cost_currency")],
                ),
                Panel(
                    title="Emissions of a request",
                    description="The average in grams of CO2 equivalent, by the configured carbon_grams_per_kwh.",
                    queries=[mean("otelgpu_gen_ai_request_carbon_grams", _MODEL)],
                    unit="massg",
                ),
            ),
        ),
        Row(
            title="As clients see it",
            panels=(
                Panel(
                    title="Time to first chunk",
                    description="From the request to the first chunk of the answer, at an observed client.",
                    queries=quantiles("gen_ai_client_operation_time_to_first_chunk_seconds", _MODEL),
                    unit="s",
                    exemplars=True,
                ),
                Panel(
                    title="Tokens a second",
                    description="Tokens that observed clients sent and got, as the server reported them to the client.",
                    queries=[total("gen_ai_client_token_usage_sum", "gen_ai_token_type", _MODEL)],
                ),
                Panel(
                    title="Duration at clients",
                    description="Requests for generations, at an observed client.",
                    queries=quantiles("gen_ai_client_operation_duration_seconds", _MODEL),
                    unit="s",
                    exemplars=True,
                ),
            ),
        ),
        Row(
            title="HTTP and gRPC",
            panels=(
                Panel(
                    title="Requests a second",
                    description="Requests that ended, by route and status.",
                    queries=[total(f"{_HTTP}_count", "http_route", "http_response_status_code")],
                    unit="reqps",
                ),
                Panel(
                    title="Duration of requests",
                    description="From a request's first byte to its answer's last.",
                    queries=quantiles(_HTTP, "http_route"),
                    unit="s",
                    exemplars=True,
                ),
                Panel(
                    title="Duration of gRPC calls",
                    description="At the server, by method.",
                    queries=quantiles("rpc_server_call_duration_seconds", "rpc_method"),
                    unit="s",
                    exemplars=True,
                ),
            ),
        ),
        Row(
            title="Traces",
            panels=(
                Traces(
                    title="Generations whose first token took more than a second",
                    description="In Tempo; the span's attribute is gen_ai.latency.time_to_first_token.",
                    query="{ kind = server && span.gen_ai.latency.time_to_first_token > 1 }",
                ),
            ),
        ),
    ),
)
