"""RDMA in a session: what it listens to, and when connections are reported. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from otelgpu.engine.facts import CommunicatorsSeen
from otelgpu.engine.services import Services
from otelgpu.families.rdma.facts import VerbsFacts
from otelgpu.model.context import Context
from otelgpu.model.devices import DeviceSeen
from otelgpu.model.fabric import (
    FabricInput,
    HardwareError,
    PortGone,
    PortReadings,
    PortSeen,
    QueuePairReadings,
)
from otelgpu.model.spans import SpanColumns

if TYPE_CHECKING:
    from otelgpu.families.rdma.fabric.session import FabricSession

_SENSED: Final[tuple[type[DeviceSeen | FabricInput], ...]] = (
    *(DeviceSeen, PortSeen, PortReadings, PortGone),
    *(QueuePairReadings, HardwareError),
)
"""What is polled of devices."""


class FabricHandler:
    """Offers the connections of communicators. Most hosts have no RDMA: what follows it is made with the first fact."""

    def __init__(self, services: Services) -> None:
        session = services.session
        self._services, self._clock, self._offers = services, session.clock, services.offers
        self._timeline = session.attribution.timeline
        self._fabric: FabricSession | None = None
        services.offers.connections = self._connections
        services.listen(VerbsFacts, lambda fact: self._followed().take(fact.facts))
        services.listen(CommunicatorsSeen, lambda fact: self._followed().learn_communicators(fact.seen))
        for kind in _SENSED:
            services.listen(kind, self._learn)

    def _followed(self) -> FabricSession:
        if self._fabric is None:
            from otelgpu.families.rdma.fabric.session import FabricSession

            session = self._services.session
            self._fabric = FabricSession(
                session.metrics,
                session.processes.resource,
                session.processes.known,
                session.own,
                seed=session.seed,
                context_of=self._context_of_process,
            )
        return self._fabric

    @property
    def counters(self) -> Mapping[str, int]:
        """What was left out or looked odd so far, by reason."""
        return self._fabric.counters if self._fabric is not None else {}

    def _learn(self, fact: DeviceSeen | FabricInput) -> None:
        self._followed().learn(fact)

    def _connections(self, tgid: int, communicator_hash: int) -> Sequence[Context]:
        return self._fabric.connections(tgid, communicator_hash) if self._fabric is not None else ()

    def _context_of_process(self, tgid: int, time_ns: int) -> Context | None:
        """The span that a process worked under; None where it is not known, or there were several."""
        keys = {key for of, _, key in self._timeline.current() if of == tgid}
        return self._offers.context_of(keys.pop()) if len(keys) == 1 else None

    def tick(self, now_ns: int, *, final: bool) -> Iterable[SpanColumns]:
        """Spans of what is known by now; metrics that stand are set anew where they changed."""
        if self._fabric is None:
            return ()
        found = self._fabric.report(now_ns, self._clock.offset_ns, final)
        if self._fabric.is_active:
            self._services.wake()
        return found

    def end_process(self, tgid: int, time_ns: int) -> None:
        """Its spans come with the next tick."""
        if self._fabric is not None:
            self._fabric.forget_process(tgid, time_ns)
