"""Device time in a session: what it listens to, and when its turn comes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from otelgpu.engine.facts import (
    CallsArrived,
    CallsCorrelated,
    DeviceActivities,
    DeviceActivityNames,
    DeviceWorkJoined,
    ProcessForgotten,
    RequestsAnswered,
    RequestsGivenUp,
    SettingsChanged,
)
from otelgpu.engine.folding import Parents
from otelgpu.engine.services import Services
from otelgpu.model.spans import SpanColumns

if TYPE_CHECKING:
    from otelgpu.families.gpu.device_time.device_work import DeviceSession


class DeviceTimeHandler:
    """Does nothing, not a nanosecond for each call, until a process says that it measures."""

    def __init__(self, services: Services) -> None:
        session = services.session
        self._services, self._clock, self._offers = services, session.clock, services.offers
        self._timeline, self._reasons = session.attribution.timeline, session.attribution.reasons
        self._limit = self._spans(session.settings.detail, session.limit)
        self._device: DeviceSession | None = None  # from when a process measures
        services.listen(DeviceActivities, self._see)
        services.listen(DeviceActivityNames, self._learn)
        services.listen(SettingsChanged, self._change)

    @property
    def counters(self) -> Mapping[str, int]:
        """What was left out so far, by reason."""
        return self._device.counters if self._device is not None else {}

    def _measure(self) -> DeviceSession:
        """A process's first says that it measures: it is written before the calls that say correlation ids."""
        if self._device is not None:
            return self._device
        from otelgpu.families.gpu.device_time.device_work import DeviceSession

        services, session = self._services, self._services.session
        self._device = device = DeviceSession(
            session.metrics,
            session.vocabulary,
            seed=session.seed,
            limit=self._limit,
            resource_of=session.processes.resource,
            name_of=session.functions.index,
            demangle=session.demangle,
            show=lambda work: services.emit(DeviceWorkJoined(work)),
            correlated=lambda rows, reported: services.emit(CallsCorrelated(rows, reported)),
        )
        services.listen(CallsArrived, lambda fact: device.add_calls(fact.rows, self._clock.now_ns))
        services.listen(RequestsAnswered, lambda fact: self._answer(device, fact))
        services.listen(RequestsGivenUp, lambda fact: device.give_up(fact.keys))
        services.listen(ProcessForgotten, lambda fact: device.forget_process(fact.tgid))
        return device

    def _see(self, fact: DeviceActivities) -> None:
        self._measure().add_activities(fact.rows, self._clock.now_ns)

    def _learn(self, fact: DeviceActivityNames) -> None:
        for answer in self._measure().learn_names(fact.records):
            self._services.emit(answer)

    def _answer(self, device: DeviceSession, fact: RequestsAnswered) -> None:
        self._services.report(
            device.answer(
                fact.exchanges, fact.boundary, fact.with_work, fact.parents, offset_ns=self._clock.offset_ns
            )
        )

    def _change(self, fact: SettingsChanged) -> None:
        self._limit = self._spans(fact.settings.detail, fact.limit)
        if self._device is not None:
            self._device.keep(self._limit)

    @staticmethod
    def _spans(detail: str, limit: int) -> int:
        return 0 if detail == "phases" else limit

    def tick(self, now_ns: int, *, final: bool) -> Iterable[SpanColumns]:
        """Device work whose request is known, or that has none."""
        if self._device is None:
            return ()
        self._services.wake()
        return self._device.report(
            now_ns,
            self._timeline,
            self._reasons,
            self._finished,
            self._is_finished,
            offset_ns=self._clock.offset_ns,
            final=final,
        )

    def _finished(self, key: int) -> Parents | None:
        return self._offers.requests.finished(key) if self._offers.requests is not None else None

    def _is_finished(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        requests = self._offers.requests
        return requests.is_finished(keys) if requests is not None else np.zeros(len(keys), dtype=np.bool_)

    def end_process(self, tgid: int, time_ns: int) -> None:
        """All that it wrote has been joined."""
        if self._device is not None:
            self._device.forget_process(tgid)
