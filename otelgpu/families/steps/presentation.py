"""How steps are shown: their track, a rank each, and the viewer's lists."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from otelgpu.engine.names import PHASE
from otelgpu.engine.presentation import Presentation, Reported, TrackGroup, TrackRule
from otelgpu.engine.viewer import (
    Division,
    Note,
    Part,
    SpanKind,
    SpanList,
    SpanRule,
    ViewerPart,
    builtin,
    number,
    text,
)
from otelgpu.families.steps import names
from otelgpu.families.steps.training import names as training_names


def _track(reported: Reported) -> tuple[Hashable, str]:
    rank = reported.get("otelgpu.rank", "")
    return rank, f"steps of rank {rank}" if rank != "" else "steps"


_VIEWER: Final = ViewerPart(
    kinds=(
        SpanKind(id="step", words="engine step", served=True),
        SpanKind(id="training", words="training step", peers=True),
    ),
    rules=(
        SpanRule(kind="step", scope=names.SCOPE, has=names.NUMBER),
        SpanRule(kind="phase", scope=names.SCOPE, has=PHASE),
        SpanRule(kind="other", scope=names.SCOPE),
        SpanRule(kind="training", scope=training_names.SCOPE),
    ),
    lists=(
        SpanList(
            id="steps",
            title="Engine steps",
            one="step",
            kinds=("step",),
            columns=(
                builtin("time"),
                number("number", "Step", "count", "otelgpu.step.number", width="60px"),
                builtin("service"),
                number("batch", "Requests", "count", "otelgpu.step.batch_size", width="74px"),
                number("tokens", "Tokens", "count", "otelgpu.step.tokens", width="64px"),
                number("prefills", "Prefills", "count", "otelgpu.step.prefills", width="66px"),
                number("decodes", "Decodes", "count", "otelgpu.step.decodes", width="72px"),
                text("membership", "Members", "otelgpu.step.membership", width="84px"),
                builtin("launches"),
                number("wait", "Waiting", "s", "otelgpu.step.wait.duration", width="80px"),
                number("gap", "Gap before", "s", "otelgpu.step.gap.duration", width="86px"),
                text("hints", "Hints", "otelgpu.hints", width="minmax(90px, 1.4fr)"),
                builtin("duration"),
            ),
            cards=(
                "duration",
                "gap",
            ),
            rank=2,
        ),
        SpanList(
            id="training",
            title="Training steps",
            one="training step",
            kinds=("training",),
            columns=(
                builtin("time"),
                number("number", "Step", "count", "otelgpu.step.number", width="56px"),
                builtin("service"),
                builtin("rank"),
                number("call", "In calls", "s", "otelgpu.step.call.duration", width="80px"),
                number("h2d", "H2D copies", "s", "otelgpu.step.host_to_device_copy.duration", width="80px"),
                number("wait", "Waits", "s", "otelgpu.step.wait.duration", width="80px"),
                number(
                    "stall",
                    "Data-loader stall",
                    "s",
                    "otelgpu.step.data_loader_stall.duration",
                    width="100px",
                ),
                number("host", "Host overhead", "s", "otelgpu.step.host_overhead.duration", width="90px"),
                number("collectives", "Collectives", "count", "otelgpu.step.collectives", width="84px"),
                number("bytes", "Their bytes", "By", "otelgpu.step.collective_bytes", width="84px"),
                text("hints", "Hints", "otelgpu.hints", width="minmax(80px, 1fr)"),
                builtin("duration"),
            ),
            cards=("duration",),
            rank=4,
        ),
    ),
    divisions=(
        Division(
            title="Where its time went, on the host",
            parts=(
                Part(colour="call", words="in calls", attribute="otelgpu.step.call.duration"),
                Part(
                    colour="copy",
                    words="host-to-device copies",
                    attribute="otelgpu.step.host_to_device_copy.duration",
                ),
                Part(colour="wait", words="waits", attribute="otelgpu.step.wait.duration"),
                Part(colour="file", words="slow files", attribute="otelgpu.step.file.duration"),
                Part(
                    colour="stall",
                    words="data-loader stall",
                    attribute="otelgpu.step.data_loader_stall.duration",
                ),
                Part(colour="host", words="host overhead", attribute="otelgpu.step.host_overhead.duration"),
            ),
        ),
        Division(
            title="Where its time went, on the device",
            parts=(
                Part(colour="call", words="compute", attribute="otelgpu.step.device.compute.duration"),
                Part(
                    colour="copy",
                    words="communication alone",
                    attribute="otelgpu.step.device.exposed_communication.duration",
                ),
                Part(colour="wait", words="copies", attribute="otelgpu.step.device.copy.duration"),
                Part(colour="host", words="idle", attribute="otelgpu.step.device.idle.duration"),
            ),
        ),
    ),
    notes=(Note(attribute="otelgpu.steps.unattributed", words="{} outputs of which the step is not known"),),
)

PRESENTATION: Final = Presentation(
    tracks=(
        TrackRule(
            group=TrackGroup.STEPS,
            scopes=frozenset((names.SCOPE, training_names.SCOPE)),
            track=_track,
            rank=2,
        ),
    ),
    step_number=names.NUMBER,
    viewer=_VIEWER,
)
