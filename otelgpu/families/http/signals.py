"""The names of family ``http``: its one table, and how an exchange becomes attributes and measurements.

``http.*``, ``url.*``, ``server.*``, ``client.*``: OpenTelemetry semantic conventions 1.44.0.
``gen_ai.*``: the GenAI conventions; ``gen_ai.latency.*`` as vLLM and SGLang name them. Request targets
keep no query, and no header but the user agent is exported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from otelgpu.families.base import ExchangeSignals, Instrument, Measured, Metric
from otelgpu.model.exchange import Exchange, Generation
from otelgpu.model.spans import Attribute

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


@lru_cache(maxsize=4096)
def template(path: str) -> str:
    """A path with what looks like an identifier replaced by ``*``, cut after four segments.

    ``/v1/users/42/files`` → ``/v1/users/*/files``. A span name must be of low cardinality; the full path
    is in ``url.path``.
    """
    segments = path.split("/")[1:]
    kept = ["*" if len(s) > 24 or (_HAS_DIGIT(s) and not _VERSION(s)) else s for s in segments[:4]]
    return "/" + "/".join(kept) + ("/*" if len(segments) > 4 else "")


def attributes(exchanges: Sequence[Exchange]) -> tuple[Attribute, ...]:
    """The attributes of the exchanges' SERVER spans, a column each; what no exchange has is left out."""
    columns: dict[str, list[Any]] = {
        "http.request.method": [_method(e, "_OTHER") for e in exchanges],
        "url.path": [e.path for e in exchanges],
        "url.scheme": ["http"] * len(exchanges),
        "network.protocol.name": ["http"] * len(exchanges),
        "network.protocol.version": [e.protocol_version for e in exchanges],
        "http.request.size": [e.request_bytes for e in exchanges],
        "http.response.size": [e.response_bytes for e in exchanges],
        "thread.id": [e.tid for e in exchanges],
        "http.response.status_code": [e.status_code or None for e in exchanges],
        "server.address": [e.server.address if e.server.port else None for e in exchanges],
        "server.port": [e.server.port or None for e in exchanges],
        "client.address": [e.client.address if e.client.port else None for e in exchanges],
        "client.port": [e.client.port or None for e in exchanges],
        "user_agent.original": [e.user_agent or None for e in exchanges],
        "otelgpu.http.time_to_first_byte": [
            (e.first_byte_ns - e.start_ns) * _NS if e.first_byte_ns else None for e in exchanges
        ],
        "error.type": [e.error_type or None for e in exchanges],
    }
    if any(e.generation is not None for e in exchanges):
        columns |= _generation_columns(exchanges, [e.generation for e in exchanges])
    return tuple(Attribute.of(key, values) for key, values in columns.items() if _any_told(values))


def _any_told(values: Sequence[object]) -> bool:
    """Whether any exchange has the attribute."""
    return values[0] is not None or any(value is not None for value in values)


def _generation_columns(
    exchanges: Sequence[Exchange], generations: Sequence[Generation | None]
) -> dict[str, list[Any]]:
    estimated = [g is not None and g.output_tokens is not None and not g.usage_reported for g in generations]
    columns: dict[str, list[Any]] = {
        "gen_ai.operation.name": [g and g.operation for g in generations],
        "gen_ai.provider.name": [g and GEN_AI_PROVIDER for g in generations],
        "gen_ai.request.stream": [None if g is None else g.stream for g in generations],
        "gen_ai.latency.e2e": [
            None if g is None else e.duration_s for e, g in zip(exchanges, generations, strict=True)
        ],
        "gen_ai.request.model": [(g and g.request_model) or None for g in generations],
        "gen_ai.response.model": [(g and g.response_model) or None for g in generations],
        "gen_ai.response.id": [(g and g.response_id) or None for g in generations],
        "gen_ai.response.finish_reasons": [(g and g.finish_reasons) or None for g in generations],
        "gen_ai.usage.input_tokens": [None if g is None else g.input_tokens for g in generations],
        "gen_ai.usage.output_tokens": [None if g is None else g.output_tokens for g in generations],
        "gen_ai.latency.time_to_first_token": [e.time_to_first_token_s for e in exchanges],
        "otelgpu.gen_ai.time_per_output_token": [e.time_per_output_token_s for e in exchanges],
        "otelgpu.gen_ai.usage.estimated": [True if guessed else None for guessed in estimated],
    }
    return columns


def measurements(exchanges: Sequence[Exchange]) -> list[Measured]:
    """What exchanges add to the metrics, by series."""
    by_http: dict[tuple[str, int, str], list[Exchange]] = {}
    by_model: dict[tuple[str, ...], list[Exchange]] = {}
    for e in exchanges:
        by_http.setdefault((_method(e, "_OTHER"), e.status_code, e.error_type), []).append(e)
        if (g := e.generation) is not None:
            server = (e.server.address, str(e.server.port)) if e.server.port else ()
            key = (e.error_type, g.operation, g.request_model, g.response_model, *server)
            by_model.setdefault(key, []).append(e)
    found: list[Measured] = []
    for (method, status, error), alike in by_http.items():
        http: dict[str, str | int] = {"http.request.method": method, "url.scheme": "http"}
        if status:
            http["http.response.status_code"] = status
        if error:
            http["error.type"] = error
        durations = [e.duration_s for e in alike]
        found.append(Measured(metric=HTTP_DURATION, labels=http, values=durations))
    for alike in by_model.values():
        found += _generation_measurements(alike)
    return found


def _generation_measurements(alike: Sequence[Exchange]) -> list[Measured]:
    """Of exchanges with generations that have all labels in common."""
    first, generation = alike[0], alike[0].generation
    assert generation is not None
    labels: dict[str, str | int] = {
        "gen_ai.operation.name": generation.operation,
        "gen_ai.provider.name": GEN_AI_PROVIDER,
        "gen_ai.request.model": generation.request_model,
    }
    if generation.response_model:
        labels["gen_ai.response.model"] = generation.response_model
    if first.server.port:
        labels["server.address"] = first.server.address
        labels["server.port"] = first.server.port
    error = first.error_type
    answered = [] if error else [e for e in alike if e.status_code < 400]
    measured = (
        (REQUEST_DURATION, labels | ({"error.type": error} if error else {}), [e.duration_s for e in alike]),
        (TIME_TO_FIRST_TOKEN, labels, [e.time_to_first_token_s for e in answered]),
        (TIME_PER_OUTPUT_TOKEN, labels, [e.time_per_output_token_s for e in answered]),
    )
    return [
        Measured(metric=metric, labels=told, values=known)
        for metric, told, values in measured
        if (known := [value for value in values if value is not None])
    ]


SIGNALS: Final = ExchangeSignals(
    scope="otelgpu.http", span_name=span_name, attributes=attributes, metrics=measurements
)
