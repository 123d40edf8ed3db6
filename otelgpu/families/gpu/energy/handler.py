"""Energy in a session: what it listens to, and what requests are told of it. Pure.

Until a GPU reports energy it does nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from otelgpu.engine.facts import (
    CallsOwned,
    DeviceWorkJoined,
    EngineStepsEnded,
    ProcessForgotten,
    RequestsGivenUp,
    TickBegins,
    TrafficParsed,
)
from otelgpu.engine.hardware_names import ID
from otelgpu.engine.operation_metrics import Part
from otelgpu.engine.services import Services
from otelgpu.families.gpu.energy.ledger import Ledger
from otelgpu.families.gpu.energy.signals import DEVICE_ENERGY, SCOPE, USE, Rates, attributes, measurements
from otelgpu.families.gpu.energy.work import Work
from otelgpu.model.devices import DeviceGone, DeviceReadings, DeviceSeen, EnergyRead, ProcessDevices
from otelgpu.model.exchange import Exchange, Role
from otelgpu.model.operations import OperationKind
from otelgpu.model.spans import SpanColumns

_CALLS: Final = (
    *(OperationKind.LAUNCH, OperationKind.GRAPH_LAUNCH, OperationKind.COPY, OperationKind.SET),
    *(OperationKind.SYNCHRONIZATION, OperationKind.COLLECTIVE),
)
"""Calls that have the device work, or wait for it."""

_ASKS: Final = ("GET", "HEAD", "OPTIONS")
"""What asks how a server is has it generate nothing."""

_RETRY_NS: Final = 100_000_000


class EnergyHandler:
    """Offers requests their accounts."""

    def __init__(self, services: Services) -> None:
        session = services.session
        settings = session.settings
        self._services, self._clock, self._metrics = services, session.clock, session.metrics
        self._own, self._resource_of = session.own, session.processes.resource
        self._attribution = session.attribution
        self._rates = Rates(
            per_kwh=settings.price_per_kwh,
            per_gpu_hour=settings.price_per_gpu_hour,
            currency=settings.currency,
            carbon_grams_per_kwh=settings.carbon_grams_per_kwh,
        )
        self._work = Work(session.processes.lineage)
        self._ledger = Ledger(self._work, idle_milliwatts=round(settings.gpu_idle_watts * 1000))
        self._reads = False
        self._hears_engines = self._final = False
        services.listen(EnergyRead, self._read)
        services.listen(DeviceSeen, self._ledger.see)
        services.listen(DeviceReadings, self._ledger.note)
        services.listen(DeviceGone, lambda gone: self._ledger.lose(gone.uuid))
        services.listen(ProcessDevices, self._ledger.show)

    @property
    def counters(self) -> Mapping[str, int]:
        """What was left out, by reason."""
        return self._ledger.counters + self._work.counters

    def _read(self, read: EnergyRead) -> None:
        if not self._reads:
            self._begin()
        self._ledger.read(read)

    def _begin(self) -> None:
        """A GPU reports energy: from here on it matters what is done."""
        self._reads = True
        services = self._services
        services.offers.accounts = self
        services.offers.awaits_readings = lambda: self._ledger.wants_readings(self._clock.now_ns)
        services.listen(TrafficParsed, self._hear)
        services.listen(TickBegins, self._begin_tick)
        services.listen(CallsOwned, self._take_calls)
        services.listen(DeviceWorkJoined, self._take_device_work)
        services.listen(EngineStepsEnded, lambda fact: self._work.add_steps(fact.steps))
        services.listen(RequestsGivenUp, self._give_up)
        services.listen(ProcessForgotten, lambda fact: self.end_process(fact.tgid, 0))
        services.watch((OperationKind.LAUNCH, OperationKind.GRAPH_LAUNCH), self._launch)

    def _begin_tick(self, fact: TickBegins) -> None:
        self._final = fact.final

    # -- input ---------------------------------------------------------------------------------

    def _hear(self, fact: TrafficParsed) -> None:
        self._hears_engines |= bool(fact.messages)
        for opened in fact.opened:
            if opened.role is not Role.CLIENT and opened.method not in _ASKS:
                self._work.begin(opened.key, opened.tgid, opened.start_ns)
        for exchange in fact.exchanges:
            if exchange.role is not Role.CLIENT and exchange.generation is not None:
                self._work.begin(exchange.key, exchange.tgid, exchange.start_ns)
            self._work.end(exchange.key, exchange.end_ns)
        for key in fact.shed:
            self._ledger.close(key, counts=False)

    def _give_up(self, fact: RequestsGivenUp) -> None:
        for key in fact.keys:
            self._ledger.close(key, counts=False)

    def _launch(self, part: Part) -> None:
        starts = part.rows["start_ns"]
        ends = starts + part.rows["duration_ns"]
        self._work.launch(part.tgid, int(starts.min()), int(ends.max()))

    def _take_calls(self, fact: CallsOwned) -> None:
        wanted = np.isin(fact.rows["kind"], _CALLS)
        rows, owners = fact.rows.compress(wanted), fact.owners[wanted]
        if len(rows):
            self._work.add_calls(rows["tgid"], owners, rows["start_ns"], rows["duration_ns"])

    def _take_device_work(self, fact: DeviceWorkJoined) -> None:
        work = fact.work
        tids, starts = np.ascontiguousarray(work["tid"]), np.ascontiguousarray(work["start_ns"])
        owners = self._attribution.owners(tids, starts)
        owned = owners > 0
        if owned.any():
            rows = work.compress(owned)
            self._work.add_calls(
                rows["tgid"], owners[owned], rows["device_start_ns"], rows["duration_ns"], device=True
            )

    # -- offered to requests -------------------------------------------------------------------

    def is_known(self, exchange: Exchange) -> bool:
        """Whether all is known that a generation used, or ever will be; at once of what is none."""
        if exchange.generation is None:
            return True
        return self._ledger.is_known(exchange.key, exchange.end_ns, self._clock.now_ns)

    def close(self, exchanges: Sequence[Exchange]) -> Sequence[Mapping[str, Any]]:
        """What each of them used; what is no generation has used nothing that is reported."""
        if self._final:
            self._settle()
        found: list[Mapping[str, Any]] = []
        for exchange in exchanges:
            account = self._ledger.close(exchange.key, counts=exchange.generation is not None)
            if account is None or exchange.generation is None:
                found.append({})
                continue
            used = account.used
            owner = self._resource_of(exchange.tgid)
            for metric, labels, value in measurements(exchange, used, self._rates):
                self._metrics.add(metric, SCOPE, owner, labels, value)
            found.append(attributes(used, account.method, account.idle_power, account.source, self._rates))
        return found

    # -- output --------------------------------------------------------------------------------

    def _settle(self) -> None:
        self._ledger.settle(self._clock.now_ns, hears_engines=self._hears_engines, final=self._final)

    def tick(self, now_ns: int, *, final: bool) -> Iterable[SpanColumns]:
        """Share what can be shared by now."""
        if self._reads:
            self._settle()
            if final:
                for key in list(self._work.flights):
                    self._ledger.close(key, counts=False)
            for (uuid, use), nanojoules in self._ledger.take_used():
                labels = {ID: uuid, USE: use}
                self._metrics.add(DEVICE_ENERGY, SCOPE, self._own, labels, nanojoules)
            if self._ledger.is_waiting:
                self._services.wake(now_ns + _RETRY_NS)
        return ()

    def end_process(self, tgid: int, time_ns: int) -> None:
        """All that it did has been reported."""
        self._ledger.forget_process(tgid)
