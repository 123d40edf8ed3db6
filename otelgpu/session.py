"""Inputs through the pipeline to the exporters, whatever the inputs come from: the middle of every command."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from otelgpu import __version__
from otelgpu.export.base import EventExporter, Exporter, Queueing
from otelgpu.kernel.heap import give_back
from otelgpu.model.inputs import Input, LossCounted, Tick
from otelgpu.model.resource import AttributeValue, Resource, resource
from otelgpu.model.self_telemetry import Delivery
from otelgpu.model.settings import SignalSettings
from otelgpu.model.shares import Headroom

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    from otelgpu.engine.metrics import Metrics
    from otelgpu.engine.pipeline import Pipeline, Spans
    from otelgpu.engine.summary import Summary

FLUSH_SECONDS: Final = 3.0
"""From the beginning of the end to the end of the last delivery: it is over in five, whatever the destination does."""
SHORTEST_FLUSH_SECONDS: Final = 0.5
"""For the last delivery, however long all else took."""
RETIRE_SECONDS: Final = 30.0
"""How long a destination that was replaced has to take what was meant for it."""
GIVE_BACK_S: Final = 10.0
"""How often memory that is free goes back to the system: each export makes some that the C library would keep."""
METRICS_SECONDS: Final = 0.03
"""Of a turn of the loop that exporting metrics may take, beside one part of them; the next turn goes on with them."""
ENDED_KEPT: Final = 64
"""Of so many addresses and signals of destinations that were replaced the counts are reported: of the latest."""


def own_resource(extra: Mapping[str, AttributeValue]) -> Resource:
    """The resource of this program: what its own metrics are about."""
    return resource(
        {
            **extra,
            "service.name": "otelgpu",
            "service.version": __version__,
            "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
            "process.pid": os.getpid(),
        }
    )


class Session:
    """Inputs → pipeline → exporters. The same for a live source and for a capture.

    ``whole_metrics``: all metrics are handed on at once, whatever that takes, and not in parts.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        exporters: Sequence[Exporter],
        *,
        metric_interval_s: float | None,
        whole_metrics: bool = False,
    ) -> None:
        self._pipeline = pipeline
        self._exporters = tuple(exporters)
        self._past = _Past()
        self._interval = metric_interval_s
        self._whole_metrics = whole_metrics
        self._metrics: Iterator[tuple[MetricsData, int]] | None = None  # parts that are to be exported
        self._lost: Counter[str] = Counter()
        self._next_metrics = time.monotonic() + (metric_interval_s or 0)
        self._next_giving_back = time.monotonic() + GIVE_BACK_S
        self.before_metrics: Callable[[], None] = lambda: None
        """Called before metrics are exported: who keeps some elsewhere brings them in."""

    @property
    def summary(self) -> Summary:
        """Totals so far."""
        return self._pipeline.summary

    @property
    def own(self) -> Resource:
        """What this program is."""
        return self._pipeline.own

    @property
    def metrics(self) -> Metrics:
        """Where the metrics are kept."""
        return self._pipeline.metrics

    @property
    def tracked(self) -> Mapping[str, int]:
        """See :attr:`Pipeline.tracked`."""
        return self._pipeline.tracked

    @property
    def awaits_readings(self) -> bool:
        """See :attr:`Pipeline.awaits_readings`."""
        return self._pipeline.awaits_readings

    @property
    def exporters(self) -> Sequence[Exporter]:
        """Where the results go now."""
        return self._exporters

    def deliveries(self) -> list[tuple[int, Delivery]]:
        """What became of what was exported, with the place of each destination; from any thread."""
        found = [(place, each) for place, now in enumerate(self._exporters) for each in now.deliveries()]
        return found + self._past.deliveries()

    def read_own_metrics(self) -> MetricsData:
        """See :meth:`Pipeline.read_own_metrics`."""
        return self._pipeline.read_own_metrics()

    def reconfigure(self, settings: SignalSettings, *, metric_interval_s: float) -> None:
        """Go on reporting in another way: see :meth:`Pipeline.reconfigure`."""
        self._pipeline.reconfigure(settings)
        if metric_interval_s != self._interval:
            self._interval = metric_interval_s
            self._next_metrics = time.monotonic() + metric_interval_s

    def fit(self, headroom: Headroom) -> None:
        """Keep as much of what waits to be exported as there is room for."""
        for exporter in self._all_exporters():
            if isinstance(exporter, Queueing):
                exporter.fit(headroom)

    def replace_exporters(self, exporters: Sequence[Exporter]) -> None:
        """Send to these from now on. Those that are not among them deliver what they have, and end."""
        kept = set(map(id, exporters))
        retired = [
            _Retired(place, exporter)
            for place, exporter in enumerate(self._exporters)
            if id(exporter) not in kept
        ]
        self._past = self._past.joined(retired)
        self._exporters = tuple(exporters)

    def take(self, inputs: Iterable[Input]) -> None:
        """Feed inputs and hand on what comes out; metrics when they are due."""
        for item in inputs:
            spans = self._pipeline.feed(item)
            if isinstance(item, Tick):
                self._export(spans)
                self._export_profiles()
                self._export_events()
        now_s = time.monotonic()
        if self._interval is not None and self._metrics is None and now_s >= self._next_metrics:
            self._next_metrics = max(self._next_metrics + self._interval, now_s)
            self._begin_metrics()
        self._go_on_with_metrics(now_s + METRICS_SECONDS)
        if now_s >= self._next_giving_back:
            self._next_giving_back = now_s + GIVE_BACK_S
            give_back()

    def due_in_s(self, now_s: float) -> float:
        """Seconds until there is something to do that no input asks for, from ``now_s`` on; 0: at the next tick."""
        if self._metrics is not None:
            return 0.0
        due_s = self._pipeline.due_ns / 1e9
        if self._interval is not None:
            due_s = min(due_s, self._next_metrics)
        return max(due_s - now_s, 0.0)

    def export_metrics(self) -> None:
        """All metrics as of now, the exporters' own losses among them."""
        self._go_on_with_metrics()
        self._begin_metrics()
        self._go_on_with_metrics()

    def _go_on_with_metrics(self, until_s: float = float("inf")) -> None:
        """Export of those that have begun a part at least, and all where there is time."""
        while self._metrics is not None:
            part = next(self._metrics, None)
            if part is None:
                self._metrics = None
                return
            for exporter in self._exporters:
                exporter.export_metrics(*part)
            if time.monotonic() >= until_s:
                return

    def _begin_metrics(self) -> None:
        self.before_metrics()
        self._past = self._past.joined()
        lost: Counter[str] = Counter()
        for key, count in self._stats().items():
            _, _, reason = key.partition("_lost_")
            lost[reason] += count if reason else 0
        for reason, count in (lost - self._lost).items():
            self._pipeline.feed(LossCounted(family="export", reason=reason, count=count))
        self._lost = lost
        parts = self._pipeline.metric_parts
        self._metrics = parts(most=sys.maxsize) if self._whole_metrics else parts()

    def thread_contexts(self) -> dict[tuple[int, int], tuple[bytes, bytes]]:
        """What threads work for now: see :meth:`Pipeline.thread_contexts`."""
        return self._pipeline.thread_contexts()

    def finish(self, deadline_s: float = FLUSH_SECONDS) -> dict[str, int]:
        """Report everything, flush, close; what the exporters accepted and lost, summed over them."""
        self._export(self._pipeline.finish())
        self._export_profiles()
        self._export_events()
        self.export_metrics()
        until = time.monotonic() + deadline_s
        for exporter in self._all_exporters():
            exporter.close(max(until - time.monotonic(), 0.1))
        return dict(self._stats())

    def _all_exporters(self) -> list[Exporter]:
        """That may still have something to deliver."""
        return [*self._exporters, *(retired.exporter for retired in self._past.delivering)]

    def _stats(self) -> Counter[str]:
        """Summed over all that there have been."""
        stats = Counter(self._past.stats)
        for exporter in self._all_exporters():
            stats.update(exporter.stats())
        return stats

    def _export(self, spans: Spans) -> None:
        if len(self._exporters) > 1:
            spans = list(spans)  # which are made as they are taken, once
        for exporter in self._exporters:
            exporter.export_spans(spans)

    def _export_profiles(self) -> None:
        batches = self._pipeline.take_profiles()
        if batches:
            for exporter in self._exporters:
                exporter.export_profiles(batches)

    def _export_events(self) -> None:
        events = self._pipeline.take_events()
        if events:
            for exporter in self._exporters:
                if isinstance(exporter, EventExporter):
                    exporter.export_events(events)


