"""How requests are shown: what stands behind their names on a console, their track, the viewer's list."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.presentation import ConsoleLabel, Presentation, TrackGroup, TrackRule, Unit
from otelgpu.engine.viewer import Histogram, Note, SpanList, ViewerPart, builtin, number, text

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

PRESENTATION: Final = Presentation(
    labels=(
        ConsoleLabel(key="http.response.status_code"),
        ConsoleLabel(key="gen_ai.latency.time_to_first_token", text="ttft {}", unit=Unit.SECONDS),
        ConsoleLabel(key="otelgpu.gen_ai.time_per_output_token", text="tpot {}", unit=Unit.SECONDS),
        ConsoleLabel(key="gen_ai.usage.output_tokens", text="{} tokens"),
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
