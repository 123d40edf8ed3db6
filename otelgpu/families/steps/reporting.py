"""Steps that have ended, whatever kind of program made them, to where they are reported. Pure."""

from __future__ import annotations

from msgspec import Struct

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


def report_steps(services: Services, reported: StepsReport) -> None:
    """Count them, and pass on what they are made of."""
    services.session.summary.steps += sum(map(len, reported.spans))
    services.session.attribution.abandon_steps(reported.rest)
    services.report(reported.spans)
    services.report_work(reported.work, reported.parents)
