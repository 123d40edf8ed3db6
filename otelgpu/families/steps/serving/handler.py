"""Steps of engines in a session: what they listen to, what they hold, and when they are reported. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from otelgpu.engine.facts import ProcessForgotten, TrafficParsed
from otelgpu.engine.services import Services
from otelgpu.families.steps.reporting import report_steps
from otelgpu.families.steps.serving.engine_steps import StepSession
from otelgpu.families.steps.serving.steps import WAIT_KINDS, EngineSteps
from otelgpu.model.spans import SpanColumns


class ServingHandler:
    """Offers the engines' steps to all other families."""

    def __init__(self, services: Services) -> None:
        session = services.session
        self._services, self._clock = services, session.clock
        self._steps = EngineSteps(
            [decoder.apis for decoder, _ in session.operations], headroom=session.headroom
        )
        self._reported = StepSession(
            self._steps,
            session.call_roles,
            session.metrics,
            session.totals,
            session.processes.resource,
            services.offers.context_of,
            seed=session.seed,
            model_bytes=session.settings.model_bytes,
            bandwidth=session.settings.memory_bandwidth,
        )
        self._held = session.attribution.hold_for_steps
        self._held[self._steps.take] = WAIT_KINDS  # until there is an engine
        services.offers.steps.append(self._reported)
        services.offers.engines = self._reported
        services.listen(TrafficParsed, self._hear)
        services.listen(ProcessForgotten, lambda fact: self._steps.forget_process(fact.tgid))

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses and oddities by name, since the start."""
        return self._steps.counters

    def _hear(self, fact: TrafficParsed) -> None:
        self._steps.open(fact.opened)
        self._steps.name(fact.named)
        self._steps.hear(fact.messages)
        self._hold()

    def _hold(self) -> None:
        self._held[self._steps.take] = () if self._steps.has_engines else WAIT_KINDS

    def tick(self, now_ns: int, *, final: bool) -> Iterable[SpanColumns]:
        """Steps of which no more will be known."""
        reported = self._reported.report(now_ns, offset_ns=self._clock.offset_ns, final=final)
        if reported is not None:
            report_steps(self._services, reported)
        self._hold()
        if self._steps.has_engines:
            self._services.wake()
        return ()

    def end_process(self, tgid: int, time_ns: int) -> None:
        """What it left is reported at the next tick."""
        self._steps.forget_process(tgid)
