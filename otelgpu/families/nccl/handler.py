"""Collectives in a session: what they listen to and claim, and when they are reported. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from otelgpu.engine.facts import CommunicatorsSeen, DeviceWorkJoined, SettingsChanged
from otelgpu.engine.operation_metrics import Part
from otelgpu.engine.services import Services
from otelgpu.families.nccl.collectives import LOST, CollectiveSession
from otelgpu.families.nccl.decode import communicators
from otelgpu.model.inputs import Batch, LossCounted
from otelgpu.model.operations import OperationKind, Operations
from otelgpu.model.spans import SpanColumns

_TOGETHER = (OperationKind.COLLECTIVE, OperationKind.POINT_TO_POINT)
"""Calls that several processes make together: they are reported in traces of their own."""

_WAITED = (OperationKind.SYNCHRONIZATION, OperationKind.GRAPH)
"""Calls of a device's API that say how long such a call was waited for, and whether it was made at all."""

_FAMILY = "nccl"


class NcclHandler:
    """Joins the calls of ranks into collectives."""

    def __init__(self, services: Services) -> None:
        session = services.session
        self._services, self._clock = services, session.clock
        self._collectives = CollectiveSession(
            session.metrics,
            session.vocabulary,
            session.call_roles,
            session.processes.resource,
            seed=session.seed,
            settings=session.settings,
            request_context=services.offers.context_of,
            step_at=services.offers.step_at,
            connections=lambda tgid, hash_: services.offers.connections(tgid, hash_),
        )
        services.watch(_WAITED, self._see_waits)
        services.watch((OperationKind.GROUP,), lambda part: self._collectives.see_groups(part.rows))
        services.consume(_TOGETHER, self._claim)
        services.listen(DeviceWorkJoined, lambda fact: self._collectives.see_device_work(fact.work))
        services.listen(CommunicatorsSeen, lambda fact: self._collectives.learn(fact.seen))
        services.listen(LossCounted, self._lose)
        services.listen(SettingsChanged, lambda fact: self._collectives.reconfigure(fact.settings))

    @property
    def counters(self) -> Mapping[str, int]:
        """What was left out, or could not be known, by reason."""
        return self._collectives.counters

    def take(self, batch: Batch) -> None:
        """What was learnt of communicators; calls are decoded elsewhere."""
        seen = communicators(batch)
        if seen:
            self._services.emit(CommunicatorsSeen(seen))

    def _see_waits(self, part: Part) -> None:
        if self._collectives.has_communicators(part.tgid):
            self._collectives.see_waits(part.rows)

    def _claim(self, rows: Operations, owners: npt.NDArray[np.int64]) -> None:
        self._collectives.take(rows, owners)

    def _lose(self, loss: LossCounted) -> None:
        if loss.family == _FAMILY and loss.reason in LOST:
            self._collectives.lose()

    def tick(self, now_ns: int, *, final: bool) -> Iterable[SpanColumns]:
        """Collectives of which no more will be known."""
        if self._collectives.is_active:
            self._services.wake()
        return self._collectives.report(now_ns, self._clock.offset_ns, final)

    def end_process(self, tgid: int, time_ns: int) -> None:
        """What it called is still reported."""
        self._collectives.forget_process(tgid, time_ns)
