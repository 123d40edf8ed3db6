"""An exporter of metrics that makes a frame of each two readings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from otelgpu.engine.presentation import PROCESSES, TopTable, TopView
from otelgpu.model.self_telemetry import Delivery
from otelgpu.render.top.frames import Frame
from otelgpu.render.top.processes import ObservedProcess, joined
from otelgpu.render.top.rows import Row, column_keys, in_order, rows

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    from otelgpu.model.profiles import ProfileColumns
    from otelgpu.model.spans import SpanBatch

Observed = Mapping[int, ObservedProcess]


def _nobody(pids: Iterable[int]) -> Observed:
    return {}


class Frames:
    """``show`` is called with each; the first is of the time since the session began. Spans are nobody's here.

    ``observed``: reads the processes that are observed, among them those of which metrics tell. Where ``is_ready``
    says no, there is no frame: the next is of a longer time.
    """

    def __init__(
        self,
        views: Sequence[TopView],
        sort: str,
        show: Callable[[Frame], None],
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        observed: Callable[[Iterable[int]], Observed] = _nobody,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

        self._views = views
        self._sort = sort
        self._show = show
        self._clock, self._wall_clock = clock, wall_clock
        self._observed, self._is_ready = observed, is_ready
        self._before, self._began = MetricsData(), clock()
        self._processes: Observed = {}
        self._closed = False
        self.shown = 0

    def export_spans(self, batches: Iterable[SpanBatch]) -> None:
        """They are made as they are taken: so they are taken."""
        for _ in batches:
            pass

    def export_metrics(self, data: MetricsData, items: int) -> None:
        """Show what happened since the last."""
        if self._closed or not self._is_ready():
            return
        now = self._clock()
        seconds = now - self._began
        views = {
            view.name: {each.name: self._rows(view, each, data, seconds) for each in view.top_tables}
            for view in self._views
        }
        self._before, self._began = data, now
        self.shown += 1
        self._show(Frame(seconds=seconds, unix_s=self._wall_clock(), views=views))

    def _rows(self, view: TopView, top_table: TopTable, data: MetricsData, seconds: float) -> list[Row]:
        sort = self._sort if self._sort in column_keys(top_table) else ""
        found = rows(top_table, self._before, data, seconds, sort)
        if view.name != PROCESSES:
            return found
        processes = self._observed(pid for row in found if isinstance(pid := row["pid"], int))
        found = joined(top_table, found, self._processes, processes, seconds)
        self._processes = processes
        return in_order(top_table, found, sort)

    def export_profiles(self, batches: Sequence[ProfileColumns]) -> None:
        """They are no table."""

    def end(self) -> None:
        """Show no more: what a session reports as it ends is of no whole interval."""
        self._closed = True

    def flush(self, deadline_s: float) -> bool:
        """Nothing waits."""
        return True

    def close(self, deadline_s: float) -> None:
        """Nothing is open."""

    def stats(self) -> Mapping[str, int]:
        """Nothing is sent, so nothing is lost."""
        return {}

    def deliveries(self) -> Sequence[Delivery]:
        """See :meth:`stats`."""
        return ()
