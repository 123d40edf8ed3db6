"""``list_requests``: requests of an input, the slowest first, and how long all of them took."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import numpy as np
from msgspec import Struct

from otelgpu.cli.mcp import untrusted
from otelgpu.cli.mcp.answers import Found, Next
from otelgpu.cli.mcp.arguments import InputName, Limit, Offset, Seconds, UnixSeconds, Word
from otelgpu.cli.mcp.recordings import Reading, SpanSeen
from otelgpu.cli.mcp.session import Session
from otelgpu.families.gpu.energy.signals import ENERGY_KEY
from otelgpu.families.steps.names import HINTS
from otelgpu.model.resource import AttributeValue
from otelgpu.store.clickhouse.traces import Requests

TIME_TO_FIRST_TOKEN: Final = "gen_ai.latency.time_to_first_token"
TIME_PER_OUTPUT_TOKEN: Final = "otelgpu.gen_ai.time_per_output_token"
_MODELS: Final = ("gen_ai.response.model", "gen_ai.request.model")
_OUTPUT_TOKENS, _STATUS, _ERROR = "gen_ai.usage.output_tokens", "http.response.status_code", "error.type"
_KEYS: Final = (
    *_MODELS,
    *(TIME_TO_FIRST_TOKEN, TIME_PER_OUTPUT_TOKEN, ENERGY_KEY, HINTS),
    *(_OUTPUT_TOKENS, _STATUS, _ERROR),
)
"""All that is looked at."""
_MOST_SORTED: Final = 1_000
"""Rows that a look keeps: offset and limit go no further."""


class ListRequests(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments. Of texts, a part of the name is enough; times are of the requests' beginnings."""

    input: InputName
    sort: Literal["slowest", "time_to_first_token", "energy", "newest"] = "slowest"
    service: Word = ""
    name: Word = ""
    model: Word = ""
    role: Literal["", "server", "client"] = ""
    only_errors: bool = False
    least_seconds: Seconds = 0.0
    begin_unix_s: UnixSeconds = 0.0
    end_unix_s: UnixSeconds = 1e11
    limit: Limit = 20
    offset: Offset = 0


class RequestRow(Struct, frozen=True, kw_only=True):
    """Times in seconds, energy of GPUs in joules; null: not known.

    ``error``: its type. ``hints``: what otelgpu itself noticed of it.
    """

    trace_id: str
    span_id: str
    name: str
    role: str
    service: str
    model: str
    start_unix_s: float
    seconds: float
    time_to_first_token_s: float | None
    time_per_output_token_s: float | None
    output_tokens: int | None
    energy_joules: float | None
    status_code: int | None
    error: str
    hints: list[str]


class Spread(Struct, frozen=True, kw_only=True):
    """Of ``count`` values, in seconds."""

    count: int
    median_s: float
    p95_s: float
    p99_s: float
    most_s: float


class RequestList(Struct, frozen=True, kw_only=True):
    """``matching``: how many there are in all, of which ``errors`` failed. Spreads are of all of them."""

    requests: list[RequestRow]
    matching: int
    errors: int
    duration: Spread | None
    time_to_first_token: Spread | None


def list_requests(session: Session, arguments: ListRequests) -> Found[RequestList]:
    """Look through all spans once."""
    reading, durations, firsts = Reading(), array("d"), array("d")
    kept: list[tuple[float, int, int, SpanSeen, Mapping[str, AttributeValue]]] = []
    most = min(arguments.offset + arguments.limit, _MOST_SORTED)
    errors, fits = 0, _filter(arguments)
    for number, span in enumerate(session.recordings.requests(arguments.input, reading, _wanted(arguments))):
        if not span.role or not fits(span):
            continue
        given = span.attributes()
        if arguments.model and arguments.model not in _model(given):
            continue
        first = number_of(given, TIME_TO_FIRST_TOKEN)
        durations.append(span.seconds)
        if first is not None:
            firsts.append(first)
        errors += span.is_error
        order = _order(arguments.sort, span, given)
        if order is None:
            continue
        push = heapq.heappush if len(kept) < most else heapq.heappushpop
        push(kept, (order, -span.begin_ns, -number, span, given))
    best = sorted(kept, key=lambda each: each[:3], reverse=True)[arguments.offset :]
    rows = [_row(span, given) for *_, span, given in best]
    end = arguments.offset + len(rows)
    cut = [*reading.cut(), *_rest(end, len(durations))]
    found = RequestList(
        requests=rows,
        matching=len(durations),
        errors=errors,
        duration=spread(durations),
        time_to_first_token=spread(firsts),
    )
    return Found(result=found, next=_next(arguments.input, rows), cut=cut)


