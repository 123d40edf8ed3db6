"""Inputs in, spans and metrics out: the pure middle of the program, the same live and in replay.

Work is done at ticks. A tick at time T promises that every record submitted before T has been fed; an
exchange that ended by T is therefore complete, and so are the operations that its thread made before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt

from otelgpu.correlate.fold import Folded, fold, unfolded
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
from otelgpu.model.exchange import Exchange
from otelgpu.model.inputs import (
    Batch,
    ClockAnchor,
    FunctionNamed,
    Input,
    LossCounted,
    ProcessGone,
    ProcessSeen,
    Tick,
)
from otelgpu.model.operations import ContextSource, OperationKind, Operations, concatenate
from otelgpu.model.resource import Resource, resource
from otelgpu.model.spans import SpanColumns
from otelgpu.signals import names
from otelgpu.signals.exchange_spans import SLOTS, ExchangeContexts, contexts, exchange_spans, phase_of
from otelgpu.signals.metrics import Metrics
from otelgpu.signals.operation_metrics import measure_operations
from otelgpu.signals.operation_spans import Parents, Vocabulary, operation_spans
from otelgpu.signals.summary import Summary
from otelgpu.signals.totals import Totals
from otelgpu.signals.windows import UnlinkedWindows

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

Detail = Literal["phases", "ops", "all"]

HISTORY_NS: Final = 120_000_000_000
"""How far back an operation may have begun and still find the request its thread held then."""

LINGER_NS: Final = 15_000_000_000
"""How long a process that ended is still known: its last window is told in this time."""

SPANS_PER_PARENT: Final[Mapping[Detail, int]] = {"phases": 1, "ops": 512, "all": OPERATIONS_PER_REQUEST}
"""Operation spans under one phase, request or window; calls beyond it are merged and counted."""

KERNEL_NAMES: Final = 65_536
"""Distinct kernel names remembered; later ones are called "unknown", and counted."""

_FOREVER_NS: Final = 1 << 63
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
    ) -> None:
        self._seed = seed
        self._own = own
        self._detail: Detail = detail
        self._shorten = shorten
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
        self._kernels = ["unknown"]
        self._short = ["unknown"]
        self._kernel_index: dict[str, int] = {"unknown": 0}
        self._functions: dict[int, dict[int, int]] = {}  # tgid → address → kernel name index
        self.vocabulary = Vocabulary(
            families=self._operation_signals, kernels=self._kernels, short_kernels=self._short
        )
        self.metrics = Metrics(start_unix_ns)
        self.summary = Summary()
        self._resources: dict[int, Resource] = {}
        self._gone: list[ProcessGone] = []
        self._leaving: deque[tuple[int, int, Resource]] = deque()  # until when, tgid, resource
        self._departed: set[Resource] = set()  # told in the next metrics, then forgotten
        self._offset_ns = 0
        self._timeline = ThreadTimeline()
        self._book: RequestBook[Parents] = RequestBook(len(self._totals))
        self._operations: list[Operations] = []
        self._exchanges: list[Exchange] = []
        self._windows = UnlinkedWindows(self._totals, limit=SPANS_PER_PARENT[detail], runs=detail != "all")
        self._now_ns = 0
        self._next_sweep_ns = 0
        self._counted: dict[tuple[str, str], int] = {}

    # -- inputs -----------------------------------------------------------------------------------

    def feed(self, item: Input) -> list[SpanColumns]:
        """Take one input. Spans come out at ticks only."""
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
        return []

    def finish(self) -> list[SpanColumns]:
        """Everything that is complete or never will be; unanswered requests are counted."""
        return self._tick(self._now_ns, final=True)

    def read_metrics(self) -> tuple[MetricsData, int]:
        """All metrics as of the last tick, and how many data points; processes that ended are in it once more."""
        data = self.metrics.read(self._now_ns + self._offset_ns)
        self.metrics.forget(self._departed)
        self._departed.clear()
        return data

    def _see(self, seen: ProcessSeen) -> None:
        before = self._resources.get(seen.tgid)
        if before is not None and before != seen.resource:  # it exec'd: what it was is told once more
            self._leaving.append((seen.time_ns + LINGER_NS, seen.tgid, before))
        self._resources[seen.tgid] = seen.resource
        self._functions.pop(seen.tgid, None)

    def _batch(self, batch: Batch) -> None:
        if conversation := self._conversations.get(batch.family):
            self._take(conversation.feed(batch))
        elif decoder := self._decoders.get(batch.family):
            rows = decoder.decode(batch)
            rows["family"] = self._family_index[batch.family]
            self._operations.append(rows)

    def _name(self, answer: FunctionNamed) -> None:
        index = self._kernel_index.get(answer.name)
        if index is None:
            if len(self._kernels) >= KERNEL_NAMES:
                self._loss("symbols", "kernel_names_full", 1)
                index = 0
            else:
                index = self._kernel_index[answer.name] = len(self._kernels)
                self._kernels.append(answer.name)
                self._short.append(self._shorten(answer.name) if answer.known else answer.name)
        self._functions.setdefault(answer.tgid, {})[answer.address] = index

    def _loss(self, family: str, reason: str, count: int) -> None:
        if count:
            labels = {names.LOSS_FAMILY: family, names.LOSS_REASON: reason}
            self.metrics.add(_LOSSES, _SELF_SCOPE, self._own, labels, count)
            self.summary.losses[family, reason] += count

    # -- ticks ------------------------------------------------------------------------------------

    def _tick(self, now_ns: int, *, final: bool) -> list[SpanColumns]:
        self._now_ns = max(now_ns, self._now_ns)
        spans: list[SpanColumns] = []
        self._end_processes()
        spans += self._join()
        spans += self._answer(final=final)
        self._give_up(final=final)
        spans += self._close_windows(final=final)
        self._forget_processes()
        self._timeline.forget_before(self._now_ns - HISTORY_NS)
        self._count_conversations()
        return spans

    def _forget_processes(self) -> None:
        for gone in self._gone:
            self._timeline.forget_process(gone.tgid)
            self._functions.pop(gone.tgid, None)
            if gone.tgid in self._resources:
                self._leaving.append((gone.time_ns + LINGER_NS, gone.tgid, self._resources[gone.tgid]))
        self._gone.clear()
        while self._leaving and self._leaving[0][0] <= self._now_ns:
            _, tgid, owner = self._leaving.popleft()
            self._departed.add(owner)
            if self._resources.get(tgid) == owner:  # else its number was given out again
                del self._resources[tgid]

    def _end_processes(self) -> None:
        for conversation in self._conversations.values():
            for gone in self._gone:
                self._take(conversation.process_gone(gone.tgid, gone.time_ns))
            self._take(conversation.expire(self._now_ns))

    def _take(self, activity: Activity) -> None:
        self._timeline.apply(activity.claims)
        self._exchanges += activity.exchanges

    def _resource(self, tgid: int) -> Resource:
        if tgid not in self._resources:
            # It ended before anyone could look at it.
            self._resources[tgid] = resource({"service.name": "unknown_service", "process.pid": tgid})
        return self._resources[tgid]

    def _join(self) -> list[SpanColumns]:
        """Give each new operation its request, count it, and put it where it waits."""
        if not self._operations:
            return []
        rows = concatenate(self._operations)
        self._operations.clear()
        self._set_names(rows)
        owners = self._timeline.owners(rows["tid"], rows["start_ns"])
        rows["context_source"] = np.where(owners > 0, ContextSource.THREAD, ContextSource.NONE)
        measure_operations(self.metrics, rows, self._operation_signals, self._resource)
        self.summary.add_operations(rows, owners, self.vocabulary)
        answered = self._book.is_finished(owners)
        spans = self._late(rows.compress(answered), owners[answered])
        waiting = (owners > 0) & ~answered
        held = rows.compress(waiting)
        self._book.add(held, owners[waiting], self._totals.of(held))
        if (owners <= 0).any():
            ambiguous = owners[owners <= 0] == AMBIGUOUS
            self._windows.add(rows.compress(owners <= 0), ambiguous.astype(np.int64) * _AMBIGUOUS)
        return spans

    def _set_names(self, rows: Operations) -> None:
        launches = np.flatnonzero(rows["kind"] == OperationKind.LAUNCH)
        tgids, functions = rows["tgid"][launches], rows["function"][launches]
        for tgid in np.unique(tgids):
            known = self._functions.get(int(tgid), {})
            mine = tgids == tgid
            distinct, inverse = np.unique(functions[mine], return_inverse=True)
            index = np.array([known.get(int(address), 0) for address in distinct], dtype=np.uint32)
            rows["name"][launches[mine]] = index[inverse]

    def _late(self, rows: Operations, owners: npt.NDArray[np.int64]) -> list[SpanColumns]:
        """Operations of requests that were told already: spans of their own under the request's."""
        spans: list[SpanColumns] = []
        self._loss("correlate", "late_operations", len(rows))
        for key in np.unique(owners):
            parents = self._book.finished(int(key))
            if parents is not None:
                mine = rows.compress(owners == key)
                spans += self._spans(unfolded(mine, np.zeros(len(mine), dtype=np.int64)), parents)
        return spans

    def _answer(self, *, final: bool) -> list[SpanColumns]:
        """Tell the requests that are complete."""
        done = [e for e in self._exchanges if final or e.end_ns <= self._now_ns]
        if not done:
            return []
        self._exchanges = [e for e in self._exchanges if not final and e.end_ns > self._now_ns]
        assert self._exchange_signals is not None
        served = self._book.take([e.key for e in done])
        identities = contexts(done, self._seed)
        slots = phase_of(done, served)
        sums = self._totals.by_group(served.operations, slots, len(done) * SLOTS)
        sums[::SLOTS] = served.totals
        for position in np.flatnonzero(served.dropped).tolist():
            # A phase's sums would lack what was not kept; the request's own are exact.
            sums[position * SLOTS + 1 : (position + 1) * SLOTS] = 0
        for position, exchange in enumerate(done):
            self._measure_exchange(exchange)
            self._remember(exchange, identities, position)
        self._loss("correlate", "operations_not_kept", int(served.dropped.sum()))
        self._loss("correlate", "unsampled_requests", int((~identities.sampled).sum()))
        spans = exchange_spans(
            done,
            identities.sampled,
            identities,
            [self._totals.attributes(row) for row in sums],
            served.dropped,
            {e.tgid: self._resource(e.tgid) for e in done},
            self._exchange_signals,
            unix_offset_ns=self._offset_ns,
        )
        told = identities.sampled[served.request]
        return spans + self._spans(
            unfolded(served.operations.compress(told), slots[told]), identities.parents
        )

    def _give_up(self, *, final: bool) -> None:
        """Requests that will not be answered any more: what they caused is told among the unlinked."""
        if not final and self._now_ns < self._next_sweep_ns:
            return
        self._next_sweep_ns = self._now_ns + HISTORY_NS // 8
        held = () if final else self._timeline.held()
        keys = self._book.stale(_FOREVER_NS if final else self._now_ns - HISTORY_NS, held)
        served = self._book.take(keys)
        self._loss("correlate", "unanswered_requests", len(keys))
        self._loss("correlate", "operations_not_kept", int(served.dropped.sum()))
        if len(served.operations):
            served.operations["context_source"] = ContextSource.NONE
            self._windows.add(served.operations, np.full(len(served.operations), _UNANSWERED))

    def _measure_exchange(self, exchange: Exchange) -> None:
        assert self._exchange_signals is not None
        owner = self._resource(exchange.tgid)
        for metric, value, labels in self._exchange_signals.metrics(exchange):
            self.metrics.add(metric, self._exchange_signals.scope, owner, labels, value)
        self.summary.add_exchange(exchange)

    def _remember(self, exchange: Exchange, identities: ExchangeContexts, position: int) -> None:
        slot = slice(position * SLOTS, position * SLOTS + 1)
        own = identities.parents
        parents = Parents(trace_id=own.trace_id[slot], span_id=own.span_id[slot], flags=own.flags[slot])
        self._book.remember(exchange.key, parents if identities.sampled[position] else None)

    def _close_windows(self, *, final: bool) -> list[SpanColumns]:
        closed = self._windows.close(
            self._now_ns, self._resource, seed=self._seed, offset_ns=self._offset_ns, final=final
        )
        if closed is None:
            return []
        return closed.roots + self._spans(closed.work, closed.parents)

    def _spans(self, work: Folded, parents: Parents) -> list[SpanColumns]:
        """Operation spans, as far as the detail asked for has them."""
        if self._detail == "phases" or not len(work):
            return []
        folded = fold(work, limit=SPANS_PER_PARENT[self._detail], runs=self._detail == "ops")
        return operation_spans(
            folded,
            parents,
            {int(tgid): self._resource(int(tgid)) for tgid in np.unique(folded.operations["tgid"])},
            self.vocabulary,
            seed=self._seed,
            unix_offset_ns=self._offset_ns,
        )

    def _count_conversations(self) -> None:
        """Add what the conversations' own counters grew by."""
        for family, conversation in self._conversations.items():
            for reason, total in conversation.counters.items():
                self._loss(family, reason, total - self._counted.get((family, reason), 0))
                self._counted[family, reason] = total
