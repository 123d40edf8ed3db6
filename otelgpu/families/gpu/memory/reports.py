"""Failures for want of memory in a session: which of them have an event, and with whose names. Pure.

In: failures as they are settled. Out: events; at most one in :data:`EVERY_NS` of each process and of those that
recovered and those that did not, for a program may ask in a loop: the others are counted, and the next event says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from otelgpu.engine.memory_names import MemoryNames
from otelgpu.engine.services import Services
from otelgpu.families.gpu.memory.device_facts import DeviceFacts
from otelgpu.families.gpu.memory.failures import Failure, Failures, Holder
from otelgpu.families.gpu.memory.post_mortem import Scene, post_mortem
from otelgpu.families.gpu.memory.stack_places import StackPlaces
from otelgpu.model.devices import DeviceGone, DeviceReadings, ProcessDevices
from otelgpu.model.events import Event
from otelgpu.model.memory_failures import RECOVERED
from otelgpu.model.samples import StackNamed

EVERY_NS: Final = 60_000_000_000


class FailureReports:
    """One session's. ``names``: of each family by its position; a family without has no events."""

    def __init__(self, services: Services, names: Sequence[MemoryNames | None], *, with_stacks: bool) -> None:
        self.failures = Failures()
        self.unreported = 0
        """Failures that had no event."""
        self._services, self._names = services, names
        self._devices, self._places = DeviceFacts(), StackPlaces()
        self._reported: dict[tuple[int, bool], int] = {}  # process, whether it recovered → when
        self._withheld: Counter[tuple[int, bool]] = Counter()
        services.listen(ProcessDevices, self._devices.take)
        services.listen(DeviceReadings, self._devices.take)
        services.listen(DeviceGone, self._devices.take)
        if with_stacks:
            services.listen(StackNamed, self._places.learn)

    def report(self, now_ns: int, *, final: bool) -> None:
        """At a tick, after the ledger was settled."""
        found = [event for each in self.failures.take(now_ns, final=final) if (event := self._event(each))]
        if found:
            self._services.report_events(found)
        self.unreported += self.failures.unwatched
        self.failures.unwatched = 0

    def forget(self, tgid: int) -> None:
        """Nothing more comes of a process."""
        self._devices.forget(tgid)
        self._places.forget(tgid)
        for kind in (True, False):
            self._reported.pop((tgid, kind), None)
            self._withheld.pop((tgid, kind), None)

    def _event(self, failure: Failure) -> Event | None:
        request = failure.request
        names = self._names[request.family] if request.family < len(self._names) else None
        key = failure.tgid, failure.outcome == RECOVERED
        last_ns = self._reported.get(key)
        if names is None or (last_ns is not None and request.time_ns < last_ns + EVERY_NS):
            self._withheld[key] += failure.attempts
            self.unreported += failure.attempts
            return None
        self._reported[key] = request.time_ns
        session = self._services.session
        scene = Scene(
            names=names,
            owner=session.processes.resource(failure.tgid),
            offset_ns=session.clock.offset_ns,
            device=self._devices.memory(failure.tgid, request.device, request.time_ns),
            level=self._services.offers.allocator_levels(failure.tgid, request.device),
            place_of=lambda holder: self._place(failure.tgid, holder),
            unreported=self._withheld.pop(key, 0),
        )
        return post_mortem(failure, scene)

    def _place(self, tgid: int, holder: Holder) -> str:
        """By its stack where that was taken, else the function that called."""
        named = self._places[tgid, holder.stack]
        return named or self._services.session.functions.name(tgid, holder.caller)