def number_of(given: Mapping[str, AttributeValue], key: str) -> float | None:
    """A time or an energy among attributes; None where there is none that is a number."""
    value = given.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None  # type: ignore[arg-type]


def spread(values: Sequence[float]) -> Spread | None:
    """None of none."""
    if not len(values):
        return None
    median, p95, p99 = np.quantile(np.asarray(values), (0.5, 0.95, 0.99)).tolist()
    return Spread(count=len(values), median_s=median, p95_s=p95, p99_s=p99, most_s=max(values))


def _order(sort: str, span: SpanSeen, given: Mapping[str, AttributeValue]) -> float | None:
    """The highest is listed first; what has None is not listed."""
    match sort:
        case "slowest":
            return span.seconds
        case "newest":
            return span.begin_ns * 1e-9
        case _:
            return number_of(given, ENERGY_KEY if sort == "energy" else TIME_TO_FIRST_TOKEN)


def _wanted(arguments: ListRequests) -> Requests:
    """As a store is asked, which need not be exact: :func:`_filter` is."""
    return Requests(
        keys=_KEYS,
        models=_MODELS,
        role=arguments.role,
        name=arguments.name,
        service=arguments.service,
        model=arguments.model,
        only_errors=arguments.only_errors,
        least_s=arguments.least_seconds,
        begin_s=arguments.begin_unix_s,
        end_s=arguments.end_unix_s,
    )


def _filter(arguments: ListRequests) -> Callable[[SpanSeen], bool]:
    begin_ns, end_ns = arguments.begin_unix_s * 1e9, arguments.end_unix_s * 1e9

    def fits(span: SpanSeen) -> bool:
        return (
            arguments.role in ("", span.role)
            and (span.is_error or not arguments.only_errors)
            and span.seconds >= arguments.least_seconds
            and begin_ns <= span.begin_ns < end_ns
            and arguments.name in span.name
            and arguments.service in str(span.resource.get("service.name", ""))
        )

    return fits


def _row(span: SpanSeen, given: Mapping[str, AttributeValue]) -> RequestRow:
    hints = given.get(HINTS, ())
    return RequestRow(
        trace_id=span.trace.hex(),
        span_id=span.id.hex(),
        name=untrusted.name(span.name),
        role=span.role,
        service=untrusted.name(span.resource.get("service.name", "")),
        model=untrusted.name(_model(given)),
        start_unix_s=span.begin_ns * 1e-9,
        seconds=span.seconds,
        time_to_first_token_s=number_of(given, TIME_TO_FIRST_TOKEN),
        time_per_output_token_s=number_of(given, TIME_PER_OUTPUT_TOKEN),
        output_tokens=_whole(given.get(_OUTPUT_TOKENS)),
        energy_joules=number_of(given, ENERGY_KEY),
        status_code=_whole(given.get(_STATUS)),
        error=untrusted.name(given.get(_ERROR, "error" if span.is_error else "")),
        hints=[untrusted.name(each) for each in hints[:8]] if isinstance(hints, tuple) else [],
    )


def _model(given: Mapping[str, AttributeValue]) -> str:
    return str(next((given[key] for key in _MODELS if given.get(key)), ""))


def _whole(value: AttributeValue | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _rest(end: int, matching: int) -> list[str]:
    if end >= matching:
        return []
    if end >= _MOST_SORTED:
        return [f"{matching - end} more: filter by time, name or least_seconds"]
    return [f"{matching - end} more: offset={end}"]


def _next(named: str, rows: Sequence[RequestRow]) -> list[Next]:
    return [
        Next(
            tool="get_trace",
            arguments={"input": named, "trace_id": row.trace_id, "span_id": row.span_id},
            why=f"what request {number} waited for, and what otelgpu noticed of it",
        )
        for number, row in enumerate(rows[:3], 1)
    ]