class _Retired:
    """An exporter that takes nothing new, while it delivers what it has."""

    def __init__(self, place: int, exporter: Exporter) -> None:
        self.exporter = exporter
        self._place = place
        self._closing = threading.Thread(
            target=exporter.close, args=(RETIRE_SECONDS,), name="otelgpu-retire", daemon=True
        )
        self._closing.start()

    @property
    def has_ended(self) -> bool:
        return not self._closing.is_alive()

    def deliveries(self) -> list[tuple[int, Delivery]]:
        return [(self._place, each.retired()) for each in self.exporter.deliveries()]


_Reported = tuple[int, str, bool, bool, bool, tuple[str, int] | None]
"""A place, and what else distinguishes the deliveries there: ``kind``, which of three signals, ``address``."""


class _Past(Struct, frozen=True, kw_only=True):
    """Destinations that were replaced: those that still deliver, and of all that have ended the sums.

    One that is made anew at each of many reloads takes no more room than one. ``ended``: the latest ones last.
    """

    delivering: tuple[_Retired, ...] = ()
    stats: Mapping[str, int] = field(default_factory=dict)
    ended: Mapping[_Reported, Delivery] = field(default_factory=dict)

    def joined(self, retired: Iterable[_Retired] = ()) -> _Past:
        """With these, too; those that have ended meanwhile become sums."""
        delivering, stats, ended = [*retired], Counter(self.stats), dict(self.ended)
        for each in self.delivering:
            if not each.has_ended:
                delivering.append(each)
                continue
            stats.update(each.exporter.stats())
            for place, delivery in each.deliveries():
                which = delivery.metrics, delivery.profiles, delivery.events
                reported = place, delivery.kind, *which, delivery.address
                before = ended.pop(reported, None)
                ended[reported] = before.plus(delivery) if before is not None else delivery
        kept = dict(list(ended.items())[-ENDED_KEPT:])
        return _Past(delivering=tuple(delivering), stats=stats, ended=kept)

    def deliveries(self) -> list[tuple[int, Delivery]]:
        found = [reported for each in self.delivering for reported in each.deliveries()]
        return found + [(place, delivery) for (place, *_), delivery in self.ended.items()]
