"""The names of family ``http``: its one table, and how an exchange becomes attributes and measurements.

``http.*``, ``url.*``, ``server.*``, ``client.*``: OpenTelemetry semantic conventions 1.44.0.
``gen_ai.*``: the GenAI conventions; ``gen_ai.latency.*`` as vLLM and SGLang name them. Request targets
keep no query, and no header but the user agent is exported.
"""

from __future__ import annotations

import re
from typing import Any, Final

from otelgpu.families.base import ExchangeSignals, Instrument, Metric
from otelgpu.model.exchange import Exchange, Generation

GEN_AI_PROVIDER: Final = "openai"
"""``gen_ai.provider.name``: the flavour of the telemetry, which is that of the OpenAI API."""

_NS: Final = 1e-9


def _seconds(name: str, description: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(
        name=name, unit="s", instrument=Instrument.HISTOGRAM, description=description, buckets=buckets
    )


HTTP_DURATION: Final = _seconds(
    "http.server.request.duration",
    "Duration of HTTP server requests.",
    (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
)
REQUEST_DURATION: Final = _seconds(
    "gen_ai.server.request.duration",
    "Generative AI server request duration such as time-to-last byte or last output token.",
    (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
TIME_TO_FIRST_TOKEN: Final = _seconds(
    "gen_ai.server.time_to_first_token",
    "Time to generate first token for successful responses.",
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
TIME_PER_OUTPUT_TOKEN: Final = _seconds(
    "gen_ai.server.time_per_output_token",
    "Time per output token generated after the first token for successful responses.",
    (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)
_HAS_DIGIT: Final = re.compile(r"\d").search
_VERSION: Final = re.compile(r"v\d{1,2}").fullmatch
_METHODS: Final = frozenset(
    ("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE")
)


def span_name(exchange: Exchange) -> str:
    """``{operation} {model}`` for a generation, else ``{method} {path}`` without what varies in the path."""
    generation = exchange.generation
    if generation is not None and generation.request_model:
        return f"{generation.operation} {generation.request_model}"
    return f"{_method(exchange, 'HTTP')} {template(exchange.path)}"


def _method(exchange: Exchange, other: str) -> str:
    """The method if it is a known one: clients may send anything."""
    return exchange.method if exchange.method in _METHODS else other


def template(path: str) -> str:
    """A path with what looks like an identifier replaced by ``*``, cut after four segments.

    ``/v1/users/42/files`` → ``/v1/users/*/files``. A span name must be of low cardinality; the full path
    is in ``url.path``.
    """
    segments = path.split("/")[1:]
    kept = ["*" if len(s) > 24 or (_HAS_DIGIT(s) and not _VERSION(s)) else s for s in segments[:4]]
    return "/" + "/".join(kept) + ("/*" if len(segments) > 4 else "")


def attributes(exchange: Exchange) -> dict[str, Any]:
    """The attributes of an exchange's SERVER span."""
    found: dict[str, Any] = {
        "http.request.method": _method(exchange, "_OTHER"),
        "url.path": exchange.path,
        "url.scheme": "http",
        "network.protocol.name": "http",
        "network.protocol.version": exchange.protocol_version,
        "http.request.size": exchange.request_bytes,
        "http.response.size": exchange.response_bytes,
        "thread.id": exchange.tid,
    }
    if exchange.status_code:
        found["http.response.status_code"] = exchange.status_code
    if exchange.server.port:
        found["server.address"] = exchange.server.address
        found["server.port"] = exchange.server.port
    if exchange.client.port:
        found["client.address"] = exchange.client.address
        found["client.port"] = exchange.client.port
    if exchange.user_agent:
        found["user_agent.original"] = exchange.user_agent
    if exchange.first_byte_ns:
        found["otelgpu.http.time_to_first_byte"] = (exchange.first_byte_ns - exchange.start_ns) * _NS
    if error := exchange.error_type:
        found["error.type"] = error
    if exchange.generation is not None:
        found |= _generation_attributes(exchange, exchange.generation)
    return found


def _generation_attributes(exchange: Exchange, generation: Generation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "gen_ai.operation.name": generation.operation,
        "gen_ai.provider.name": GEN_AI_PROVIDER,
        "gen_ai.request.stream": generation.stream,
        "gen_ai.latency.e2e": exchange.duration_s,
    }
    for key, value in (
        ("gen_ai.request.model", generation.request_model),
        ("gen_ai.response.model", generation.response_model),
        ("gen_ai.response.id", generation.response_id),
        ("gen_ai.response.finish_reasons", generation.finish_reasons),
        ("gen_ai.usage.input_tokens", generation.input_tokens),
        ("gen_ai.usage.output_tokens", generation.output_tokens),
        ("gen_ai.latency.time_to_first_token", exchange.time_to_first_token_s),
        ("otelgpu.gen_ai.time_per_output_token", exchange.time_per_output_token_s),
    ):
        if value not in (None, "", ()):
            found[key] = value
    if generation.output_tokens is not None and not generation.usage_reported:
        found["otelgpu.gen_ai.usage.estimated"] = True
    return found


def measurements(exchange: Exchange) -> list[tuple[Metric, float, dict[str, str | int]]]:
    """What an exchange adds to the metrics: (metric, value, attributes of bounded cardinality)."""
    duration = exchange.duration_s
    error = exchange.error_type
    http: dict[str, str | int] = {
        "http.request.method": _method(exchange, "_OTHER"),
        "url.scheme": "http",
    }
    if exchange.status_code:
        http["http.response.status_code"] = exchange.status_code
    if error:
        http["error.type"] = error
    found = [(HTTP_DURATION, duration, http)]
    generation = exchange.generation
    if generation is None:
        return found
    labels: dict[str, str | int] = {
        "gen_ai.operation.name": generation.operation,
        "gen_ai.provider.name": GEN_AI_PROVIDER,
        "gen_ai.request.model": generation.request_model,
    }
    if generation.response_model:
        labels["gen_ai.response.model"] = generation.response_model
    if exchange.server.port:
        labels["server.address"] = exchange.server.address
        labels["server.port"] = exchange.server.port
    found.append((REQUEST_DURATION, duration, labels | ({"error.type": error} if error else {})))
    if not error and exchange.status_code < 400:
        first, each = exchange.time_to_first_token_s, exchange.time_per_output_token_s
        if first is not None:
            found.append((TIME_TO_FIRST_TOKEN, first, labels))
        if each is not None:
            found.append((TIME_PER_OUTPUT_TOKEN, each, labels))
    return found


SIGNALS: Final = ExchangeSignals(
    scope="otelgpu.http", span_name=span_name, attributes=attributes, metrics=measurements
)
