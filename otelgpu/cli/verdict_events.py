"""Verdicts on one job, of any diagnosis, as the OpenTelemetry events that batches send."""

from __future__ import annotations

from typing import Protocol

from otelgpu.export import events
from otelgpu.model.verdict import Verdict


class JobVerdict(Protocol):
    """What the verdicts on stalls, utilisation and memory have in common."""

    @property
    def klass(self) -> str:
        """The event's kind."""

    @property
    def cause(self) -> str:
        """Its place."""

    @property
    def start_unix_s(self) -> float:
        """Since when."""

    @property
    def end_unix_s(self) -> float:
        """Until when it was seen."""

    @property
    def confidence(self) -> float:
        """From 0 to 1."""


def verdict_event(verdict: JobVerdict, text: str, cost_s: float = 0.0) -> Verdict:
    """The same as an OpenTelemetry event; ``text``: its sentence."""
    return Verdict(
        kind=verdict.klass,
        place={events.VERDICT_CAUSE: verdict.cause},
        start_unix_ns=round(verdict.start_unix_s * 1e9),
        end_unix_ns=round(verdict.end_unix_s * 1e9),
        cost_s=cost_s,
        confidence=verdict.confidence,
        text=text,
    )
