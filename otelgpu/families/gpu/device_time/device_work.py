"""Device time of a session, from records to spans: what the pipeline asks, in the order in which it asks.

In: batches of activities and their names, host calls, finished requests. Out: device spans, each under the
span that its host call goes under: a request or its phase, or the root of its window where the call served
no request. Work waits with its request until that is answered, within the bounds of
:class:`~otelgpu.engine.attribution.pending.PendingOperations`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from otelgpu.engine.attribution.pending import PendingOperations, phase_of
from otelgpu.engine.attribution.threads import ThreadTimeline
from otelgpu.engine.attribution.unattributed import WINDOW_NS, window_roots
from otelgpu.engine.folding import Parents
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.operation_spans import Vocabulary
from otelgpu.families.gpu.device_time.join import DeviceTime
from otelgpu.families.gpu.device_time.names import ActivityNames
from otelgpu.families.gpu.device_time.spans import Sampling, device_spans, first_of_each, measure_activities
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.device_work import DEVICE_WORK, Activities, DeviceWork, correlations
from otelgpu.model.exchange import Exchange
from otelgpu.model.inputs import FunctionNamed
from otelgpu.model.operations import OPERATION, Operations
from otelgpu.model.resource import Resource
from otelgpu.model.spans import SpanColumns

Reasons = Callable[
    [npt.NDArray[np.uint32], npt.NDArray[np.uint64], npt.NDArray[np.int64]], npt.NDArray[np.int64]
]
"""As :meth:`otelgpu.engine.attribution.owners.Attribution.reasons`."""


def _no_totals(_: Operations, __: npt.NDArray[np.intp], groups: int) -> npt.NDArray[np.int64]:
    """Sums of requests are of host calls: device work adds nothing to them."""
    return np.zeros((groups, 0), dtype=np.int64)


class DeviceSession:
    """One session's.

    ``limit`` bounds the device spans of one parent, 0 reports none; ``demangle`` makes the name of a process's kernel
    readable; ``name_of`` answers (tgid, id as :meth:`feed` reported it) with an index into ``vocabulary.kernels``.
    """

    def __init__(
        self,
        metrics: Metrics,
        vocabulary: Vocabulary,
        *,
        seed: int,
        limit: int,
        resource_of: Callable[[int], Resource],
        name_of: Callable[[int, int], int],
        demangle: Callable[[str, int], str] = lambda name, tgid: name,
        show: Callable[[DeviceWork], None] = lambda _: None,
        correlated: Callable[[Operations, npt.NDArray[np.uint64]], None] = lambda rows, reported: None,
    ) -> None:
        """``show`` is given all work whose host call is known, before it is reported.

        ``correlated`` is given host calls with their :func:`~otelgpu.model.device_work.correlations`.
        """
        self._metrics, self._vocabulary = metrics, vocabulary
        self._seed, self._limit = seed, limit
        self._resource_of, self._name_of, self._demangle = resource_of, name_of, demangle
        self._show, self._correlated = show, correlated
        self._join = DeviceTime()
        self._names = ActivityNames()
        self._sampling = Sampling()
        self._book: PendingOperations[None] = PendingOperations(_no_totals, 0)
        self._counters: Counter[str] = Counter()

    def keep(self, limit: int) -> None:
        """Another bound of spans under one parent from now on."""
        self._limit = limit

    @property
    def counters(self) -> Counter[str]:
        """What was left out so far, by reason."""
        return self._counters + self._join.counters + self._names.counters

    def add_activities(self, rows: Activities, now_ns: int) -> None:
        """What devices did, as a process measured it."""
        self._join.add_activities(rows, now_ns)
        measure_activities(self._metrics, rows, self._resource_of)

    def learn_names(self, records: npt.NDArray[np.void]) -> list[FunctionNamed]:
        """Pieces of names; those that are known now, by the id that their work carries."""
        return [
            FunctionNamed(tgid=tgid, address=number, name=self._demangle(mangled, tgid), known=True)
            for tgid, number, mangled in self._names.feed(records)
        ]

    def add_calls(self, rows: Operations, now_ns: int) -> None:
        """Host calls, before launches are given their kernel names: those lie where correlation ids do."""
        reported = correlations(rows)
        self._sampling.measure(self._metrics, rows, reported, self._resource_of)
        self._join.add_calls(rows, reported, now_ns)
        self._correlated(rows, reported)

    def report(
        self,
        now_ns: int,
        timeline: ThreadTimeline,
        reasons: Reasons,
        finished: Callable[[int], Parents | None],
        is_finished: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]],
        *,
        offset_ns: int,
        final: bool,
    ) -> list[SpanColumns]:
        """Find each work's request: spans of what needs not wait for one.

        ``finished`` and ``is_finished`` answer as the book does.
        """
        work = self._join.take(now_ns, final=final)
        if not len(work):
            return []
        self._set_names(work)
        self._show(work)
        owners = timeline.owners(np.ascontiguousarray(work["tid"]), np.ascontiguousarray(work["start_ns"]))
        owners[work["context_source"] == ContextSource.TASK] = 0  # of the call: its thread says nothing
        work["context_source"] = np.where(owners > 0, ContextSource.THREAD, ContextSource.NONE)
        answered = is_finished(owners)
        waiting = (owners > 0) & ~answered
        spans = self._unattributed(work.compress(owners <= 0), owners[owners <= 0], reasons, offset_ns)
        for key in np.unique(owners[answered]).tolist():
            parents = finished(key)
            if parents is not None:
                mine = work.compress(owners == key)
                spans += self._spans(mine, np.zeros(len(mine), dtype=np.int64), parents, offset_ns)
        self._book.add(work.compress(waiting).view(OPERATION), owners[waiting])
        return spans

    def answer(
        self,
        done: Sequence[Exchange],
        boundary: npt.NDArray[np.uint64],
        with_work: npt.NDArray[np.bool_],
        parents: Parents,
        *,
        offset_ns: int,
    ) -> list[SpanColumns]:
        """The work of requests that are answered now, whose phases part at ``boundary``: of those ``with_work``.

        ``parents`` has a row for each slot of each request.
        """
        served = self._book.take([exchange.key for exchange in done])
        self._count("device_work_not_kept", int(served.dropped.sum()))
        if not len(served.operations):
            return []
        reported = with_work[served.request]
        slots = phase_of(boundary, served)[reported]
        return self._spans(served.operations.compress(reported).view(DEVICE_WORK), slots, parents, offset_ns)

    def give_up(self, keys: Sequence[int]) -> None:
        """Requests that will not be answered any more."""
        served = self._book.take(keys)
        self._count("device_work_unanswered", len(served.operations) + int(served.dropped.sum()))

    def forget_process(self, tgid: int) -> None:
        """A process has ended, and all that it wrote has been joined."""
        self._join.forget_process(tgid)
        self._names.forget_process(tgid)
        self._sampling.forget_process(tgid)

    def _set_names(self, work: DeviceWork) -> None:
        pairs, inverse = np.unique(work[["tgid", "name_id"]], return_inverse=True)
        indexes = [self._name_of(int(tgid), int(number)) if number else 0 for tgid, number in pairs]
        work["name"] = np.array(indexes, dtype=np.uint32)[inverse]

    def _unattributed(
        self, work: DeviceWork, owners: npt.NDArray[np.int64], reasons: Reasons, offset_ns: int
    ) -> list[SpanColumns]:
        if not len(work):
            return []
        tgids, starts = np.ascontiguousarray(work["tgid"]), np.ascontiguousarray(work["start_ns"])
        why = reasons(tgids, starts, owners).astype(np.uint64)
        keys = np.stack([tgids.astype(np.uint64), work["host_end_ns"] // WINDOW_NS, why], axis=1)
        windows, group = np.unique(keys, axis=0, return_inverse=True)
        parents = window_roots(windows[:, 0], windows[:, 1], windows[:, 2], seed=self._seed)
        return self._spans(work, group.reshape(-1).astype(np.int64), parents, offset_ns)

    def _spans(
        self, work: DeviceWork, group: npt.NDArray[np.int64], parents: Parents, offset_ns: int
    ) -> list[SpanColumns]:
        kept = first_of_each(work, group, self._limit)
        if self._limit:
            self._count("device_spans_not_reported", int((~kept).sum()))
        if not kept.any():
            return []
        work, group = work.compress(kept), group[kept]
        return device_spans(
            work,
            group,
            parents,
            {int(tgid): self._resource_of(int(tgid)) for tgid in np.unique(work["tgid"])},
            self._vocabulary,
            seed=self._seed,
            unix_offset_ns=offset_ns,
        )

    def _count(self, reason: str, count: int) -> None:
        if count:
            self._counters[reason] += count
