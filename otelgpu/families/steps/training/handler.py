"""Steps of training in a session: what they look at, what they hold, and when they are reported. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from otelgpu.engine.facts import (
    CallsCorrelated,
    DeviceActivities,
    FilesCalled,
    ProcessForgotten,
    StretchesSeen,
)
from otelgpu.engine.function_names import UNKNOWN
from otelgpu.engine.operation_metrics import Part
from otelgpu.engine.services import Services
from otelgpu.families.steps.reporting import report_steps
from otelgpu.families.steps.training.device import LOST
from otelgpu.families.steps.training.steps import TrainingSteps
from otelgpu.families.steps.training.training_steps import TrainingSession
from otelgpu.model.inputs import LossCounted
from otelgpu.model.operations import OperationKind
from otelgpu.model.pressure import ProcessPressed
from otelgpu.model.spans import SpanColumns


class TrainingHandler:
    """Offers the steps to all other families."""

    def __init__(self, services: Services) -> None:
        session = services.session
        self._services, self._clock, self._functions = services, session.clock, session.functions
        self._steps = TrainingSteps(
            [decoder.apis for decoder, _ in session.operations],
            is_engine=self._is_engine,
            serves=services.offers.serves,
            headroom=session.headroom,
        )
        self._training = training = TrainingSession(
            self._steps,
            session.metrics,
            session.totals,
            session.processes.resource,
            seed=session.seed,
            kernel_name=self._kernel_name,
            file_name=lambda handle: services.offers.file_name(handle),
            sees_devices=any(OperationKind.LAUNCH in each.attributes for _, each in session.operations),
        )
        services.offers.steps.append(training)
        # Which it only looks at: collectives are reported in traces of their own, and files not at all.
        services.watch((OperationKind.COLLECTIVE, OperationKind.POINT_TO_POINT), self._look)
        services.listen(FilesCalled, lambda fact: training.take(fact.calls.rows))
        services.listen(StretchesSeen, lambda fact: training.take(fact.rows))
        services.listen(DeviceActivities, lambda fact: training.see_activities(fact.rows))
        services.listen(CallsCorrelated, lambda fact: training.see_calls(fact.rows, fact.correlations))
        services.listen(ProcessPressed, training.press)
        services.listen(LossCounted, self._lose)
        services.listen(ProcessForgotten, lambda fact: training.forget_process(fact.tgid))

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses and oddities by name, since the start."""
        return self._training.counters

    def _look(self, part: Part) -> None:
        self._training.take(part.rows)
        # No process without collectives has steps.
        self._services.session.attribution.hold_for_steps.setdefault(self._training.take, ())

    def _is_engine(self, tgid: int) -> bool:
        return any(
            steps.watches(tgid) for steps in self._services.offers.steps if steps is not self._training
        )

    def _kernel_name(self, tgid: int, name: int) -> str:
        """The full name of a kernel, "" where it is not known."""
        full = self._functions.full[self._functions.index(tgid, name)]
        return full if full != UNKNOWN else ""

    def _lose(self, loss: LossCounted) -> None:
        if loss.reason in LOST:
            self._training.lose()

    def tick(self, now_ns: int, *, final: bool) -> Iterable[SpanColumns]:
        """Steps that have ended."""
        reported = self._training.report(now_ns, offset_ns=self._clock.offset_ns, final=final)
        if reported is not None:
            report_steps(self._services, reported)
        if self._training.is_waiting:
            self._services.wake()
        return ()

    def end_process(self, tgid: int, time_ns: int) -> None:
        """What it left is reported at the next tick."""
        self._training.forget_process(tgid)
