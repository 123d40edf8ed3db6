"""Device work → spans and metrics, in columns. The one table of these names; they are in docs/reference/cupti.md too.

A device span has the real start and end on the device, and the parent that the host call's span has. Nothing
is extrapolated from what was sampled: each span says what share of time had been measured when its slice
began, and a counter says how many calls were measured and how many were not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine import names
from otelgpu.engine.folding import Parents
from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.operation_signals import CALL_SECONDS
from otelgpu.engine.operation_spans import Vocabulary
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.device_work import Activities, DeviceWork, Work, causes_work
from otelgpu.model.ids import span_ids
from otelgpu.model.operations import Operations
from otelgpu.model.resource import Resource
from otelgpu.model.spans import Attribute, SpanColumns, SpanKind, StatusCode, Text, text_of_codes

SCOPE: Final = "otelgpu.device_time"

SAMPLED: Final = "otelgpu.device_time.sampled"
"""On spans: the share of the process's time in which device time had been measured, from 0 to 1, when the slice
began; 1 in the first. On the counter of calls: whether they were."""

KERNEL_DURATION: Final = Metric(
    name="gpu.cuda.kernel.duration",
    unit="s",
    instrument=Instrument.HISTOGRAM,
    description="Time that kernels ran on the device, as the device measured it, of those that were sampled.",
    buckets=CALL_SECONDS,
)
CALLS: Final = Metric(
    name="gpu.cuda.device_time.calls",
    unit="{call}",
    instrument=Instrument.COUNTER,
    description="Calls that make the device work, by whether their device time was measured.",
)

_SALT: Final = 0x6474  # keeps these ids apart from those of host calls made of the same words
_NAMES: Final = {Work.COPY: "memcpy", Work.SET: "memset"}


def measure_activities(metrics: Metrics, rows: Activities, resource_of: Callable[[int], Resource]) -> None:
    """Feed the durations of kernels, whether their call is known or not."""
    kernels = rows.compress(rows["work"] == Work.KERNEL)
    for tgid in np.unique(kernels["tgid"]):
        seconds = kernels["duration_ns"][kernels["tgid"] == tgid] * 1e-9
        metrics.add(KERNEL_DURATION, SCOPE, resource_of(int(tgid)), {}, seconds)


class Sampling:
    """Counts calls with and without device time, of the processes that measure it at all."""

    def __init__(self) -> None:
        self._measuring: set[int] = set()

    def measure(
        self,
        metrics: Metrics,
        rows: Operations,
        reported: npt.NDArray[np.uint64],
        resource_of: Callable[[int], Resource],
    ) -> None:
        """``reported``: what :func:`~otelgpu.model.device_work.correlations` gave for ``rows``."""
        sampled = reported != 0
        if not self._measuring and not sampled.any():
            return
        self._measuring |= set(np.unique(rows["tgid"][sampled]).tolist())
        causing = causes_work(rows)
        for tgid in self._measuring & set(np.unique(rows["tgid"][causing]).tolist()):
            mine = causing & (rows["tgid"] == tgid)
            for label, which in (("true", mine & sampled), ("false", mine & ~sampled)):
                if count := int(which.sum()):
                    metrics.add(CALLS, SCOPE, resource_of(tgid), {SAMPLED: label}, count)

    def forget_process(self, tgid: int) -> None:
        """A process has ended: its number may be given out again."""
        self._measuring.discard(tgid)


def first_of_each(rows: DeviceWork, group: npt.NDArray[np.int64], limit: int) -> npt.NDArray[np.bool_]:
    """Which rows are among the ``limit`` of their group that began first on the device: shape (n,)."""
    order = np.lexsort((rows["device_start_ns"], group))
    ordered = group[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(order) else order
    lengths = np.diff(np.r_[begins, len(order)])
    kept = np.empty(len(order), dtype=np.bool_)
    kept[order] = np.arange(len(order)) - np.repeat(begins, lengths) < limit
    return kept


def device_spans(
    rows: DeviceWork,
    group: npt.NDArray[np.int64],
    parents: Parents,
    resources: dict[int, Resource],
    vocabulary: Vocabulary,
    *,
    seed: int,
    unix_offset_ns: int,
) -> list[SpanColumns]:
    """One batch per (process, family, kind of work). ``group`` indexes ``parents``, ``resources`` is by tgid."""
    keys = rows["tgid"].astype(np.uint64) << np.uint64(16)
    keys |= rows["family"].astype(np.uint64) << np.uint64(8)
    keys |= rows["work"].astype(np.uint64)
    batches = []
    for key in np.unique(keys).tolist():
        chosen = np.flatnonzero(keys == key)
        batches.append(
            _batch(
                rows.take(chosen),
                group[chosen],
                parents,
                resources[key >> 16],
                vocabulary,
                (key >> 8) & 0xFF,
                Work(key & 0xFF),
                seed=seed,
                unix_offset_ns=unix_offset_ns,
            )
        )
    return batches


def _batch(
    rows: DeviceWork,
    group: npt.NDArray[np.int64],
    parents: Parents,
    resource: Resource,
    vocabulary: Vocabulary,
    family: int,
    work: Work,
    *,
    seed: int,
    unix_offset_ns: int,
) -> SpanColumns:
    start_ns = rows["device_start_ns"] + np.int64(unix_offset_ns).astype(np.uint64)
    causes = rows["correlation"].astype(np.uint64) | (rows["stream_id"].astype(np.uint64) << np.uint64(32))
    return SpanColumns(
        resource=resource,
        scope=vocabulary.families[family][1].scope,
        kind=SpanKind.INTERNAL,
        trace_id=parents.trace_id[group],
        span_id=span_ids(seed ^ _SALT, rows["device_start_ns"], causes, rows["graph_node"]),
        parent_span_id=parents.span_id[group],
        trace_state=None,
        flags=parents.flags[group],
        start_unix_ns=start_ns,
        end_unix_ns=start_ns + rows["duration_ns"],
        name=_name(rows, vocabulary, work),
        status=np.full(len(rows), StatusCode.UNSET, dtype=np.uint8),
        status_message=None,
        attributes=tuple(_attributes(rows, vocabulary, family, work)),
    )


def _name(rows: DeviceWork, vocabulary: Vocabulary, work: Work) -> Text:
    if work is Work.KERNEL:
        return text_of_codes(rows["name"], lambda code: vocabulary.short_kernels[code])
    return text_of_codes(np.zeros(len(rows), dtype=np.intp), lambda _: _NAMES[work])


def _attributes(rows: DeviceWork, vocabulary: Vocabulary, family: int, work: Work) -> list[Attribute]:
    of_graph = rows["graph_node"] != 0
    attributes = [
        Attribute(key=names.THREAD_ID, values=rows["tid"].astype(np.int64)),
        Attribute(key="cuda.device.index", values=rows["device"].astype(np.int64)),
        Attribute(key="cuda.stream", values=rows["stream"].astype(np.uint64)),
        Attribute(key="cuda.stream.id", values=rows["stream_id"].astype(np.int64)),
        Attribute(key="cuda.correlation.id", values=rows["correlation"].astype(np.int64)),
        Attribute(
            key="cuda.call.delay",
            values=(rows["device_start_ns"].astype(np.int64) - rows["start_ns"].astype(np.int64)) / 1e9,
        ),
        Attribute(key=SAMPLED, values=rows["sampled"] * 1e-6),
        Attribute(
            key=names.CONTEXT_SOURCE,
            values=text_of_codes(rows["context_source"], lambda code: ContextSource(code).exported),
        ),
    ]
    if work is Work.KERNEL:
        full = text_of_codes(rows["name"], lambda code: vocabulary.kernels[code])
        attributes.append(Attribute(key=vocabulary.families[family][1].kernel_name, values=full))
    else:
        attributes.append(Attribute(key="cuda.size", values=rows["size_bytes"].astype(np.uint64)))
    if of_graph.any():
        present = None if of_graph.all() else of_graph
        node = rows["graph_node"].astype(np.uint64)
        graph = rows["graph"].astype(np.int64)
        attributes.append(Attribute(key="cuda.graph.node", values=node, present=present))
        attributes.append(Attribute(key="cuda.graph.id", values=graph, present=present))
    return attributes
