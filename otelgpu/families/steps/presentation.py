"""How steps are shown: their track, a rank each, and the viewer's lists."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from otelgpu.engine.names import PHASE
from otelgpu.engine.presentation import Place, Presentation, Reported, TrackRule
from otelgpu.engine.viewer import (
    Division,
    ListColumn,
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
        SpanKind(id="training", words="training step"),
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
                number("wait", "Waiting", "ns", "otelgpu.step.wait_ns", width="80px"),
                number("gap", "Gap before", "ns", "otelgpu.step.gap_ns", width="86px"),
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
                ListColumn(key="pid", title="Process", unit="id", resource="process.pid", width="72px"),
                number("call", "In calls", "ns", "otelgpu.step.call_ns", width="80px"),
                number("upload", "Uploads", "ns", "otelgpu.step.upload_ns", width="80px"),
                number("wait", "Waits", "ns", "otelgpu.step.wait_ns", width="80px"),
                number("input", "Input gap", "ns", "otelgpu.step.input_gap_ns", width="80px"),
                number("host", "Host gap", "ns", "otelgpu.step.host_gap_ns", width="80px"),
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
                Part(colour="call", words="in calls", attribute="otelgpu.step.call_ns"),
                Part(colour="upload", words="uploads", attribute="otelgpu.step.upload_ns"),
                Part(colour="wait", words="waits", attribute="otelgpu.step.wait_ns"),
                Part(colour="input", words="waiting for input", attribute="otelgpu.step.input_gap_ns"),
                Part(colour="host", words="other gaps", attribute="otelgpu.step.host_gap_ns"),
            ),
        ),
        Division(
            title="Where its time went, on the device",
            parts=(
                Part(colour="call", words="compute", attribute="otelgpu.step.device.compute_ns"),
                Part(
                    colour="upload",
                    words="communication alone",
                    attribute="otelgpu.step.device.exposed_communication_ns",
                ),
                Part(colour="wait", words="copies", attribute="otelgpu.step.device.copy_ns"),
                Part(colour="host", words="idle", attribute="otelgpu.step.device.idle_ns"),
            ),
        ),
    ),
    notes=(Note(attribute="otelgpu.steps.unattributed", words="{} outputs of which the step is not known"),),
)

PRESENTATION: Final = Presentation(
    tracks=(
        TrackRule(
            place=Place.STEPS,
            scopes=frozenset((names.SCOPE, training_names.SCOPE)),
            track=_track,
            rank=2,
        ),
    ),
    step_number=names.NUMBER,
    viewer=_VIEWER,
)
