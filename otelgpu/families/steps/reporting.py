"""Steps that have ended, whatever kind of program made them, to where they are reported. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from otelgpu.engine.facts import EngineStep, EngineStepsEnded
from otelgpu.engine.folding import Folded, Parents
from otelgpu.engine.services import Services
from otelgpu.model.operations import Operations
from otelgpu.model.spans import SpanColumns


class StepsReport(Struct, frozen=True, kw_only=True):
    """Steps of which no more will be known: their spans, their operations, and operations that are nobody's."""

    spans: list[SpanColumns]
    work: Folded
    parents: Parents
    rest: Operations
    engine_steps: Sequence[EngineStep] = ()


def report_steps(services: Services, reported: StepsReport) -> None:
    """Count them, and pass on what they are made of."""
    services.session.summary.steps += sum(map(len, reported.spans))
    services.session.attribution.abandon_steps(reported.rest)
    if reported.engine_steps:
        services.emit(EngineStepsEnded(reported.engine_steps))
    services.report(reported.spans)
    services.report_work(reported.work, reported.parents)
