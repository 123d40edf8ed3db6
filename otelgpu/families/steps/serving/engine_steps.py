"""Engine steps of a session, from operations to spans: what the pipeline asks, in the order in which it asks.

In: what :class:`~otelgpu.families.steps.serving.steps.EngineSteps` found out. Out: spans of steps and of the phases
that engines gave to requests, what requests' spans say of their steps, metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from otelgpu.engine.attribution.pending import Served
from otelgpu.engine.attribution.returns import SETTLED_NS
from otelgpu.engine.call_roles import SERVING, StepCalls
from otelgpu.engine.facts import EngineStep
from otelgpu.engine.folding import Parents, unfolded
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.services import Extras
from otelgpu.engine.totals import Totals
from otelgpu.families.steps import names as step_names
from otelgpu.families.steps.hint_attributes import request_hints
from otelgpu.families.steps.reporting import StepsReport
from otelgpu.families.steps.serving.metrics import step_metrics, utilisation
from otelgpu.families.steps.serving.phases import request_phases
from otelgpu.families.steps.serving.spans import request_attributes, request_links, step_parents, step_spans
from otelgpu.families.steps.serving.steps import EngineSteps
from otelgpu.families.steps.step import Membership, RequestSteps, ServedStep, StepKey
from otelgpu.model.context import Context, Unsettled
from otelgpu.model.exchange import Exchange
from otelgpu.model.operations import concatenate
from otelgpu.model.resource import Resource
from otelgpu.model.spans import SpanColumns, attributes_of_rows

HINTED_ROWS: Final = 8192
"""Operations of the requests that are answered at a tick, of which hints are looked for: beyond, there are none,
for looking takes a microsecond or two each."""

_SETTLED_NS: Final = SETTLED_NS + SERVING.settle_ns


class TakenUp(Struct, frozen=True, kw_only=True):
    """What engines did for the m exchanges that are answered now; None of those of which nothing is known."""

    exchanges: Sequence[Exchange]
    views: Sequence[RequestSteps | None]
    hints: Sequence[Mapping[str, Any]]  # of their own operations
    seed: int

    def has_phases(self, row: int) -> bool:
        """Whether the engine's own phases of an exchange are known."""
        view = self.views[row]
        return view is not None and view.first is not None

    def extras(self, rows: Sequence[int]) -> Extras:
        """What the spans of some of them say besides."""
        if not any(self.views) and not any(self.hints):
            return Extras()
        views = [self.views[row] for row in rows]
        starts = [self.exchanges[row].start_ns for row in rows]
        hints = attributes_of_rows([dict(self.hints[row]) for row in rows])
        return Extras((*request_attributes(views, starts), *hints), request_links(views, self.seed))

    def phases(
        self, parents: Parents, resource_of: Callable[[int], Resource], *, offset_ns: int
    ) -> list[SpanColumns]:
        """Spans of the phases; ``parents`` are the exchanges' own spans."""
        if not any(self.views):
            return []
        return request_phases(
            self.exchanges, self.views, parents, resource_of, seed=self.seed, unix_offset_ns=offset_ns
        )


class StepSession:
    """One session's. ``model_bytes`` and ``bandwidth`` (bytes per second) are 0 where they are not known."""

    def __init__(
        self,
        steps: EngineSteps,
        calls: StepCalls,
        metrics: Metrics,
        totals: Totals,
        resource_of: Callable[[int], Resource],
        context_of: Callable[[int], Context | None],
        *,
        seed: int,
        model_bytes: int,
        bandwidth: int,
    ) -> None:
        self._steps, self._metrics, self._totals = steps, metrics, totals
        self._calls = calls
        self._resource_of, self._context_of = resource_of, context_of
        self._seed = seed
        self._model_bytes, self._bandwidth = model_bytes, bandwidth

    def waits_ns(self, exchange: Exchange) -> int:
        """How long after its end all that an engine has to say of an exchange is known."""
        return _SETTLED_NS if exchange.generation is not None and self._steps.hears_engines else 0

    def match(self, now_ns: int, *, final: bool) -> None:
        """At a tick, before :meth:`take_up`: what engines said until now of the steps they made."""
        self._steps.match(_known_until(now_ns, final=final), final=final)

    def take_up(self, exchanges: Sequence[Exchange], served: Served) -> TakenUp:
        """What engines did for exchanges that have ended, and what their own operations were like."""
        views: Sequence[RequestSteps | None] = [None] * len(exchanges)
        if self._steps.hears_engines or self._steps.has_engines:
            views = [self._steps.answer(exchange) for exchange in exchanges]
        hints: Sequence[Mapping[str, Any]] = [{}] * len(exchanges)
        if 0 < len(served.operations) <= HINTED_ROWS:
            hints = request_hints(served.operations, served.request, len(exchanges), self._calls)
        return TakenUp(exchanges=exchanges, views=views, hints=hints, seed=self._seed)

    def report(self, now_ns: int, *, offset_ns: int, final: bool) -> StepsReport | None:
        """The steps that are known as well as they ever will be; None when there is nothing to report."""
        reported = self._steps.report(_known_until(now_ns, final=final), final=final)
        if not reported.steps and not len(reported.rest):
            return None
        self._measure(reported.steps)
        made = step_spans(
            reported,
            self._context_of,
            self._totals,
            self._resource_of,
            seed=self._seed,
            unix_offset_ns=offset_ns,
            handed_over=self._steps.handed_over,
            mbu=self._utilisation,
        )
        work = unfolded(made.operations, made.step)
        rest = reported.rest if not len(made.rest) else concatenate([reported.rest, made.rest])
        return StepsReport(
            spans=made.spans,
            work=work,
            parents=made.parents,
            rest=rest,
            engine_steps=[engine_step(step) for step in reported.steps],
        )

    def watches(self, tgid: int) -> bool:
        """Whether a process is an engine, as far as is known: no other has steps here."""
        return self._steps.watches(tgid)

    def step_at(self, tgid: int, tid: int, time_ns: int) -> Context | Unsettled | None:
        """The span of the step that a thread was in; UNSETTLED: ask again later."""
        key = self._steps.step_at(tgid, tid, time_ns)
        return step_parents([key], self._seed).context(0) if isinstance(key, StepKey) else key

    def _utilisation(self, step: ServedStep) -> float | None:
        return utilisation(step, self._model_bytes, self._bandwidth)

    def _measure(self, steps: Sequence[ServedStep]) -> None:
        by_process: dict[int, list[ServedStep]] = {}
        for step in steps:
            by_process.setdefault(step.step.tgid, []).append(step)
        for tgid, mine in by_process.items():
            owner = self._resource_of(tgid)
            for found in step_metrics(mine, [self._utilisation(step) for step in mine]):
                self._metrics.add(found.metric, step_names.SCOPE, owner, found.labels, np.array(found.values))


def engine_step(served: ServedStep) -> EngineStep:
    """What of a step others share by."""
    known = served.membership is Membership.KNOWN
    members = tuple((each.exchange, each.tokens_worked_on) for each in served.members) if known else ()
    return EngineStep(served.step.tgid, served.step.start_ns, served.step.end_ns, members)


def _known_until(now_ns: int, *, final: bool) -> int:
    """What workers were given, and is of no step then, is known that much later."""
    return now_ns if final else now_ns - SETTLED_NS
