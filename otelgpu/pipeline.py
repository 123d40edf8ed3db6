"""Inputs in, spans and metrics out: the pure middle of the program, the same live and in replay.

Work is done at ticks. A tick at time T promises that every record submitted before T has been fed; an
exchange that ended by T is therefore complete, and so are the operations that its thread made before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt

from otelgpu.correlate.fold import Folded, fold, unfolded
from otelgpu.correlate.function_names import FunctionNames
from otelgpu.correlate.memory import KINDS as MEMORY_KINDS
from otelgpu.correlate.memory import MemoryLedger
from otelgpu.correlate.processes import Processes
from otelgpu.correlate.requests import OPERATIONS_PER_REQUEST, RequestBook
from otelgpu.correlate.threads import AMBIGUOUS, ThreadTimeline
from otelgpu.families.base import (
    Activity,
    Conversation,
    ExchangeSignals,
    Family,
    Instrument,
    Metric,
    OperationDecoder,
    OperationSignals,
)
from otelgpu.layout.btf import Btf
from otelgpu.model.codes import distinct, values_of
from otelgpu.model.devices import DeviceGone, DeviceReadings, DeviceSeen, ProcessDevices
from otelgpu.model.exchange import Exchange
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
from otelgpu.model.operations import ContextSource, OperationKind, Operations, concatenate
from otelgpu.model.resource import Resource
from otelgpu.model.spans import SpanColumns
from otelgpu.signals import names
from otelgpu.signals.device_session import KINDS as DEVICE_KINDS
from otelgpu.signals.device_session import DeviceSession
from otelgpu.signals.devices import DeviceMetrics
from otelgpu.signals.exchange_spans import (
    NO_CONTEXT,
    SLOTS,
    Context,
    contexts,
    exchange_spans,
    parents_of,
    phase_of,
)
from otelgpu.signals.memory import MemoryMetrics
from otelgpu.signals.metrics import Metrics
from otelgpu.signals.operation_metrics import OperationMeter
from otelgpu.signals.operation_spans import Parents, Vocabulary, operation_spans
from otelgpu.signals.parts import Part, SmallParts, parts_of
from otelgpu.signals.summary import Summary
from otelgpu.signals.top_kernels import TopKernels
from otelgpu.signals.totals import Totals
from otelgpu.signals.windows import UnlinkedWindows

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

Detail = Literal["phases", "ops", "all"]

Spans = Iterable[SpanColumns]
"""Batches that are made as they are taken, once: each is still in the cache when it is encoded."""

HISTORY_NS: Final = 120_000_000_000
"""How far back an operation may have begun and still find the request its thread held then."""

SPANS_PER_PARENT: Final[Mapping[Detail, int]] = {"phases": 1, "ops": 512, "all": OPERATIONS_PER_REQUEST}
"""Operation spans under one phase, request or window; calls beyond it are merged and counted."""

ROWS_AT_A_TIME: Final = 8192
"""Operations that are joined and measured together: 1 MiB, so that they stay in the second-level cache."""

_FOREVER_NS: Final = 1 << 63
_THREAD, _NONE = np.uint8(ContextSource.THREAD), np.uint8(ContextSource.NONE)
_AMBIGUOUS: Final = names.UNLINKED_REASONS.index("ambiguous")
_UNANSWERED: Final = names.UNLINKED_REASONS.index("unanswered")

_LOSSES: Final = Metric(
    name=names.LOSSES,
    unit="{event}",
    instrument=Instrument.COUNTER,
    description="Events that were dropped, skipped or could not be read, by reason.",
)
_SELF_SCOPE: Final = "otelgpu"


class Pipeline:
    """One session.

    ``btf`` is each family's record description, ``seed`` makes ids reproducible, ``own`` is the resource
    of this program itself, ``start_unix_ns`` is where cumulative metrics begin.
    ``kernel_metrics``: how many kernel names metrics may carry.
    """

    def __init__(
        self,
        families: Mapping[str, Family],
        btf: Mapping[str, Btf],
        *,
        seed: int,
        own: Resource,
        start_unix_ns: int,
        detail: Detail = "ops",
        shorten: Callable[[str], str] = str,
        demangle: Callable[[str], str] = str,
        kernel_metrics: int = 0,
    ) -> None:
        self._seed = seed
        self._own = own
        self._detail: Detail = detail
        self._decoders: dict[str, OperationDecoder] = {}
        self._conversations: dict[str, Conversation] = {}
        self._operation_signals: list[tuple[OperationDecoder, OperationSignals]] = []
        self._family_index: dict[str, int] = {}
        self._exchange_signals: ExchangeSignals | None = None
        for name, family in families.items():
            opened = family.open(btf[name])
            if isinstance(family.signals, OperationSignals):
                assert isinstance(opened, OperationDecoder)
                self._family_index[name] = len(self._operation_signals)
                self._decoders[name] = opened
                self._operation_signals.append((opened, family.signals))
            else:
                assert isinstance(opened, Conversation)
                self._conversations[name] = opened
                self._exchange_signals = family.signals
        self._totals = Totals(self._operation_signals)
        self._processes = Processes()
        self._functions = FunctionNames(shorten)
        self.vocabulary = Vocabulary(
            families=self._operation_signals,
            kernels=self._functions.full,
            short_kernels=self._functions.short,
        )
        self.metrics = Metrics(start_unix_ns)
        top = TopKernels(kernel_metrics, self._functions.full) if kernel_metrics else None
        self._meter = OperationMeter(self.metrics, self._operation_signals, self._processes.resource, top)
        self._ledger = MemoryLedger([decoder for decoder, _ in self._operation_signals])
        self._memory = MemoryMetrics(self._ledger, self._processes.resource, self._functions.name)
        self.summary = Summary()
        self._devices = DeviceMetrics(self.metrics, own, self._processes.known)
        self._gone: list[ProcessGone] = []
        self._offset_ns = 0
        self._timeline = ThreadTimeline()
        self._book: RequestBook[Context] = RequestBook(self._totals.by_group, len(self._totals))
        self._batches: dict[str, list[Batch]] = {}  # by family, since the last tick
        self._small = SmallParts()
        self._exchanges: list[Exchange] = []
        self._windows = UnlinkedWindows(self._totals, limit=SPANS_PER_PARENT[detail], runs=detail != "all")
        self._device = DeviceSession(
            self.metrics,
            self.vocabulary,
            seed=seed,
            limit=0 if detail == "phases" else SPANS_PER_PARENT[detail],
            resource_of=self._processes.resource,
            name_of=self._functions.index,
            demangle=demangle,
        )
        self._now_ns = 0
        self._next_sweep_ns = 0
        self._counted: dict[tuple[str, str], int] = {}

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
            case ClockAnchor():
                self._offset_ns = item.unix_ns - item.monotonic_ns
            case ProcessSeen():
                self._see(item)
            case ProcessGone():
                self._gone.append(item)
            case LossCounted():
                self._loss(item.family, item.reason, item.count)
            case CallsCounted():
                self._count_calls(item)
            case DeviceSeen() | DeviceReadings() | DeviceGone() | ProcessDevices():
                self._devices.take(item)
        return ()

    def finish(self) -> Spans:
        """Everything that is complete or never will be; unanswered requests are counted."""
        return self._tick(self._now_ns, final=True)

    def read_metrics(self) -> tuple[MetricsData, int]:
        """All metrics as of the last tick, and how many data points; processes that ended are in it once more."""
        self._memory.publish(self.metrics)
        data = self.metrics.read(self._now_ns + self._offset_ns)
        self.metrics.forget(self._processes.take_departed())
        return data

    def _see(self, seen: ProcessSeen) -> None:
        if self._processes.see(seen):  # it exec'd
            self._ledger.end_process(seen.tgid, seen.time_ns)
        self._functions.forget(seen.tgid)

    def _batch(self, batch: Batch) -> None:
        if conversation := self._conversations.get(batch.family):
            self._take(conversation.feed(batch))
        elif batch.kind in DEVICE_KINDS:
            for answer in self._device.feed(batch, self._now_ns):
                self._name(answer)
        elif batch.family in self._decoders:
            self._batches.setdefault(batch.family, []).append(batch)

    def _name(self, answer: FunctionNamed) -> None:
        if not self._functions.learn(answer):
            self._loss("symbols", "kernel_names_full", 1)

    def _count_calls(self, counted: CallsCounted) -> None:
        """Calls without records: they are in the metrics that count calls, and nowhere else."""
        family, kind = self._family_index.get(counted.family), OperationKind(counted.kind)
        if family is None:
            return
        owner = self._processes.resource(counted.tgid) if counted.tgid else self._own
        self._meter.count(family, kind, counted.api, owner, counted.count)
        self.summary.add_counted(counted.api, counted.count)
        if kind in (OperationKind.ALLOCATION, OperationKind.FREE, OperationKind.MAPPING):
            self._loss("memory", "calls_counted", counted.count)

    def _loss(self, family: str, reason: str, count: int) -> None:
        if count:
            labels = {names.LOSS_FAMILY: family, names.LOSS_REASON: reason}
            self.metrics.add(_LOSSES, _SELF_SCOPE, self._own, labels, count)
            self.summary.losses[family, reason] += count

    # -- ticks ------------------------------------------------------------------------------------

    def _tick(self, now_ns: int, *, final: bool) -> Spans:
        self._now_ns = max(now_ns, self._now_ns)
        spans: list[Spans] = []
        self._end_processes()
        spans.append(self._join())
        self._ledger.settle(self._now_ns, final=final)
        spans.append(self._tell_device_work(final=final))
        spans.append(self._answer(final=final))
        self._give_up(final=final)
        spans.append(self._close_windows(final=final))
        self._forget_processes()
        self._timeline.forget_before(self._now_ns - HISTORY_NS)
        self._count_conversations()
        return chain.from_iterable(spans)

    def _forget_processes(self) -> None:
        for gone in self._gone:
            self._timeline.forget_process(gone.tgid)
            self._device.forget_process(gone.tgid)
            self._devices.forget_process(gone.tgid)
            self._functions.forget(gone.tgid)
            self._processes.end(gone)
        self._gone.clear()
        self._processes.expire(self._now_ns)

    def _end_processes(self) -> None:
        for gone in self._gone:
            self._ledger.end_process(gone.tgid, gone.time_ns)
        for conversation in self._conversations.values():
            for gone in self._gone:
                self._take(conversation.process_gone(gone.tgid, gone.time_ns))
            self._take(conversation.expire(self._now_ns))

    def _take(self, activity: Activity) -> None:
        self._timeline.apply(activity.claims)
        self._exchanges += activity.exchanges

    def _join(self) -> Spans:
        """Give each new operation its request, count it, and put it where it waits."""
        batches, self._batches = self._batches, {}
        late: list[Spans] = []
        for family, fed in batches.items():
            for rows in self._decoded(self._decoders[family], fed):
                late.append(self._join_rows(rows, self._family_index[family]))
        self._measure(self._small.release())
        return chain.from_iterable(late)

    @staticmethod
    def _decoded(decoder: OperationDecoder, batches: Sequence[Batch]) -> Iterator[Operations]:
        """New operations of a family, not many more than :data:`ROWS_AT_A_TIME` together, as they came."""
        parts: list[Operations] = []
        rows = 0
        for batch in batches:
            for begin in range(0, len(batch.records), ROWS_AT_A_TIME):
                some = replace(batch, records=batch.records[begin : begin + ROWS_AT_A_TIME])
                parts.append(decoder.decode(some))
                rows += len(parts[-1])
                if rows >= ROWS_AT_A_TIME:
                    yield _joined(parts)
                    parts, rows = [], 0
        if rows:
            yield _joined(parts)

    def _tell_device_work(self, *, final: bool) -> list[SpanColumns]:
        def finished(key: int) -> Parents | None:
            context = self._book.finished(key)
            return None if context is None else parents_of([context])

        return self._device.tell(
            self._now_ns,
            self._timeline,
            finished,
            self._book.is_finished,
            offset_ns=self._offset_ns,
            final=final,
        )

    def _join_rows(self, fed: Operations, family: int) -> Spans:
        # First, for as they came they are in the order of their times, or nearly.
        owners = self._timeline.owners(
            np.ascontiguousarray(fed["tid"]), np.ascontiguousarray(fed["start_ns"])
        )
        rows, parts, order = parts_of(fed, family)
        owners = owners[order]
        self._device.add_calls(rows, self._now_ns)  # before the names, which lie where it reads
        for part in parts:
            if part.kind in MEMORY_KINDS:
                self._ledger.add(part.rows)
        self._set_names(parts)
        linked = owners > 0
        rows["context_source"] = np.where(linked, _THREAD, _NONE)
        self._measure(self._small.pass_on(parts))
        self.summary.add_owners(owners)
        answered = self._book.is_finished(owners)
        late = self._late(rows.compress(answered), owners[answered]) if answered.any() else ()
        self._book.add(*_only(linked & ~answered, rows, owners))
        if not linked.all():
            unlinked, why = _only(~linked, rows, (owners == AMBIGUOUS) * np.int64(_AMBIGUOUS))
            self._windows.add(unlinked, why)
        return late

    def _measure(self, parts: Sequence[Part]) -> None:
        self._meter.measure(parts)
        self.summary.add_operations(parts, self.vocabulary)

    def _set_names(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if part.kind is OperationKind.LAUNCH:
                addresses = np.ascontiguousarray(part.rows["function"])
                part.rows["name"] = self._functions.indices(part.tgid, addresses)

    def _late(self, rows: Operations, owners: npt.NDArray[np.int64]) -> Spans:
        """Operations of requests that were told already: spans of their own under the request's."""
        self._loss("correlate", "late_operations", len(rows))
        keys, group = distinct(owners)
        contexts_of = [self._book.finished(key) for key in keys.tolist()]
        told = np.array([context is not None for context in contexts_of])[group]
        return self._spans(
            unfolded(rows.compress(told), group[told]), parents_of([c or NO_CONTEXT for c in contexts_of])
        )

    def _answer(self, *, final: bool) -> Spans:
        """Tell the requests that are complete."""
        done = [e for e in self._exchanges if final or e.end_ns <= self._now_ns]
        if not done:
            return ()
        self._exchanges = [e for e in self._exchanges if not final and e.end_ns > self._now_ns]
        assert self._exchange_signals is not None
        served = self._book.take([e.key for e in done])
        identities = contexts(done, self._seed)
        slots = phase_of(done, served)
        sums = self._totals.by_group(served.operations, slots, len(done) * SLOTS)
        sums[::SLOTS] = sums.reshape(len(done), SLOTS, -1).sum(axis=1) + served.beyond
        for position in np.flatnonzero(served.dropped).tolist():
            # A phase's sums would lack what was not kept; the request's own are exact.
            sums[position * SLOTS + 1 : (position + 1) * SLOTS] = 0
        self._measure_exchanges(done)
        for exchange, context in zip(done, identities.of_requests(), strict=True):
            self._book.remember(exchange.key, context)
        self._loss("correlate", "operations_not_kept", int(served.dropped.sum()))
        self._loss("correlate", "unsampled_requests", int((~identities.sampled).sum()))
        spans = exchange_spans(
            done,
            identities.sampled,
            identities,
            sums,
            self._totals,
            served.dropped,
            self._processes.resource,
            self._exchange_signals,
            unix_offset_ns=self._offset_ns,
        )
        told = identities.sampled[served.request]
        operations, slots = _only(told, served.operations, slots)
        spans += self._device.answer(done, identities.sampled, identities.parents, offset_ns=self._offset_ns)
        return chain(spans, self._spans(unfolded(operations, slots), identities.parents))

    def _give_up(self, *, final: bool) -> None:
        """Requests that will not be answered any more: what they caused is told among the unlinked."""
        if not final and self._now_ns < self._next_sweep_ns:
            return
        self._next_sweep_ns = self._now_ns + HISTORY_NS // 8
        held = () if final else self._timeline.held()
        keys = self._book.stale(_FOREVER_NS if final else self._now_ns - HISTORY_NS, held)
        served = self._book.take(keys)
        self._device.give_up(keys)
        self._loss("correlate", "unanswered_requests", len(keys))
        self._loss("correlate", "operations_not_kept", int(served.dropped.sum()))
        if len(served.operations):
            served.operations["context_source"] = ContextSource.NONE
            self._windows.add(served.operations, np.full(len(served.operations), _UNANSWERED))

    def _measure_exchanges(self, exchanges: Sequence[Exchange]) -> None:
        assert self._exchange_signals is not None
        of_process: dict[int, list[Exchange]] = {}
        for exchange in exchanges:
            of_process.setdefault(exchange.tgid, []).append(exchange)
        for tgid, mine in of_process.items():
            owner = self._processes.resource(tgid)
            for found in self._exchange_signals.metrics(mine):
                self.metrics.add(
                    found.metric, self._exchange_signals.scope, owner, found.labels, np.array(found.values)
                )
        self.summary.add_exchanges(exchanges)

    def _close_windows(self, *, final: bool) -> Spans:
        closed = self._windows.close(
            self._now_ns, self._processes.resource, seed=self._seed, offset_ns=self._offset_ns, final=final
        )
        if closed is None:
            return ()
        return chain(closed.roots, self._spans(closed.work, closed.parents))

    def _spans(self, work: Folded, parents: Parents) -> Spans:
        """Operation spans, as far as the detail asked for has them."""
        if self._detail == "phases" or not len(work):
            return ()
        folded = fold(work, limit=SPANS_PER_PARENT[self._detail], runs=self._detail == "ops")
        tgids = values_of(np.ascontiguousarray(folded.operations["tgid"]))
        return operation_spans(
            folded,
            parents,
            {tgid: self._processes.resource(tgid) for tgid in tgids},
            self.vocabulary,
            seed=self._seed,
            unix_offset_ns=self._offset_ns,
        )

    def _count_conversations(self) -> None:
        """Add what the conversations' own counters grew by."""
        counters = {family: conversation.counters for family, conversation in self._conversations.items()}
        own = (
            ("device_time", self._device.counters),
            ("devices", self._devices.counters),
            ("memory", self._ledger.counters),
        )
        for family, counted in [*counters.items(), *own]:
            for reason, total in counted.items():
                before = self._counted.get((family, reason), 0)
                if total != before:
                    self._loss(family, reason, total - before)
                    self._counted[family, reason] = total


def _only(
    chosen: npt.NDArray[np.bool_], rows: Operations, column: npt.NDArray[np.int64]
) -> tuple[Operations, npt.NDArray[np.int64]]:
    """The chosen rows, and what a column has of them; copied only when they are not all."""
    if chosen.all():
        return rows, column
    return rows.compress(chosen), column[chosen]


def _joined(parts: list[Operations]) -> Operations:
    """One after the other; copied only when there are several."""
    return parts[0] if len(parts) == 1 else concatenate(parts)
