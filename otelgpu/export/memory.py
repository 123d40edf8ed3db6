"""Spans and profiles kept in memory, for who makes a file of them at the end: ``otelgpu profile``, tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from otelgpu.export.base import deliveries_of
from otelgpu.model.events import Event
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.self_telemetry import Delivery
from otelgpu.model.spans import SpanBatch, SpanColumns, in_columns

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

ROWS: Final = 4_000_000
"""Spans, and observations of profiles, that are kept by default: some 400 MB of each at most."""


class MemoryExporter:
    """An :class:`~otelgpu.export.base.Exporter` that keeps all, up to ``max_rows`` of spans and of observations.

    More are counted as lost ("memory_full"). Metrics are not kept: ``see_metrics`` is shown them as they come.
    """

    def __init__(
        self, max_rows: int = ROWS, see_metrics: Callable[[MetricsData], object] | None = None
    ) -> None:
        self.spans: list[SpanColumns] = []
        self.profiles: list[ProfileColumns] = []
        self.events: list[Event] = []
        self.losses: Mapping[tuple[str, str], int] = {}
        """What did not come here, by (family, reason): of who detached, for who reads this afterwards."""
        self._max_rows, self._see_metrics = max_rows, see_metrics
        self._counts: Counter[str] = Counter()

    def export_spans(self, batches: Iterable[SpanBatch]) -> None:
        """See :class:`~otelgpu.export.base.Exporter`."""
        for columns in in_columns(batches):
            if self._takes("spans", len(columns)):
                self.spans.append(columns)

    def export_metrics(self, data: MetricsData, items: int) -> None:
        """See :class:`~otelgpu.export.base.Exporter`."""
        if self._see_metrics is not None:
            self._see_metrics(data)
        self._counts["points_given"] += items
        self._counts["points_accepted"] += items

    def export_profiles(self, batches: Sequence[ProfileColumns]) -> None:
        """See :class:`~otelgpu.export.base.Exporter`."""
        for columns in batches:
            if self._takes("profiles", len(columns)):
                self.profiles.append(columns)

    def export_events(self, events: Sequence[Event]) -> None:
        """See :class:`~otelgpu.export.base.EventExporter`."""
        if self._takes("events", len(events)):
            self.events += events

    def _takes(self, items: str, rows: int) -> bool:
        fits = self._counts[f"{items}_accepted"] + rows <= self._max_rows
        self._counts[f"{items}_given"] += rows
        self._counts[f"{items}_accepted" if fits else f"{items}_lost_memory_full"] += rows
        return fits

    def flush(self, deadline_s: float) -> bool:
        """Nothing is ever queued."""
        return True

    def close(self, deadline_s: float) -> None:
        """Nothing is open."""

    def stats(self) -> Mapping[str, int]:
        """See :class:`~otelgpu.export.base.Exporter`."""
        keys = ("given", "accepted", "queued", "lost_memory_full")
        kinds = ("spans", "points", "profiles", *(("events",) if self._counts["events_given"] else ()))
        return {f"{items}_{key}": self._counts[f"{items}_{key}"] for items in kinds for key in keys}

    def deliveries(self) -> Sequence[Delivery]:
        """See :class:`~otelgpu.export.base.Exporter`."""
        return deliveries_of("memory", self.stats())
