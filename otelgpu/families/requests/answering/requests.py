"""The open requests of a session, from their first byte to their spans.

In: parsed traffic, and operations with the request that each belongs to. Out: when requests are complete, their
spans, metrics, and the operations under them. Work waits with its request until that is answered, within the
bounds of :class:`~otelgpu.engine.attribution.pending.PendingOperations`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.engine.attribution.owners import HISTORY_NS, only
from otelgpu.engine.attribution.pending import SLOTS, PendingOperations, Served, phase_of
from otelgpu.engine.exchange_signals import ExchangeSignals
from otelgpu.engine.facts import TrafficParsed
from otelgpu.engine.folding import Folded, Parents, unfolded
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.operation_spans import FoldedWork
from otelgpu.engine.services import Accounts, Engines, EngineView, Extras
from otelgpu.engine.span_budget import CAPPED_OPERATIONS
from otelgpu.engine.totals import Totals
from otelgpu.families.requests.answering.cap import RequestCap
from otelgpu.families.requests.first_tokens import SlowFirstTokens, service_of
from otelgpu.families.requests.identities import (
    CAPPED,
    EXCLUDED,
    SAMPLED_OUT,
    Identities,
    exports_telemetry,
)
from otelgpu.families.requests.routes import Routes
from otelgpu.families.requests.signals.http import ACTIVE_REQUESTS, method_label, scheme
from otelgpu.families.requests.spans import (
    ExchangeContexts,
    boundaries,
    contexts,
    exchange_spans,
    parents_of,
)
from otelgpu.model.codes import distinct
from otelgpu.model.context import NO_CONTEXT, UNSETTLED, Context, Unsettled
from otelgpu.model.exchange import CLIENT, SERVER, Exchange, Opened
from otelgpu.model.losses import Reasons
from otelgpu.model.operations import Operations
from otelgpu.model.resource import Resource
from otelgpu.model.sampling import TailRule
from otelgpu.model.shares import Headroom
from otelgpu.model.spans import SpanColumns, attributes_of_rows

REASONS: Final = Reasons(
    "correlate",
    {
        "late_operations": "a call that arrived after its request had been reported; it is exported, but missing from "
        "the request's totals",
        "unanswered_requests": "a request with calls whose response was never seen: they are reported as "
        "unattributed, and why it has none is counted beside it",
        "unsampled_requests": "a request whose `traceparent` says that it is not sampled; no span",
        SAMPLED_OUT: "a request, or one that was sent for it, that `traces_sampler` left out: it is in the "
        "metrics, and has no span",
        EXCLUDED: "a request, or one that was sent for it, that `traces_exclude_paths` or "
        "`traces_exclude_user_agents` left out: it is in the metrics, and has no span",
        CAPPED: "a request that there was no room for by `traces_spans_per_second`, or one that was sent for it: it is "
        "in the metrics, and has no span",
        "requests_multiplexed": "a request that a process sent, without a `traceparent`, while it had some to answer "
        "and its runtime interleaves these: which of them it was sent for is not known, and it begins a trace",
        "operations_not_kept": "a call summed into its request without a span of its own",
    },
    intended=("unsampled_requests", SAMPLED_OUT, EXCLUDED, CAPPED),
)
"""What one count of (``correlate``, reason) means."""

HTTP_REASONS: Final = Reasons(
    "http",
    {
        "telemetry_exports": "a request that carried telemetry (OTLP): it has no span",
    },
    intended=("telemetry_exports",),
)
"""What one count of (``http``, reason) means."""

_FOREVER_NS: Final = 1 << 63
_WAITING: Final = 65_536
"""Exchanges that wait to be known whose they are; of more none waits."""

Loss = Callable[[str, str, int], None]
"""Family, reason, how many."""


class Answered(Struct, frozen=True, kw_only=True):
    """The m requests that were complete."""

    exchanges: Sequence[Exchange]
    contexts: ExchangeContexts
    boundary: npt.NDArray[np.uint64]  # between their phases
    spans: list[SpanColumns]
    work: FoldedWork | None  # their operations; None: there are none
    with_work: npt.NDArray[np.bool_]  # (m,): whether they and their operations are reported


class RequestTracker:
    """Those of one session. ``resource_of`` gives a process's resource; ``loss`` counts what is not reported.

    ``tail`` says which are wanted most, ``cap`` what there is room for, ``fold_work`` as what operations are reported.
    """

    def __init__(
        self,
        metrics: Metrics,
        totals: Totals,
        identities: Identities,
        signals: ExchangeSignals,
        engines: Callable[[], Engines],
        accounts: Callable[[], Accounts],
        resource_of: Callable[[int], Resource],
        loss: Loss,
        *,
        tail: TailRule,
        cap: RequestCap,
        fold_work: Callable[[Folded, Parents], FoldedWork],
        seed: int,
        headroom: Headroom,
    ) -> None:
        self._metrics, self._totals = metrics, totals
        self._identities = identities
        self._engines, self._accounts = engines, accounts
        self._resource_of, self._loss = resource_of, loss
        self.tail, self._cap, self._fold_work = tail, cap, fold_work
        self._first_tokens = SlowFirstTokens()
        self._seed = seed
        self._signals = signals
        self._routes = Routes()
        self._pending: PendingOperations[Context] = PendingOperations(
            totals.by_group, len(totals), headroom=headroom
        )
        self._exchanges: list[Exchange] = []

    def take(self, activity: TrafficParsed) -> None:
        """Take what was parsed on connections."""
        for opened in activity.opened:
            self._identities.open(opened)
        for named in activity.named:
            self._identities.publish(named.key, named.tgid, named.published)
        for key in activity.shed:
            self._identities.forget(key)
        for exchange in activity.exchanges:
            self._identities.note(exchange)
        self._exchanges += activity.exchanges

    def add(self, rows: Operations, owners: npt.NDArray[np.int64]) -> tuple[Folded, Parents] | None:
        """Keep operations of open requests: ``owners`` > 0. Those of requests that were reported are returned.

        They are reported under the request's own span.
        """
        answered = self._pending.add(rows, owners)
        return None if answered is None else self._late(rows.compress(answered), owners[answered])

    def _late(self, rows: Operations, owners: npt.NDArray[np.int64]) -> tuple[Folded, Parents]:
        self._loss("correlate", "late_operations", len(rows))
        keys, group = distinct(owners)
        contexts_of = [self._pending.finished(key) for key in keys.tolist()]
        reported = np.array([context is not None for context in contexts_of])[group]
        late = unfolded(rows.compress(reported), group[reported])
        return late, parents_of([context or NO_CONTEXT for context in contexts_of])

    def is_finished(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which keys are of requests that were reported."""
        return self._pending.is_finished(keys)

    def finished(self, key: int) -> Parents | None:
        """The span of a request that was reported."""
        context = self._pending.finished(key)
        return None if context is None else parents_of([context])

    def span_of(self, key: int) -> Context | Unsettled | None:
        """The span of a request once it is reported; None if it will not be; UNSETTLED: not answered yet."""
        if not self._pending.is_finished(np.array([key], dtype=np.int64))[0]:
            return UNSETTLED
        return self._pending.finished(key)

    def answer(
        self,
        now_ns: int,
        *,
        offset_ns: int,
        final: bool,
    ) -> Answered | None:
        """Report the requests that were complete by ``now_ns``."""
        steps, accounts = self._engines(), self._accounts()
        steps.match(now_ns, final=final)
        waiting, self._exchanges = self._exchanges, []
        done: list[Exchange] = []
        given_up_ns = now_ns - HISTORY_NS if len(waiting) <= _WAITING else now_ns
        for each in waiting:
            ready = final or each.end_ns + steps.waits_ns(each) <= now_ns
            ready = ready and (
                final
                or each.end_ns <= given_up_ns
                or (self._identities.is_settled(each) and accounts.is_known(each))
            )
            (done if ready else self._exchanges).append(each)
        if not done:
            return None
        done = self._without_exports(done)
        wanted = [self._wants(each) for each in done]
        routes = [self._routes.route(e.tgid, e.path) for e in done]
        served = self._pending.take([e.key for e in done])
        engines = steps.take_up(done, served)
        used = accounts.close(done)
        boundary = boundaries(done, engines.has_phases)
        slots = phase_of(boundary, served)
        found = [self._identities.of(e, wanted=more) for e, more in zip(done, wanted, strict=True)]
        if limited := self._cap.budget.per_second > 0:
            found = self._cap.choose(done, found, wanted, boundary)
        reported = contexts(done, found, self._seed)
        work, with_work, left_out = self._work(served, slots, reported), reported.sampled, 0 * served.dropped
        if limited:
            work, with_work, left_out = self._cap.cut(work, reported, wanted)
        spans = exchange_spans(
            done,
            routes,
            reported,
            self._sums(done, served, slots),
            self._totals,
            served.dropped + left_out,
            self._resource_of,
            self._signals,
            boundary=boundary,
            unix_offset_ns=offset_ns,
            extras_of=partial(_extras, engines, used),
        )
        spans += engines.phases(reported.of_exchanges(), self._resource_of, offset_ns=offset_ns)
        self._measure(done, routes, reported, offset_ns)
        for exchange, context in zip(done, reported.of_requests(), strict=True):
            self._pending.remember(exchange.key, context)
        self._count_left_out(served, reported, left_out)
        return Answered(
            exchanges=done,
            contexts=reported,
            boundary=boundary,
            spans=spans,
            work=work,
            with_work=with_work,
        )

    def _wants(self, exchange: Exchange) -> bool:
        """Whether a request is wanted most; asked once, for its first token is what later ones are compared with."""
        rule, seconds = self.tail, exchange.time_to_first_token_s
        wanted = rule.keeps(exchange.error_type, seconds)
        if rule.slow_first_token_quantile and seconds is not None:
            service = service_of(exchange, self._resource_of(exchange.tgid))
            wanted |= self._first_tokens.add(service, seconds, rule.slow_first_token_quantile)
        return wanted

    def _work(
        self, served: Served, slots: npt.NDArray[np.int64], reported: ExchangeContexts
    ) -> FoldedWork | None:
        if not len(served.operations):
            return None
        sampled = reported.sampled[served.request]
        return self._fold_work(unfolded(*only(sampled, served.operations, slots)), reported.parents)

    def _count_left_out(
        self, served: Served, reported: ExchangeContexts, operations: npt.NDArray[np.int64]
    ) -> None:
        self._loss("correlate", "operations_not_kept", int(served.dropped.sum()))
        self._loss("correlate", CAPPED_OPERATIONS, int(operations.sum()))
        requests = Counter(identity.left_out for identity in reported.identities if identity.left_out)
        for reason, count in requests.items():
            self._loss("correlate", reason, count)
        self._loss("correlate", "unsampled_requests", int((~reported.sampled).sum()) - requests.total())

    def _without_exports(self, done: list[Exchange]) -> list[Exchange]:
        """Without exports of telemetry: they are no work of the service that sends or receives them."""
        kept = [e for e in done if not exports_telemetry(e)]
        if len(kept) < len(done):
            self._loss("http", "telemetry_exports", len(done) - len(kept))
        return kept

    def _sums(
        self, done: Sequence[Exchange], served: Served, slots: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        sums = self._totals.by_group(served.operations, slots, len(done) * SLOTS)
        sums[::SLOTS] = sums.reshape(len(done), SLOTS, len(self._totals)).sum(axis=1) + served.beyond
        for position in np.flatnonzero(served.dropped).tolist():
            # A phase's sums would lack the operations that were not kept; the request's own are exact.
            sums[position * SLOTS + 1 : (position + 1) * SLOTS] = 0
        return sums

    def _measure(
        self, done: Sequence[Exchange], routes: Sequence[str], reported: ExchangeContexts, offset_ns: int
    ) -> None:
        exemplars = [
            None if context is None else (context, exchange.end_ns + offset_ns)
            for exchange, context in zip(done, reported.of_requests(), strict=True)
        ]
        of_process: dict[int, list[int]] = {}
        for row, exchange in enumerate(done):
            of_process.setdefault(exchange.tgid, []).append(row)
        for tgid, rows in of_process.items():
            owner = self._resource_of(tgid)
            mine = [done[row] for row in rows]
            for found in self._signals.metrics(mine, [routes[row] for row in rows]):
                values = np.array(found.values)
                self._metrics.add(found.metric, self._signals.scope, owner, found.labels, values)
                spans = [exemplars[rows[row]] for row in found.rows]
                self._metrics.exemplify(found.metric, owner, found.labels, found.values, spans)

    @property
    def is_waiting(self) -> bool:
        """Whether anything may still be reported, or given up."""
        return bool(self._exchanges) or self._pending.is_holding

    def give_up(self, before_ns: int, held: Collection[int], *, final: bool) -> tuple[list[int], Operations]:
        """Give up requests that will not be answered; return their keys and operations."""
        keys = self._pending.stale(_FOREVER_NS if final else before_ns, held)
        served = self._pending.take(keys)
        self._loss("correlate", "unanswered_requests", len(keys))
        self._loss("correlate", "operations_not_kept", int(served.dropped.sum()))
        return keys, served.operations

    def forget_process(self, tgid: int) -> None:
        """A process has ended."""
        self._routes.forget(tgid)
        self._identities.forget_process(tgid)


class _Active(NamedTuple):
    tgid: int
    owner: Resource
    method: str
    scheme: str


class ActiveRequests:
    """Requests that servers are at now, as ``http.server.active_requests`` has it: by process, method and scheme.

    One begins when its head was read, and ends when its exchange does, however that ends: answered, broken off, or
    given up for want of memory. ``resource_of`` gives a process's resource.
    """

    def __init__(self, metrics: Metrics, scope: str, resource_of: Callable[[int], Resource]) -> None:
        self._metrics, self._scope, self._resource_of = metrics, scope, resource_of
        self._series: dict[int, _Active] = {}  # by Exchange.key, of those that are open
        self._open: Counter[_Active] = Counter()
        self._changed: set[_Active] = set()

    def take(self, activity: TrafficParsed) -> None:
        """Take what was parsed."""
        for opened in activity.opened:
            if opened.role is SERVER and opened.method and opened.key not in self._series:
                self._begin(opened)
        for exchange in activity.exchanges:
            self._end(exchange.key)
        for key in activity.shed:
            self._end(key)

    def _begin(self, opened: Opened) -> None:
        owner = self._resource_of(opened.tgid)
        series = _Active(opened.tgid, owner, method_label(opened.method), scheme(opened))
        self._series[opened.key] = series
        self._open[series] += 1
        self._changed.add(series)

    def _end(self, key: int) -> None:
        series = self._series.pop(key, None)
        if series is not None:
            self._open[series] -= 1
            self._changed.add(series)

    def report(self) -> None:
        """Bring the series up to date."""
        for series in self._changed:
            labels = {"http.request.method": series.method, "url.scheme": series.scheme}
            self._metrics.set(ACTIVE_REQUESTS, self._scope, series.owner, labels, self._open[series])
            if not self._open[series]:
                del self._open[series]
        self._changed.clear()

    def forget_process(self, tgid: int) -> None:
        """A process has ended: what it had open has been reported."""
        self._series = {key: series for key, series in self._series.items() if series.tgid != tgid}
        self._changed = {series for series in self._changed if series.tgid != tgid}
        for series in [series for series in self._open if series.tgid == tgid]:
            del self._open[series]


def _extras(engines: EngineView, used: Sequence[Mapping[str, Any]], rows: Sequence[int]) -> Extras:
    """What engines and accounts say of some requests."""
    found = engines.extras(rows)
    if not any(used):
        return found
    return Extras((*found.attributes, *attributes_of_rows([dict(used[row]) for row in rows])), found.links)


def served_by(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Those that a server answered: the client's span of the same request is not counted again."""
    return [exchange for exchange in exchanges if exchange.role is not CLIENT]
