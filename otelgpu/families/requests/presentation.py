"""How requests are shown: what stands behind their names on a console, their track, the viewer's list."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.names import ERROR_TYPE
from otelgpu.engine.presentation import (
    OF_PROCESS,
    Column,
    ConsoleLabel,
    How,
    Presentation,
    ProcessColumns,
    TopTable,
    TopView,
    TrackGroup,
    TrackRule,
    Unit,
    rate,
)
from otelgpu.engine.viewer import Histogram, Note, SpanList, ViewerPart, builtin, number, text
from otelgpu.families.requests.signals import gen_ai, http, rpc

_VIEWER: Final = ViewerPart(
    lists=(
        SpanList(
            id="requests",
            title="Requests",
            one="request",
            kinds=("request",),
            columns=(
                builtin("time"),
                builtin("name", "Request"),
                text(
                    "model",
                    "Model",
                    "gen_ai.response.model",
                    "gen_ai.request.model",
                    width="minmax(80px, 1fr)",
                ),
                builtin("role"),
                builtin("service"),
                builtin("status"),
                number("ttft", "TTFT", "s", "gen_ai.latency.time_to_first_token", width="78px"),
                number("tpot", "TPOT", "s", "otelgpu.gen_ai.time_per_output_token", width="78px"),
                number("gap", "Longest gap", "s", "otelgpu.gen_ai.chunk_gap.max", width="90px"),
                number("input", "In", "count", "gen_ai.usage.input_tokens", width="56px"),
                number("tokens", "Out", "count", "gen_ai.usage.output_tokens", width="56px"),
                number("steps", "Steps", "count", "otelgpu.steps.count", width="56px"),
                builtin("launches"),
                builtin("duration"),
            ),
            cards=(
                "ttft",
                "tpot",
                "duration",
            ),
            rank=1,
            histograms=(
                Histogram(
                    metric="otelgpu.gen_ai.server.time_between_chunks",
                    title="Token gaps",
                    words="Gaps between tokens, of all requests",
                    hint="gaps between the content deltas that clients were sent, of all requests, whatever is "
                    "filtered",
                ),
            ),
        ),
    ),
    notes=(
        Note(
            attribute="otelgpu.gen_ai.usage.estimated",
            words="the server reported no token counts: content deltas were counted",
        ),
    ),
)


def _served(duration: str) -> tuple[Column, ...]:
    """Rate, errors and duration of what the histogram ``duration`` measures."""
    return (
        rate("requests_per_s", "req/s", duration),
        rate("errors_per_s", "err/s", duration, having=ERROR_TYPE, alarming=True),
        *_percentiles("duration", "time", duration),
    )


def _percentiles(key: str, title: str, metric: str) -> tuple[Column, Column]:
    def percentile(how: How) -> Column:
        return Column(
            key=f"{key}_{how.value}_s",
            title=f"{title} {how.value}",
            how=how,
            metrics=(metric,),
            unit=Unit.SECONDS,
        )

    return percentile(How.P50), percentile(How.P99)


_MODELS: Final = TopTable(
    name="models",
    title="Generations by model",
    keys={**OF_PROCESS, "gen_ai.request.model": ("model", "model")},
    columns=(
        rate("requests_per_s", "req/s", gen_ai.REQUEST_DURATION.name),
        rate("errors_per_s", "err/s", gen_ai.REQUEST_DURATION.name, having=ERROR_TYPE, alarming=True),
        *_percentiles("ttft", "TTFT", gen_ai.TIME_TO_FIRST_TOKEN.name),
        *_percentiles("tpot", "TPOT", gen_ai.TIME_PER_OUTPUT_TOKEN.name),
        rate("chunks_per_s", "chunks/s", gen_ai.TIME_BETWEEN_CHUNKS.name),
        *_percentiles("queue", "queue", gen_ai.QUEUE_TIME.name),
        Column(key="energy_mean_j", title="J/req", how=How.MEAN, metrics=("otelgpu.gen_ai.request.energy",)),
        Column(
            key="energy_per_1000_tokens_mean_j",
            title="J/1k tokens",
            how=How.MEAN,
            metrics=("otelgpu.gen_ai.request.energy_per_1000_tokens",),
        ),
    ),
    sort="requests_per_s",
)
_ROUTES: Final = TopTable(
    name="routes",
    title="HTTP requests by route",
    keys={
        **OF_PROCESS,
        "http.request.method": ("method", "method"),
        "http.route": ("route", "route"),
    },
    columns=_served(http.SERVER_DURATION.name),
    sort="requests_per_s",
)
_CALLS: Final = TopTable(
    name="calls",
    title="Remote procedure calls by method",
    keys={**OF_PROCESS, "rpc.method": ("method", "method")},
    columns=_served(rpc.SERVER_DURATION.name),
    sort="requests_per_s",
)

PRESENTATION: Final = Presentation(
    views=(
        TopView(
            name="requests",
            title="Requests",
            top_tables=(_MODELS, _ROUTES, _CALLS),
            families=("http",),
            rank=1,
        ),
    ),
    process_columns=ProcessColumns(
        columns=(
            rate(
                "requests_per_s",
                "req/s",
                http.SERVER_DURATION.name,
                rpc.SERVER_DURATION.name,
            ),
            Column(
                key="active_requests",
                title="in flight",
                how=How.TOTAL,
                metrics=(http.ACTIVE_REQUESTS.name,),
            ),
        ),
        families=("http",),
        rank=1,
    ),
    labels=(
        ConsoleLabel(key="http.response.status_code"),
        ConsoleLabel(key="gen_ai.latency.time_to_first_token", text="ttft {}", unit=Unit.SECONDS),
        ConsoleLabel(key="otelgpu.gen_ai.time_per_output_token", text="tpot {}", unit=Unit.SECONDS),
        ConsoleLabel(key="gen_ai.usage.output_tokens", text="{} tokens"),
        ConsoleLabel(key="otelgpu.gen_ai.request.energy", text="{} J", unit=Unit.COUNT),
    ),
    viewer=_VIEWER,
    tracks=(
        TrackRule(
            group=TrackGroup.REQUESTS,
            scopes=frozenset(("otelgpu.http",)),
            track=lambda _: ("", "requests"),
            rank=1,
        ),
    ),
)
