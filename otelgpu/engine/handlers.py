"""The handlers of a session: opened in the order of their turns, and asked for what each of them has. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from otelgpu.elf.btf import Btf
from otelgpu.engine.contract import Counts, EndsProcesses, Family, Handler, Phase, Publishes, Takes, Ticks
from otelgpu.engine.losses import Losses
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.services import NEVER_NS, Routes, Services, Session, Slot
from otelgpu.model.inputs import Batch


class Handlers:
    """One session's, of ``families`` that have one. ``btf``: the record descriptions of those that have records."""

    def __init__(
        self, families: Mapping[str, Family], btf: Mapping[str, Btf], session: Session, routes: Routes
    ) -> None:
        self._routes = routes
        self.taking: dict[str, tuple[Slot, Takes]] = {}
        self._ticking: list[tuple[Phase, Slot, Ticks]] = []
        self._ending: list[tuple[Slot, EndsProcesses]] = []
        self._publishing: list[Publishes] = []
        self._counting: list[tuple[Slot, Counts]] = []
        for family in sorted(families.values(), key=lambda family: (family.phase, family.name)):
            if family.open is not None:
                slot = Slot(family.name)
                self._add(family, slot, family.open(Services(session, routes, slot, btf.get(family.name))))

    def _add(self, family: Family, slot: Slot, handler: Handler | None) -> None:
        if isinstance(handler, Takes):
            self.taking[family.name] = slot, handler
        if isinstance(handler, Ticks):
            slot.ticks = True
            self._ticking.append((family.phase, slot, handler))
        if isinstance(handler, EndsProcesses):
            self._ending.append((slot, handler))
        if isinstance(handler, Publishes):
            self._publishing.append(handler)
        if isinstance(handler, Counts):
            self._counting.append((slot, handler))

    def take(self, batch: Batch) -> None:
        """A batch to whose it is."""
        found = self.taking.get(batch.family)
        if found is not None:
            slot, handler = found
            slot.feed()
            handler.take(batch)

    @property
    def due_ns(self) -> int:
        """When the first of them has its turn, CLOCK_MONOTONIC; 0: at the next tick."""
        return min((slot.due_ns for _, slot, _ in self._ticking), default=NEVER_NS)

    def tick(self, first: Phase, last: Phase, now_ns: int, *, final: bool) -> None:
        """Those of some phases that were fed, or have asked for it."""
        for phase, slot, handler in self._ticking:
            if first <= phase <= last and (final or slot.is_due(now_ns)):
                slot.begin()
                self._routes.spans.append(list(handler.tick(now_ns, final=final)))

    def end_process(self, tgid: int, time_ns: int) -> None:
        """A process ended, and its last tick is over."""
        for slot, handler in self._ending:
            slot.feed()
            handler.end_process(tgid, time_ns)

    def publish(self, metrics: Metrics) -> None:
        """Before metrics are read."""
        for handler in self._publishing:
            handler.publish(metrics)

    def count_losses(self, losses: Losses) -> None:
        """What the counters grew by of those that did anything in this tick."""
        for slot, handler in self._counting:
            if slot.active:
                losses.follow(slot.family, handler.counters)
                slot.active = False
