"""The handler of requests: what it listens to, and when requests are reported. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from otelgpu.engine.attribution.owners import HISTORY_NS
from otelgpu.engine.attribution.pending import Served
from otelgpu.engine.facts import (
    CallsOwned,
    ProcessForgotten,
    RequestsAnswered,
    RequestsGivenUp,
    SettingsChanged,
    TrafficParsed,
)
from otelgpu.engine.folding import Parents
from otelgpu.engine.services import Accounts, Engines, EngineView, Extras, Services
from otelgpu.families.requests.answering.cap import RequestCap
from otelgpu.families.requests.answering.requests import ActiveRequests, RequestTracker, served_by
from otelgpu.families.requests.exchange_signals import SIGNALS
from otelgpu.families.requests.identities import Identities
from otelgpu.model.context import Context, Unsettled
from otelgpu.model.exchange import SERVER, Exchange, Opened
from otelgpu.model.operations import Operations
from otelgpu.model.resource import Resource
from otelgpu.model.spans import SpanColumns


class RequestHandler:
    """Offers the session's requests to all other families."""

    def __init__(self, services: Services) -> None:
        session = services.session
        self._services, self._clock = services, session.clock
        self._attribution, self._summary = session.attribution, session.summary
        self._lineage = session.processes.lineage
        self._serving: set[int] = set()  # processes
        self._next_sweep_ns = 0
        settings = session.settings
        self._identities = Identities(
            session.seed,
            self._serving_request,
            self._count_unserved,
            defer=settings.own_spans == "auto",
            sampler=settings.sampler,
            exclusion=settings.exclusion,
        )
        self._emitter = session.emitter
        self._requests = RequestTracker(
            session.metrics,
            session.totals,
            self._identities,
            SIGNALS,
            lambda: services.offers.engines or _NO_ENGINES,
            lambda: services.offers.accounts or _NO_ACCOUNTS,
            session.processes.resource,
            session.losses.add,
            tail=settings.tail,
            cap=RequestCap(session.span_budget, self._identities.drop),
            fold_work=session.emitter.fold,
            seed=session.seed,
            headroom=session.headroom,
        )
        self._active = ActiveRequests(session.metrics, SIGNALS.scope, session.processes.resource)
        session.attribution.hold_for_requests = self._hold
        services.offers.requests = self
        services.listen(TrafficParsed, self._take)
        services.listen(SettingsChanged, self._change)
        services.listen(ProcessForgotten, lambda fact: self.end_process(fact.tgid, 0))

    # -- offered to other families --------------------------------------------------------------------------

    def context_of(self, key: int) -> Context | None:
        """The span that a request has or will have; None where it is not to be reported."""
        return self._identities.context(key)

    def span_of(self, key: int) -> Context | Unsettled | None:
        """The span of a request once that is reported; UNSETTLED: not answered yet."""
        return self._requests.span_of(key)

    def is_finished(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which keys are of requests that were reported."""
        return self._requests.is_finished(keys)

    def finished(self, key: int) -> Parents | None:
        """The span of a request that was reported."""
        return self._requests.finished(key)

    def serves(self, tgid: int) -> bool:
        """Whether a process or an ancestor of it answers requests, as with the workers of engines."""
        return not self._serving.isdisjoint(self._lineage(tgid))

    # -- input ----------------------------------------------------------------------------

    def _serving_request(self, opened: Opened) -> int:
        """The request that a client's task, or else its thread, worked for; 0 for none, UNSETTLED: known later."""
        if opened.task:
            times_ns = opened.asked or (opened.start_ns,)
            return self._attribution.owner_by_task(opened.tgid, opened.tid, opened.task, times_ns)
        return max(self._attribution.timeline.owner(opened.tid, opened.start_ns), 0)

    def _count_unserved(self, opened: Opened) -> None:
        """A client's request is of none that its process serves, as far as is known."""
        if not opened.task and self._attribution.multiplexed.is_under_way(opened.tgid, opened.start_ns):
            self._services.session.losses.add("correlate", "requests_multiplexed", 1)
            runtimes = self._attribution.multiplexed.runtimes_of(opened.tgid)
            self._summary.requests_multiplexed[runtimes] += 1

    def _take(self, fact: TrafficParsed) -> None:
        self._serving.update(each.tgid for each in fact.opened if each.role is SERVER)
        self._requests.take(fact)
        self._active.take(fact)

    def _change(self, fact: SettingsChanged) -> None:
        self._identities.sampler, self._identities.exclusion = fact.settings.sampler, fact.settings.exclusion
        self._requests.tail = fact.settings.tail

    def _hold(self, rows: Operations, owners: npt.NDArray[np.int64]) -> None:
        self._services.wake()
        self._services.emit(CallsOwned(rows, owners))
        late = self._requests.add(rows, owners)
        if late is not None:
            self._services.report_work(*late)

    # -- output ---------------------------------------------------------------------------

    def tick(self, now_ns: int, *, final: bool) -> Iterable[SpanColumns]:
        """Report the requests that are complete, and give up those that will not be answered."""
        self._active.report()
        self._answer(final=final)
        self._give_up(now_ns, final=final)
        if self._requests.is_waiting:
            self._services.wake()
        return ()

    def _answer(self, *, final: bool) -> None:
        offset_ns = self._clock.offset_ns
        answered = self._requests.answer(self._attribution.answerable_ns, offset_ns=offset_ns, final=final)
        if answered is None:
            return
        reported = answered.contexts
        self._summary.add_exchanges(served_by(answered.exchanges))
        self._services.report(answered.spans)
        self._services.emit(
            RequestsAnswered(
                exchanges=answered.exchanges,
                boundary=answered.boundary,
                with_work=answered.with_work,
                parents=reported.parents,
            )
        )
        if answered.work is not None:
            self._services.report(self._emitter.report(answered.work, offset_ns=offset_ns))

    def _give_up(self, now_ns: int, *, final: bool) -> None:
        """What they caused is reported as unattributed."""
        if not final and now_ns < self._next_sweep_ns:
            return
        self._next_sweep_ns = now_ns + HISTORY_NS // 8
        held = () if final else self._attribution.timeline.held()
        keys, left = self._requests.give_up(now_ns - HISTORY_NS, held, final=final)
        self._services.emit(RequestsGivenUp(keys))
        self._attribution.abandon_unanswered(left)

    def end_process(self, tgid: int, time_ns: int) -> None:
        """A process ended; all its requests have been reported."""
        self._requests.forget_process(tgid)
        self._active.forget_process(tgid)
        self._serving.discard(tgid)


class _NoEngines:
    """Used where no family offers engines."""

    def match(self, now_ns: int, *, final: bool) -> None:
        """Nothing to match."""

    def waits_ns(self, exchange: Exchange) -> int:
        """Nothing to wait for."""
        return 0

    def take_up(self, exchanges: Sequence[Exchange], served: Served) -> EngineView:
        """A view without phases."""
        return _NoView()


class _NoView:
    def has_phases(self, row: int) -> bool:
        return False

    def extras(self, rows: Sequence[int]) -> Extras:
        return Extras()

    def phases(
        self, parents: Parents, resource_of: Callable[[int], Resource], *, offset_ns: int
    ) -> list[SpanColumns]:
        return []


class _NoAccounts:
    """Used where nothing is shared among requests."""

    def is_known(self, exchange: Exchange) -> bool:
        """Nothing to wait for."""
        return True

    def close(self, exchanges: Sequence[Exchange]) -> Sequence[Mapping[str, Any]]:
        """None of them used anything."""
        return [{}] * len(exchanges)


_NO_ENGINES: Engines = _NoEngines()
_NO_ACCOUNTS: Accounts = _NoAccounts()
