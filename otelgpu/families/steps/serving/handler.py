"""Steps of engines in a session: what they listen to, what they hold, and when they are reported. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from otelgpu.engine.facts import ProcessForgotten, TrafficParsed
from otelgpu.engine.services import Services
from otelgpu.families.steps.reporting import report_steps
from otelgpu.families.steps.serving.engine_steps import StepSession
from otelgpu.families.steps.serving.steps import WAIT_KINDS, EngineSteps
from otelgpu.model.operations import Operations
from otelgpu.model.spans import SpanColumns


class ServingHandler:
    """Offers the engines' steps to all other families."""

    def __init__(self, services: Services) -> None:
        session = services.session
        self._services, self._clock = services, session.clock
        self._steps = EngineSteps([decoder.apis for decoder, _ in session.operations])
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
        session.attribution.hold_for_steps.append(self._hold)
        services.offers.steps.append(self._reported)
        services.offers.engines = self._reported
        services.listen(TrafficParsed, self._hear)
        services.listen(ProcessForgotten, lambda fact: self._steps.forget_process(fact.tgid))

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses and oddities by name, since the start."""
        return self._steps.counters

    def _hold(self, rows: Operations) -> npt.NDArray[np.bool_]:
        if not self._steps.has_engines and not np.isin(rows["kind"], WAIT_KINDS).any():
            return np.zeros(len(rows), dtype=np.bool_)
        return self._steps.take(rows)

    def _hear(self, fact: TrafficParsed) -> None:
        self._steps.open(fact.opened)
        self._steps.name(fact.named)
        self._steps.hear(fact.messages)

    def tick(self, now_ns: int, *, final: bool) -> Iterable[SpanColumns]:
        """Steps of which no more will be known."""
        report_steps(
            self._services, self._reported.report(now_ns, offset_ns=self._clock.offset_ns, final=final)
        )
        if self._steps.has_engines:
            self._services.wake()
        return ()

    def end_process(self, tgid: int, time_ns: int) -> None:
        """What it left is reported at the next tick."""
        self._steps.forget_process(tgid)
