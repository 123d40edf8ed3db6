"""Inputs in, spans and metrics out: the pure middle of the program, the same live and in replay.

Work is done at ticks. A tick at time T promises that every record submitted before T has been fed; an
exchange that ended by T is therefore complete, and so are the operations that its thread made before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final

from otelgpu.correlate.call_stacks import CallStacks
from otelgpu.correlate.fold import Folded
from otelgpu.correlate.function_names import FunctionNames
from otelgpu.correlate.identities import Identities
from otelgpu.correlate.memory import MemoryLedger
from otelgpu.correlate.processes import Processes
from otelgpu.correlate.requests import OPERATIONS_PER_REQUEST
from otelgpu.correlate.steps import EngineSteps
from otelgpu.correlate.steps_rules import StepCalls
from otelgpu.correlate.threads import ThreadTimeline
from otelgpu.correlate.training import TrainingSteps
from otelgpu.correlate.training_device import LOST as LOST_WORK
from otelgpu.families.base import Activity, CommunicatorDecoder, Family
from otelgpu.layout.btf import Btf
from otelgpu.model.context import Context, Unsettled
from otelgpu.model.device_work import DeviceWork
from otelgpu.model.devices import DeviceGone, DeviceReadings, DeviceSeen, ProcessDevices
from otelgpu.model.exchange import Role
from otelgpu.model.inputs import (
    Batch,
    CallsCounted,
    ClockAnchor,
    FunctionNamed,
    Input,
    LossCounted,
    ProcessGone,
    ProcessSeen,
    Tick,
)
from otelgpu.model.operations import OperationKind
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.model.resource import Resource
from otelgpu.model.samples import StackNamed
from otelgpu.model.spans import SpanColumns
from otelgpu.model.telling import Detail, Telling
from otelgpu.signals import names
from otelgpu.signals.block_session import BlockSession
from otelgpu.signals.collective_session import LOST, CollectiveSession
from otelgpu.signals.decoding import SampleQueue, decoded
from otelgpu.signals.device_session import KINDS as DEVICE_KINDS
from otelgpu.signals.device_session import DeviceSession
from otelgpu.signals.devices import DeviceMetrics
from otelgpu.signals.fabric_session import FabricSession
from otelgpu.signals.file_session import FileSession
from otelgpu.signals.losses import Losses
from otelgpu.signals.memory import MemoryMetrics
from otelgpu.signals.metrics import Metrics
from otelgpu.signals.opened_families import OpenedFamilies
from otelgpu.signals.operation_intake import OperationIntake
from otelgpu.signals.operation_metrics import OperationMeter
from otelgpu.signals.operation_spans import Parents, Vocabulary
from otelgpu.signals.operation_teller import OperationTeller
from otelgpu.signals.ownership import Ownership, Work
from otelgpu.signals.profile_links import SpanLinks
from otelgpu.signals.profiler import Profiler
from otelgpu.signals.readers import Readers
from otelgpu.signals.request_session import RequestSession, served_by
from otelgpu.signals.step_session import StepSession
from otelgpu.signals.summary import Summary
from otelgpu.signals.tensor_session import TensorSession
from otelgpu.signals.top_kernels import TopKernels
from otelgpu.signals.totals import Totals
from otelgpu.signals.training_session import TrainingSession
from otelgpu.signals.windows import UnlinkedWindows

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

Spans = Iterable[SpanColumns]
"""Batches that are made as they are taken, once: each is still in the cache when it is encoded."""

HISTORY_NS: Final = 120_000_000_000
"""How far back an operation may have begun and still find the request its thread held then."""

SPANS_PER_PARENT: Final[Mapping[Detail, int]] = {"phases": 1, "ops": 512, "all": OPERATIONS_PER_REQUEST}
"""Operation spans under one phase, request or window; calls beyond it are merged and counted."""


class Pipeline:
    """One session.

    ``btf`` is each family's record description, ``seed`` makes ids reproducible, ``own`` is the resource
    of this program itself, ``start_unix_ns`` is where cumulative metrics begin.
    ``telling`` and ``profiling`` are what was asked for.
    """

    def __init__(
        self,
        families: Mapping[str, Family],
        btf: Mapping[str, Btf],
        *,
        seed: int,
        own: Resource,
        start_unix_ns: int,
        telling: Telling = Telling(),  # noqa: B008 (immutable)
        profiling: ProfileSettings = ProfileSettings(),  # noqa: B008 (immutable)
        shorten: Callable[[str], str] = str,
        demangle: Callable[[str], str] = str,
    ) -> None:
        self._seed = seed
        self.own = own
        self._detail: Detail = telling.detail
        opened = OpenedFamilies(families, btf, telling)
        self._decoders, self._conversations = opened.decoders, opened.conversations
        self._operation_signals, self._family_index = opened.operations, opened.index
        self._sampled = SampleQueue()
        self._totals = Totals(self._operation_signals)
        self._processes = Processes()
        self._functions = FunctionNames(shorten)
        self.vocabulary = Vocabulary(
            families=self._operation_signals,
            kernels=self._functions.full,
            short_kernels=self._functions.short,
        )
        self._operations = OperationTeller(self.vocabulary, self._processes.resource, seed=seed)
        self._operations.keep(self._detail, SPANS_PER_PARENT[self._detail])
        self.metrics = Metrics(start_unix_ns)
        top = TopKernels(telling.kernel_metrics, self._functions.full) if telling.kernel_metrics else None
        self._meter = OperationMeter(self.metrics, self._operation_signals, self._processes.resource, top)
        stacks = CallStacks()
        self._ledger = MemoryLedger(
            [decoder for decoder, _ in self._operation_signals],
            stacks=stacks.stacks_of if ProfileKind.MEM in profiling.kinds else None,
        )
        self._memory = MemoryMetrics(self._ledger, self._processes.resource, self._functions.name)
        self.summary = Summary()
        self._losses = Losses(self.metrics, self.summary, own)
        self._devices = DeviceMetrics(self.metrics, own, self._processes.known)
        self._fabric = FabricSession(
            self.metrics,
            self._processes.resource,
            self._processes.known,
            own,
            seed=seed,
            context_of=self._context_of_process,
        )
        self._files = FileSession(self.metrics, self._processes.resource)
        self._block = BlockSession(self.metrics, self._processes.resource)
        self._gone: list[ProcessGone] = []
        self._offset_ns = 0
        self._timeline = ThreadTimeline()
        self._serving_processes: set[int] = set()
        apis = [decoder.apis for decoder, _ in self._operation_signals]
        steps, calls = EngineSteps(apis), StepCalls(apis)
        self._identities = Identities(seed, self._serving, defer=telling.own_spans == "auto")
        self._steps = StepSession(
            steps,
            calls,
            self.metrics,
            self._totals,
            self._processes.resource,
            self._identities.context,
            seed=seed,
            model_bytes=telling.model_bytes,
            bandwidth=telling.memory_bandwidth,
        )
        self._requests = RequestSession(
            self.metrics,
            self._totals,
            self._identities,
            self._steps,
            self._processes.resource,
            self._losses.add,
            seed=seed,
        )
        for signals in opened.spoken:
            self._requests.speak(signals)
        self._batches: dict[str, list[Batch]] = {}  # by family, since the last tick
        self._windows = UnlinkedWindows(
            self._totals, limit=SPANS_PER_PARENT[self._detail], runs=self._detail != "all"
        )
        self._training = TrainingSession(
            TrainingSteps(apis, is_engine=steps.watches, serves=self._serves),
            self.metrics,
            self._totals,
            self._processes.resource,
            seed=seed,
            kernel_name=self._kernel_name,
            file_name=self._files.name,
        )
        self._ownership = Ownership(
            self._timeline, self._requests, steps, self._training, self._windows, self.summary
        )
        self._collectives = CollectiveSession(
            self.metrics,
            self.vocabulary,
            calls,
            self._processes.resource,
            seed=seed,
            telling=telling,
            request_context=self._identities.context,
            step_at=self._step_at,
            connections=self._fabric.connections,
        )
        self._device = DeviceSession(
            self.metrics,
            self.vocabulary,
            seed=seed,
            limit=0 if self._detail == "phases" else SPANS_PER_PARENT[self._detail],
            resource_of=self._processes.resource,
            name_of=self._functions.index,
            demangle=demangle,
            show=self._see_work,
            watch=self._training,
        )
        probe_names = opened.decoders["probe"].apis if "probe" in opened.decoders else {}
        links = SpanLinks(self._ownership.owners_at, self._span_of, self._step_at, self._has_steps)
        self._tensors = TensorSession(self.metrics, self._processes.resource, profiling)
        self._profiler = Profiler(
            profiling,
            self._processes.resource,
            links,
            self.vocabulary,
            stacks,
            self._ledger,
            self._tensors.profiles,
            probe_names,
        )
        self._intake = OperationIntake(
            ownership=self._ownership,
            functions=self._functions,
            vocabulary=self.vocabulary,
            meter=self._meter,
            summary=self.summary,
            ledger=self._ledger,
            device=self._device,
            collectives=self._collectives,
            training=self._training,
            profiler=self._profiler,
        )
        readers = Readers(
            sampled=self._sampled,
            fabric=self._fabric,
            files=self._files,
            training=self._training,
            tensors=self._tensors,
            ownership=self._ownership,
        )
        self._readers = {name: readers.of(decoder) for name, decoder in opened.readers.items()}
        self._final = False
        self._now_ns = 0
        self._next_sweep_ns = 0

    # -- inputs -----------------------------------------------------------------------------------

    def feed(self, item: Input) -> Spans:
        """Take one input. Spans come out at ticks only, and are made as they are taken."""
        match item:
            case Batch():
                self._batch(item)
            case Tick():
                return self._tick(item.time_ns, final=False)
            case FunctionNamed():
                self._name(item)
            case StackNamed():
                self._profiler.learn(item)
            case ClockAnchor():
                self._offset_ns = item.unix_ns - item.monotonic_ns
            case ProcessSeen():
                self._see(item)
            case ProcessGone():
                self._gone.append(item)
            case LossCounted():
                self._losses.add(item.family, item.reason, item.count)
                if item.family == "nccl" and item.reason in LOST:
                    self._collectives.lose()
                if item.reason in LOST_WORK:
                    self._training.lose()
            case CallsCounted():
                self._count_calls(item)
            case DeviceSeen() | DeviceReadings() | DeviceGone() | ProcessDevices():
                self._devices.take(item)
                if isinstance(item, DeviceSeen):
                    self._fabric.learn(item)
            case _:
                self._fabric.learn(item)
        return ()

    def finish(self) -> Spans:
        """Everything that is complete or never will be; unanswered requests are counted."""
        return self._tick(self._now_ns, final=True)

    def take_profiles(self) -> list[ProfileColumns]:
        """The profiles of the intervals that have ended; after each input that is a tick, and at the end."""
        return self._profiler.finished()

    def read_metrics(self) -> tuple[MetricsData, int]:
        """All metrics as of the last tick, and how many data points; processes that ended are in it once more."""
        self._memory.publish(self.metrics)
        data = self.metrics.read(self._now_ns + self._offset_ns)
        self.metrics.forget(self._processes.take_departed())
        return data

    def thread_contexts(self) -> dict[tuple[int, int], tuple[bytes, bytes]]:
        """The trace and span that each thread works for as of the last tick, by (tgid, tid)."""
        found = ((tgid, tid, self._identities.context(key)) for tgid, tid, key in self._timeline.current())
        return {
            (tgid, tid): (context.trace_id, context.span_id)
            for tgid, tid, context in found
            if context is not None and context.sampled
        }

    def read_own_metrics(self) -> MetricsData:
        """What this program tells of itself, as of the last tick."""
        return self.metrics.read(self._now_ns + self._offset_ns, (self.own, names.SELF_SCOPE))[0]

    @property
    def tracked(self) -> dict[str, int]:
        """How many of what is remembered while it lasts there are."""
        found = {"process": len(self._processes), "request": len(self._timeline.held())}
        return found | {"connection": sum(each.connection_count for each in self._conversations.values())}

    def retell(self, telling: Telling) -> None:
        """Tell in another detail, and of another share of the collectives, from the next tick on."""
        self._detail = telling.detail
        limit = SPANS_PER_PARENT[self._detail]
        self._operations.keep(self._detail, limit)
        self._windows.keep(limit, runs=self._detail != "all")
        self._device.keep(0 if self._detail == "phases" else limit)
        self._collectives.retell(telling)

    def _serves(self, tgid: int) -> bool:
        """Whether a process answers requests, or comes from one that does, as the workers of engines do."""
        return not self._serving_processes.isdisjoint(self._processes.lineage(tgid))

    def _context_of_process(self, tgid: int, time_ns: int) -> Context | None:
        """The span that a process worked under; None where it is not known, or there were several."""
        keys = {key for of, _, key in self._timeline.current() if of == tgid}
        return self._identities.context(keys.pop()) if len(keys) == 1 else None

    def _see(self, seen: ProcessSeen) -> None:
        before = self._processes.known(seen.tgid) if seen.same_program else None
        self.metrics.rename(before, seen.resource)
        self._profiler.rename(before, seen.resource)
        if self._processes.see(seen):  # it exec'd
            self._ledger.end_process(seen.tgid, seen.time_ns)
            self._tensors.end_program(seen.tgid, seen.time_ns)
        if before is None:
            self._functions.forget(seen.tgid)
            self._ownership.see(seen)

    def _batch(self, batch: Batch) -> None:
        if conversation := self._conversations.get(batch.family):
            self._take(conversation.feed(batch))
        elif reader := self._readers.get(batch.family):
            reader(batch)
        elif batch.kind in DEVICE_KINDS:
            for answer in self._device.feed(batch, self._now_ns):
                self._name(answer)
        elif decoder := self._decoders.get(batch.family):
            if isinstance(decoder, CommunicatorDecoder):
                seen = decoder.communicators(batch)
                self._collectives.learn(seen)
                self._fabric.learn_communicators(seen)
            self._batches.setdefault(batch.family, []).append(batch)

    def _kernel_name(self, tgid: int, name: int) -> str:
        """The full name of a kernel, "" where it is not known."""
        index = self._functions.index(tgid, name)
        return self._functions.full[index] if index else ""

    def _name(self, answer: FunctionNamed) -> None:
        if not self._functions.learn(answer):
            self._losses.add("symbols", "kernel_names_full", 1)

    def _count_calls(self, counted: CallsCounted) -> None:
        """Calls without records: they are in the metrics that count calls, and nowhere else."""
        family, kind = self._family_index.get(counted.family), OperationKind(counted.kind)
        if family is None:
            return
        owner = self._processes.resource(counted.tgid) if counted.tgid else self.own
        self._meter.count(family, kind, counted.api, owner, counted.count)
        self.summary.add_counted(counted.api, counted.count)
        if kind in (OperationKind.ALLOCATION, OperationKind.FREE, OperationKind.MAPPING):
            self._losses.add("memory", "calls_counted", counted.count)

    # -- ticks ------------------------------------------------------------------------------------

    def _tick(self, now_ns: int, *, final: bool) -> Spans:
        self._now_ns = max(now_ns, self._now_ns)
        spans: list[Spans] = []
        for samples, name_of in self._sampled.take():
            self._block.take(samples, name_of)
            self._profiler.take(samples, self._now_ns, name_of)
        self._end_processes()
        spans.append(self._join(final=final))
        self._ledger.settle(self._now_ns, final=final)
        self._memory.see_ended()
        spans.append(self._tell_device_work(final=final))
        spans.append(self._answer(final=final))
        self._give_up(final=final)
        spans.append(self._tell_steps(final=final))
        spans.append(self._collectives.tell(self._now_ns, self._offset_ns, final))
        spans.append(self._fabric.tell(self._now_ns, self._offset_ns, final))
        spans.append(self._close_windows(final=final))
        self._final = final
        for gone in self._gone:
            self._profiler.end_process(gone.tgid, gone.time_ns)
        self._profiler.tell(self._now_ns, offset_ns=self._offset_ns, final=final)
        self._forget_processes()
        self._ownership.forget_before(self._now_ns - HISTORY_NS)
        self._count_losses()
        return chain.from_iterable(spans)

    def _forget_processes(self) -> None:
        for gone in self._gone:
            self._forget(gone.tgid)
            self._collectives.forget_process(gone.tgid, gone.time_ns)
            self._fabric.forget_process(gone.tgid, gone.time_ns)
            self._devices.forget_process(gone.tgid)
            self._processes.end(gone)
        self._gone.clear()
        for tgid in self._processes.expire(self._now_ns):
            self._forget(tgid)  # anew: something of it may have come since its end
            self._memory.forget(tgid)

    def _forget(self, tgid: int) -> None:
        self._ownership.forget_process(tgid)
        self._device.forget_process(tgid)
        self._functions.forget(tgid)
        self._serving_processes.discard(tgid)

    def _end_processes(self) -> None:
        for gone in self._gone:
            self._ledger.end_process(gone.tgid, gone.time_ns)
            self._tensors.end_process(gone.tgid, gone.time_ns)
        for conversation in self._conversations.values():
            for gone in self._gone:
                self._take(conversation.process_gone(gone.tgid, gone.time_ns))
            self._take(conversation.expire(self._now_ns))

    def _step_at(self, tgid: int, tid: int, time_ns: int) -> Context | Unsettled | None:
        """The span of the step that a thread was in, an engine's or one of training."""
        return self._steps.step_at(tgid, tid, time_ns) or self._training.step_at(tgid, tid, time_ns)

    def _has_steps(self, tgid: int) -> bool:
        return self._steps.watches(tgid) or self._training.watches(tgid)

    def _span_of(self, key: int, final: bool) -> Context | Unsettled | None:
        """The span of a request, once that is told; ``final``: what it will be, unless the session ends."""
        span = self._requests.span_of(key)
        if not isinstance(span, Unsettled) or not final:
            return span
        return None if self._final else self._identities.context(key)

    def _see_work(self, work: DeviceWork) -> None:
        self._collectives.see_device_work(work)
        self._profiler.see_work(work)

    def _take(self, activity: Activity) -> None:
        self._serving_processes.update(each.tgid for each in activity.opened if each.role is Role.SERVER)
        self._ownership.take(activity)

    def _serving(self, tgid: int, tid: int, time_ns: int) -> int:
        """The request that a thread worked for, 0 for none."""
        return max(self._timeline.owner(tid, time_ns), 0)

    def _join(self, *, final: bool) -> Spans:
        """What is told at once of the operations since the last tick, and of those that waited for their owners."""
        batches, self._batches = self._batches, {}
        late: list[Spans] = []
        late.append(self._tell(self._ownership.settle(self._now_ns, final=final)))
        for family, fed in batches.items():
            for rows in decoded(self._decoders[family], fed):
                late.append(self._tell(self._intake.take(rows, self._family_index[family], self._now_ns)))
        self._intake.settle()
        return chain.from_iterable(late)

    def _tell_device_work(self, *, final: bool) -> list[SpanColumns]:
        return self._device.tell(
            self._now_ns,
            self._timeline,
            self._requests.finished,
            self._requests.is_finished,
            offset_ns=self._offset_ns,
            final=final,
        )

    def _tell(self, work: Iterable[Work]) -> Spans:
        return chain.from_iterable(self._spans(*some) for some in work)

    def _answer(self, *, final: bool) -> Spans:
        """Tell the requests that are complete."""
        answered = self._requests.answer(
            self._ownership.answerable_ns, offset_ns=self._offset_ns, final=final
        )
        if answered is None:
            return ()
        told = answered.contexts
        self.summary.add_exchanges(served_by(answered.exchanges))
        spans = answered.spans + self._device.answer(
            answered.exchanges,
            answered.boundary,
            told.sampled,
            told.parents,
            offset_ns=self._offset_ns,
        )
        return chain(spans, self._spans(answered.work, told.parents))

    def _give_up(self, *, final: bool) -> None:
        """Requests that will not be answered any more: what they caused is told among the unlinked."""
        if not final and self._now_ns < self._next_sweep_ns:
            return
        self._next_sweep_ns = self._now_ns + HISTORY_NS // 8
        held = () if final else self._timeline.held()
        keys, left = self._requests.give_up(self._now_ns - HISTORY_NS, held, final=final)
        self._device.give_up(keys)
        self._ownership.abandon_unanswered(left)

    def _tell_steps(self, *, final: bool) -> Spans:
        """Steps of which no more will be known."""
        found: list[Spans] = []
        for session in (self._steps, self._training):
            told = session.tell(self._now_ns, offset_ns=self._offset_ns, final=final)
            if told is not None:
                self.summary.steps += sum(map(len, told.spans))
                self._ownership.abandon_steps(told.rest)
                found += [told.spans, self._spans(told.work, told.parents)]
        return chain.from_iterable(found)

    def _close_windows(self, *, final: bool) -> Spans:
        closed = self._windows.close(
            self._now_ns, self._processes.resource, seed=self._seed, offset_ns=self._offset_ns, final=final
        )
        if closed is None:
            return ()
        return chain(closed.roots, self._spans(closed.work, closed.parents))

    def _spans(self, work: Folded, parents: Parents) -> Spans:
        return self._operations.tell(work, parents, offset_ns=self._offset_ns)

    def _count_losses(self) -> None:
        """What the counters of all grew by."""
        for family, conversation in self._conversations.items():
            self._losses.follow(family, conversation.counters)
        for family, counters in (
            ("device_time", self._device.counters),
            ("devices", self._devices.counters),
            ("correlate", self._ownership.handoffs.counters),
            ("steps", self._ownership.steps.counters),
            ("training", self._training.counters),
            ("memory", self._ledger.counters),
            ("collectives", self._collectives.counters),
            ("fabric", self._fabric.counters),
            ("profile", self._profiler.counters),
            ("torch", self._tensors.counters),
        ):
            self._losses.follow(family, counters)
