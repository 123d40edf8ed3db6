"""The engine: inputs in, spans and metrics out, the same live and in replay. It iterates handlers and knows none.

Work is done at ticks. A tick at time T promises that every record submitted before T has been fed; what ended by T is
therefore complete, and so is what its threads did before. The order in a tick is declared in
:class:`~otelgpu.engine.contract.Phase`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from otelgpu.elf.btf import Btf
from otelgpu.engine import names, registry
from otelgpu.engine.attribution.owners import HISTORY_NS, Attribution
from otelgpu.engine.attribution.pending import OPERATIONS_PER_REQUEST
from otelgpu.engine.attribution.threads import ThreadTimeline
from otelgpu.engine.attribution.unattributed import UnattributedWindows
from otelgpu.engine.call_families import call_families
from otelgpu.engine.call_roles import StepCalls
from otelgpu.engine.call_stacks import CallStacks
from otelgpu.engine.contract import Family, Phase
from otelgpu.engine.facts import (
    DetailRaised,
    HandedOff,
    ProcessDescribed,
    ProcessForgotten,
    ProgramReplaced,
    SettingsChanged,
    TrafficParsed,
)
from otelgpu.engine.folding import Folded, Parents
from otelgpu.engine.function_names import FunctionNames
from otelgpu.engine.generations import Generations
from otelgpu.engine.handlers import Handlers
from otelgpu.engine.losses import Losses
from otelgpu.engine.metrics import POINTS_AT_ONCE, Metrics
from otelgpu.engine.operation_intake import OperationIntake, decoded
from otelgpu.engine.operation_metrics import OperationMeter
from otelgpu.engine.operation_spans import OperationEmitter, Vocabulary
from otelgpu.engine.processes import Processes
from otelgpu.engine.services import Clock, Offers, Routes, Session, Slot
from otelgpu.engine.span_budget import CAPPED_OPERATIONS, Claim, SpanBudget, by_randomness
from otelgpu.engine.summary import Summary
from otelgpu.engine.top_kernels import TopKernels
from otelgpu.engine.totals import Totals
from otelgpu.model.events import Event
from otelgpu.model.inputs import (
    Batch,
    CallsCounted,
    CallsUnobserved,
    ClockAnchor,
    FunctionNamed,
    Input,
    LossCounted,
    ProcessGone,
    ProcessSeen,
    RecordsLost,
    RuntimesSeen,
    Tick,
)
from otelgpu.model.operations import OperationKind, Operations
from otelgpu.model.process_numbers import process_id
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.profiling import ProfileSettings
from otelgpu.model.resource import Resource
from otelgpu.model.settings import Detail, SignalSettings
from otelgpu.model.shares import Headroom, described
from otelgpu.model.spans import SpanBatch

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

Spans = Iterable[SpanBatch]
"""Batches that are made as they are taken, once: each is still in the cache when it is encoded."""

SPANS_PER_PARENT: Final[Mapping[Detail, int]] = {"phases": 1, "ops": 512, "all": OPERATIONS_PER_REQUEST}
"""Operation spans under one phase, request or window; calls beyond it are merged and counted."""

_ENGINE: Final = "correlate"
_AHEAD_NS: Final = 1_000_000_000
"""A collection reads what came while it read, which is of this length at most; what is further ahead is no time."""
_MOST_AHEAD: Final = 65_536
"""Operations of a family that began after a tick and wait for the next; of more, the others do not wait."""

_log: Final = logging.getLogger("otelgpu.pipeline")


class Pipeline:
    """One session.

    ``families`` are those with records, ``btf`` is the record description of each; families that have none are part
    of every session. ``seed`` makes ids reproducible, ``own`` is the resource of this program itself,
    ``start_unix_ns`` is where cumulative metrics begin. ``stopwatch``: nanoseconds, where it must keep up with
    what comes. ``headroom``: how much may be held. ``reporting`` and ``profiling`` are what was asked for.
    """

    def __init__(
        self,
        families: Mapping[str, Family],
        btf: Mapping[str, Btf],
        *,
        seed: int,
        own: Resource,
        start_unix_ns: int,
        settings: SignalSettings = SignalSettings(),  # noqa: B008 (immutable)
        profiling: ProfileSettings = ProfileSettings(),  # noqa: B008 (immutable)
        shorten: Callable[[str], str] = str,
        demangle: Callable[[str, int], str] = lambda name, tgid: name,
        stopwatch: Callable[[], int] | None = None,
        headroom: Headroom | None = None,
    ) -> None:
        headroom = headroom or Headroom()
        self.own = own
        self._detail: Detail = settings.detail
        called = {name: each.operations for name, each in families.items() if each.operations is not None}
        call_families(btf)  # no two are taken for each other
        self._decoders = {name: each.decoder(btf[name], settings) for name, each in called.items()}
        self._family_index = {name: index for index, name in enumerate(called)}
        operations = [(self._decoders[name], each.signals) for name, each in called.items()]
        self._processes = Processes(own)
        self._generations = Generations()
        known = self._functions = FunctionNames(shorten)
        self.vocabulary = Vocabulary(
            families=operations, kernels=known.full, short_kernels=known.short, places=known.places
        )
        self._operations = OperationEmitter(self.vocabulary, self._processes.resource, seed=seed)
        limit = settings.spans_per_parent or SPANS_PER_PARENT[self._detail]
        self._operations.keep(self._detail, limit)
        self.metrics = Metrics(start_unix_ns, own, headroom=headroom)
        top = TopKernels(settings.kernel_metrics, known.full) if settings.kernel_metrics else None
        self._meter = OperationMeter(self.metrics, operations, self._processes.resource, top)
        self.summary = Summary()
        self._losses = Losses(self.metrics, self.summary, own)
        self._timeline = ThreadTimeline()
        totals = Totals(operations)
        self._windows = UnattributedWindows(totals, limit=limit, runs=self._detail != "all")
        self._routes = Routes(self._report_work)
        self._attribution = Attribution(self._timeline, self._windows, self.summary, self._report_work)
        self._intake = OperationIntake(
            self._routes, self._attribution, known, self.vocabulary, self._meter, self.summary
        )
        self._listen()
        self._clock = Clock()
        self._session = Session(
            settings=settings,
            profiling=profiling,
            limit=limit,
            seed=seed,
            own=own,
            clock=self._clock,
            metrics=self.metrics,
            processes=self._processes,
            functions=self._functions,
            vocabulary=self.vocabulary,
            totals=totals,
            summary=self.summary,
            attribution=self._attribution,
            call_roles=StepCalls([decoder.apis for decoder, _ in operations]),
            call_stacks=CallStacks(),
            demangle=lambda name, number: demangle(name, process_id(number)),
            operations=operations,
            family_index=self._family_index,
            offers=Offers(),
            losses=self._losses,
            headroom=headroom,
            emitter=self._operations,
            span_budget=SpanBudget(settings.spans_per_second),
            stopwatch=stopwatch,
        )
        self.handlers = Handlers({**registry.without_records(), **families}, btf, self._session, self._routes)
        self._gone: list[ProcessGone] = []
        self._batches: dict[str, list[Batch]] = {}  # of calls, by family, since the last tick
        self._ahead: dict[str, list[Operations]] = {}  # by family, what began after the last tick

    def _listen(self) -> None:
        """Have what the engine itself is told."""
        engine = Slot(_ENGINE)
        self._routes.listen(engine, TrafficParsed, lambda fact: self._attribution.take(fact.assignments))
        self._routes.listen(engine, TrafficParsed, lambda fact: self._attribution.take_tasks(fact.tasks))
        self._routes.listen(engine, HandedOff, lambda fact: self._attribution.hand_off(fact.handoffs))
        self._routes.listen(engine, FunctionNamed, self._name)
        self._routes.listen(engine, DetailRaised, self._raise)
        self._routes.listen(engine, RuntimesSeen, self._attribution.multiplexed.learn)

    # -- inputs -----------------------------------------------------------------------------------

    def feed(self, item: Input) -> Spans:
        """Take one input. Spans come out at ticks only, and are made as they are taken."""
        if self._generations.numbers or isinstance(item, ProcessSeen | ProcessGone):
            item = self._generations.renumber(item)
        match item:
            case Batch():
                if item.family in self._decoders:
                    self._batches.setdefault(item.family, []).append(item)
                self.handlers.take(item)
                return ()
            case Tick():
                return self._tick(item.time_ns, final=False)
            case ProcessGone():
                self._gone.append(item)
                return ()
            case ClockAnchor():
                self._clock.offset_ns = item.unix_ns - item.monotonic_ns
            case ProcessSeen():
                self._see(item)
            case LossCounted():
                self._losses.add(item.family, item.reason, item.count)
            case RecordsLost():
                owner = self._processes.resource(item.tgid)
                self._losses.add_of_process(owner, item.family, item.count)
            case CallsUnobserved():
                owner = self._processes.resource(item.tgid)
                self._losses.add_unobserved(owner, item.family, item.duration_ns)
            case CallsCounted():
                self._count_calls(item)
        self._routes.emit(item)
        return ()

    @property
    def due_ns(self) -> int:
        """When there is something to do that no input asks for, CLOCK_MONOTONIC; 0: at the next tick.

        What only forgets is not meant: it can wait.
        """
        if self._gone or self._batches or self._ahead or self._attribution.is_waiting:
            return 0
        return min(self.handlers.due_ns, self._routes.due_ns, self._windows.due_ns)

    def finish(self) -> Spans:
        """Everything that is complete or never will be; unanswered requests are counted."""
        return self._tick(self._clock.now_ns, final=True)

    def take_profiles(self) -> list[ProfileColumns]:
        """The profiles of the intervals that have ended; after each input that is a tick, and at the end."""
        done, self._routes.profiles = self._routes.profiles, []
        return done

    def take_events(self) -> list[Event]:
        """What happened since the last call; likewise."""
        done, self._routes.events = self._routes.events, []
        return done

    def read_metrics(self) -> tuple[MetricsData, int]:
        """All metrics as of the last tick, and how many data points; processes that ended are in it once more."""
        (whole,) = self.metric_parts(most=sys.maxsize)
        return whole

    def metric_parts(self, *, most: int = POINTS_AT_ONCE) -> Iterator[tuple[MetricsData, int]]:
        """The same in parts, each as of the tick before it is asked for: see :meth:`Metrics.parts`."""
        self.handlers.publish(self.metrics)
        departed = self._processes.take_departed()
        return self.metrics.parts(
            lambda: self._clock.now_ns + self._clock.offset_ns, departed=departed, most=most
        )

    def thread_contexts(self) -> dict[tuple[int, int], tuple[bytes, bytes]]:
        """The trace and span that each thread works for as of the last tick, by (tgid, tid)."""
        of = self._session.offers.context_of
        found = ((number, tid, of(key)) for number, tid, key in self._timeline.current())
        return {
            (process_id(number), tid): (context.trace_id, context.span_id)
            for number, tid, context in found
            if context is not None and context.sampled
        }

    def read_own_metrics(self) -> MetricsData:
        """What this program reports of itself, as of the last tick."""
        now_ns = self._clock.now_ns + self._clock.offset_ns
        return self.metrics.read(now_ns, (self.own, names.SELF_SCOPE))[0]

    @property
    def tracked(self) -> dict[str, int]:
        """How many of what is remembered while it lasts there are."""
        found = {"process": len(self._processes), "request": len(self._timeline.held())}
        return found | {noun: count() for noun, count in self._session.offers.tracked.items()}

    @property
    def awaits_readings(self) -> bool:
        """Whether something is shared by what devices read in short intervals, as long as it is under way."""
        return self._session.offers.awaits_readings()

    def reconfigure(self, settings: SignalSettings) -> None:
        """Report in another detail, and another share of the collectives, from the next tick on."""
        self._detail = settings.detail
        self._session.span_budget.keep(settings.spans_per_second)
        limit = settings.spans_per_parent or SPANS_PER_PARENT[self._detail]
        self._operations.keep(self._detail, limit)
        self._windows.keep(limit, runs=self._detail != "all")
        self._routes.emit(SettingsChanged(settings=settings, limit=limit))

    def _raise(self, fact: DetailRaised) -> None:
        raised = {tgid: (detail, SPANS_PER_PARENT[detail]) for tgid, detail in fact.levels.items()}
        self._operations.raise_detail(raised)
        self._windows.raise_limits(
            {tgid: (limit, detail != "all") for tgid, (detail, limit) in raised.items()}
        )

    def _see(self, seen: ProcessSeen) -> None:
        before = self._processes.known(seen.tgid) if seen.same_program else None
        self.metrics.rename(before, seen.resource)
        if seen.payer:
            self.metrics.charge(seen.resource, seen.tgid, seen.payer)
        self._routes.emit(ProcessDescribed(before=before, after=seen.resource))
        if self._processes.see(seen):  # it exec'd
            self._routes.emit(ProgramReplaced(tgid=seen.tgid, time_ns=seen.time_ns))
        self._attribution.multiplexed.see(seen)
        if before is None:
            self._functions.forget(seen.tgid)

    def _name(self, answer: FunctionNamed) -> None:
        if not self._functions.learn(answer):
            self._losses.add("symbols", "kernel_names_full", 1)

    def _count_calls(self, counted: CallsCounted) -> None:
        """Calls without records: they are in the metrics that count calls, and nowhere else."""
        family = self._family_index.get(counted.family)
        if family is not None:
            owner = self._processes.resource(counted.tgid) if counted.tgid else self.own
            self._meter.count(family, OperationKind(counted.kind), counted.api, owner, counted.count)
            self.summary.add_counted(counted.api, counted.count)

    # -- ticks ------------------------------------------------------------------------------------

    def _tick(self, now_ns: int, *, final: bool) -> Spans:
        clock = self._clock
        clock.now_ns = now_ns = max(now_ns, clock.now_ns)
        tick, ended = self.handlers.tick, self._gone
        for gone in ended:
            self._routes.emit(gone)
        if (budget := self._session.span_budget).per_second:
            budget.fill(now_ns)
        self._routes.begin_tick(now_ns, final=final)
        self._decode(now_ns, final=final)
        tick(Phase.MEMORY, Phase.CONNECTIONS, now_ns, final=final)
        self._close_windows(final=final)
        clock.final = final
        tick(Phase.PROFILES, Phase.PROFILES, now_ns, final=final)
        self._gone = []
        for gone in ended:
            self._forget(gone.tgid)
            self.handlers.end_process(gone.tgid, gone.time_ns)
            self._processes.end(gone)
        for tgid in self._processes.expire(now_ns):
            self._forget(tgid)  # anew: something of it may have come since its end
            self._routes.emit(ProcessForgotten(tgid))
        self._attribution.forget_before(now_ns - HISTORY_NS)
        if counters := self._attribution.counters:
            self._losses.follow(_ENGINE, counters)
        if counters := self.metrics.counters:
            self._losses.follow("metrics", counters)
            if found := self.metrics.refused.due(now_ns):
                _log.warning("%s has its share of series; others have theirs", described(found))
        self.handlers.count_losses(self._losses)
        done, self._routes.spans = self._routes.spans, []
        spans = chain.from_iterable(done)
        return budget.paid(spans) if budget.per_second else spans

    def _decode(self, now_ns: int, *, final: bool) -> None:
        """The operations since the last tick, and those that waited for their owners.

        What began after the tick is for the next one: who reads records may not have had all that say whose it is.
        """
        batches, self._batches = self._batches, {}
        self._attribution.settle(now_ns, final=final)
        if not (batches or self._ahead):
            return
        for family in {**self._ahead, **batches}:
            fresh = decoded(self._decoders[family], batches.get(family, ()))
            for rows in (*self._ahead.pop(family, ()), *fresh):
                begun = rows if final else self._begun(family, rows, now_ns)
                if len(begun):
                    self._intake.take(begun, self._family_index[family])
        self._intake.settle()

    def _begun(self, family: str, rows: Operations, now_ns: int) -> Operations:
        """Those that began by a tick, or so long after it that no later one is to be waited for; the others wait.

        Of a process that has ended none does: what is known of it is given up after this tick.
        """
        starts = rows["start_ns"]
        if int(starts.max(initial=0)) <= now_ns:
            return rows
        ahead = (starts > now_ns) & (starts <= now_ns + _AHEAD_NS)
        if self._gone:
            ahead &= ~np.isin(rows["tgid"], [gone.tgid for gone in self._gone])
        waiting = self._ahead.get(family, ())
        if not ahead.any() or sum(map(len, waiting)) > _MOST_AHEAD:
            return rows
        self._ahead.setdefault(family, []).append(rows.compress(ahead))
        return rows.compress(~ahead)

    def _forget(self, tgid: int) -> None:
        self._attribution.forget_process(tgid)
        self._functions.forget(tgid)

    def _close_windows(self, *, final: bool) -> None:
        clock, seed = self._clock, self._session.seed
        closed = self._windows.close(
            clock.now_ns, self._processes.resource, seed=seed, offset_ns=clock.offset_ns, final=final
        )
        if closed is not None:
            self._routes.spans.append(closed.roots)
            self._report_work(closed.work, closed.parents)

    def _report_work(self, work: Folded, parents: Parents) -> None:
        if not len(work):
            return
        folded = self._operations.fold(work, parents)
        if (budget := self._session.span_budget).per_second:
            every = np.arange(len(parents.flags))
            sizes = folded.sizes(every, len(every))
            admitted = budget.admit(Claim.WORK, sizes, by_randomness(parents))
            folded, left_out = folded.cut(every, admitted)
            self._losses.add(_ENGINE, CAPPED_OPERATIONS, int(left_out.sum()))
        self._routes.spans.append(self._operations.report(folded, offset_ns=self._clock.offset_ns))
