"""What a generation adds: ``gen_ai.*`` of the GenAI conventions, at the server's end and at the client's.

A *stall* is a gap between two content deltas of more than :data:`STALL_FACTOR` times the stream's median gap and of
more than :data:`STALL_S`: long for that stream, and long enough for a reader to notice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from otelgpu.engine.metric import Instrument, Measured, Metric
from otelgpu.families.requests.signals.http import is_client
from otelgpu.families.requests.signals.measuring import NS, by_series, seconds
from otelgpu.model.exchange import Exchange, Generation

STALL_FACTOR: Final = 5.0
STALL_S: Final = 0.2

_DURATION: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PER_TOKEN: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)

REQUEST_DURATION: Final = seconds(
    "gen_ai.server.request.duration",
    "Generative AI server request duration such as time-to-last byte or last output token.",
    _DURATION,
)
TIME_TO_FIRST_TOKEN: Final = seconds(
    "gen_ai.server.time_to_first_token", "Time to generate first token for successful responses.", _FIRST
)
TIME_PER_OUTPUT_TOKEN: Final = seconds(
    "gen_ai.server.time_per_output_token",
    "Time per output token generated after the first token for successful responses.",
    _PER_TOKEN,
)
TIME_BETWEEN_CHUNKS: Final = seconds(
    "otelgpu.gen_ai.server.time_between_chunks",
    "Time from one content delta of a stream to the next, each measured.",
    _PER_TOKEN,
)
QUEUE_TIME: Final = seconds(
    "otelgpu.gen_ai.server.time_in_queue", "Time a request waited, where its server reports it.", _FIRST
)
OPERATION_DURATION: Final = seconds(
    "gen_ai.client.operation.duration", "GenAI operation duration.", _DURATION
)
TIME_TO_FIRST_CHUNK: Final = seconds(
    "gen_ai.client.operation.time_to_first_chunk",
    "Time to receive the first chunk, measured from when the client issues the generation request.",
    _FIRST,
)
TIME_PER_OUTPUT_CHUNK: Final = seconds(
    "gen_ai.client.operation.time_per_output_chunk",
    "Time per output chunk, recorded for each chunk received after the first one.",
    _PER_TOKEN,
)
TOKEN_USAGE: Final = Metric(
    name="gen_ai.client.token.usage",
    unit="{token}",
    instrument=Instrument.HISTOGRAM,
    description="Number of input and output tokens used.",
    buckets=tuple(float(4**power) for power in range(14)),
)


class Gaps(NamedTuple):
    """The gaps between the content deltas of a stream, in seconds."""

    p50: float
    p95: float
    longest: float
    stalls: int


def gaps(generation: Generation) -> Gaps | None:
    """Of a stream with at least two content deltas whose times are known."""
    between = sorted(_between(generation))
    if not between:
        return None
    p50 = between[(len(between) - 1) // 2]
    p95 = between[(len(between) - 1) * 95 // 100]
    stalls = sum(1 for gap in between if gap > STALL_S and gap > STALL_FACTOR * p50)
    return Gaps(p50, p95, between[-1], stalls)


def _between(generation: Generation) -> list[float]:
    if not generation.whole:  # between two that were seen others may have been
        return []
    return [(after - before) * NS for before, after in pairwise(generation.content_times_ns)]


def columns(exchanges: Sequence[Exchange]) -> dict[str, list[Any]]:
    """Attributes by key, a value or None per exchange."""
    generations = [e.generation for e in exchanges]
    pairs = list(zip(exchanges, generations, strict=True))
    spread = [None if g is None else gaps(g) for g in generations]
    estimated = [g is not None and g.output_tokens is not None and not g.usage_reported for g in generations]
    contents = [g and g.content for g in generations]
    return {
        "gen_ai.operation.name": [g and g.operation for g in generations],
        "gen_ai.provider.name": [g and g.provider for g in generations],
        "gen_ai.request.stream": [None if g is None else g.stream for g in generations],
        "gen_ai.latency.e2e": [None if g is None else e.known_duration_s for e, g in pairs],
        "gen_ai.request.model": [(g and g.request_model) or None for g in generations],
        "gen_ai.request.max_tokens": [g and g.max_tokens for g in generations],
        "gen_ai.request.choice.count": [g and g.choices for g in generations],
        "gen_ai.response.model": [(g and g.response_model) or None for g in generations],
        "gen_ai.response.id": [(g and g.response_id) or None for g in generations],
        "gen_ai.request.id": [(g and g.request_id) or None for g in generations],
        "gen_ai.response.finish_reasons": [(g and g.finish_reasons) or None for g in generations],
        "gen_ai.usage.input_tokens": [None if g is None else g.input_tokens for g in generations],
        "gen_ai.usage.output_tokens": [None if g is None else g.output_tokens for g in generations],
        "gen_ai.usage.cache_read.input_tokens": [None if g is None else g.cached_tokens for g in generations],
        "gen_ai.usage.reasoning.output_tokens": [
            None if g is None else g.reasoning_tokens for g in generations
        ],
        "gen_ai.latency.time_to_first_token": [
            None if is_client(e) else e.time_to_first_token_s for e in exchanges
        ],
        "gen_ai.response.time_to_first_chunk": [_first_chunk_s(e) for e in exchanges],
        "gen_ai.latency.time_in_queue": [None if g is None else g.queue_s for g in generations],
        "gen_ai.latency.time_in_model_prefill": [None if g is None else g.prefill_s for g in generations],
        "gen_ai.latency.time_in_model_decode": [None if g is None else g.decode_s for g in generations],
        "otelgpu.gen_ai.time_per_output_token": [e.time_per_output_token_s for e in exchanges],
        "otelgpu.gen_ai.usage.estimated": [True if guessed else None for guessed in estimated],
        "otelgpu.gen_ai.chunks": [(g and g.content_deltas) or None for g in generations],
        "otelgpu.gen_ai.chunk_gap.p50": [s and s.p50 for s in spread],
        "otelgpu.gen_ai.chunk_gap.p95": [s and s.p95 for s in spread],
        "otelgpu.gen_ai.chunk_gap.max": [s and s.longest for s in spread],
        "otelgpu.gen_ai.stalls": [(s and s.stalls) or None for s in spread],
        "gen_ai.input.messages": [(c and c.request) or None for c in contents],
        "gen_ai.output.messages": [(c and c.response) or None for c in contents],
    }


def _first_chunk_s(exchange: Exchange) -> float | None:
    """Of clients: from the start of the request to the first event of the stream."""
    generation = exchange.generation
    if generation is None or not is_client(exchange) or not generation.first_chunk_ns:
        return None
    return (generation.first_chunk_ns - exchange.start_ns) * NS


def measurements(exchanges: Sequence[Exchange]) -> list[Measured]:
    """Latencies of generations, and the tokens that clients used."""
    reported = [
        (row, e, g, _labels(e, g)) for row, e in enumerate(exchanges) if (g := e.generation) is not None
    ]
    if not reported:
        return []
    served = [one for one in reported if not is_client(one[1])]
    asked = [one for one in reported if is_client(one[1])]
    found = [
        *by_series(
            REQUEST_DURATION,
            ((row, _with_error(e, labels), e.known_duration_s) for row, e, _, labels in served),
        ),
        *by_series(
            OPERATION_DURATION,
            ((row, _with_error(e, labels), e.known_duration_s) for row, e, _, labels in asked),
        ),
    ]
    served = [one for one in served if _succeeded(one[1])]
    asked = [one for one in asked if _succeeded(one[1])]
    found += by_series(
        TIME_TO_FIRST_TOKEN, ((r, labels, e.time_to_first_token_s) for r, e, _, labels in served)
    )
    found += by_series(
        TIME_PER_OUTPUT_TOKEN, ((r, labels, e.time_per_output_token_s) for r, e, _, labels in served)
    )
    found += by_series(QUEUE_TIME, ((r, labels, g.queue_s) for r, _, g, labels in served))
    found += by_series(
        TIME_BETWEEN_CHUNKS, ((r, labels, gap) for r, _, g, labels in served for gap in _between(g))
    )
    found += by_series(TIME_TO_FIRST_CHUNK, ((r, labels, _first_chunk_s(e)) for r, e, _, labels in asked))
    found += by_series(
        TIME_PER_OUTPUT_CHUNK, ((r, labels, gap) for r, _, g, labels in asked for gap in _between(g))
    )
    found += by_series(TOKEN_USAGE, (used for r, _, g, labels in asked for used in _usage(r, g, labels)))
    return found


def _succeeded(exchange: Exchange) -> bool:
    return not exchange.error_type and exchange.status_code < 400


def _usage(
    row: int, generation: Generation, labels: dict[str, str | int]
) -> Iterator[tuple[int, dict[str, str | int], float | None]]:
    if generation.usage_reported:
        yield row, {**labels, "gen_ai.token.type": "input"}, generation.input_tokens
        yield row, {**labels, "gen_ai.token.type": "output"}, generation.output_tokens


def _with_error(exchange: Exchange, labels: dict[str, str | int]) -> dict[str, str | int]:
    return labels | {"error.type": exchange.error_type} if exchange.error_type else labels


def _labels(exchange: Exchange, generation: Generation) -> dict[str, str | int]:
    labels: dict[str, str | int] = {
        "gen_ai.operation.name": generation.operation,
        "gen_ai.provider.name": generation.provider,
        "gen_ai.request.model": generation.request_model,
    }
    if generation.response_model:
        labels["gen_ai.response.model"] = generation.response_model
    if exchange.server.port:
        labels["server.address"] = exchange.server.address
        labels["server.port"] = exchange.server.port
    return labels
