"""RDMA in a session: what it listens to, and when connections are reported. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from otelgpu.engine.facts import CommunicatorsSeen, VerbsFacts
from otelgpu.engine.services import Services
from otelgpu.families.rdma.fabric.session import FabricSession
from otelgpu.model.context import Context
from otelgpu.model.devices import DeviceSeen
from otelgpu.model.fabric import HardwareError, PortGone, PortReadings, PortSeen, QueuePairReadings
from otelgpu.model.spans import SpanColumns


class FabricHandler:
    """Offers the connections of communicators."""

    def __init__(self, services: Services) -> None:
        session = services.session
        self._services, self._clock, self._offers = services, session.clock, services.offers
        self._timeline = session.attribution.timeline
        self._fabric = FabricSession(
            session.metrics,
            session.processes.resource,
            session.processes.known,
            session.own,
            seed=session.seed,
            context_of=self._context_of_process,
        )
        services.offers.connections = self._connections
        services.listen(VerbsFacts, lambda fact: self._fabric.take(fact.facts))
        services.listen(CommunicatorsSeen, lambda fact: self._fabric.learn_communicators(fact.seen))
        learn = self._fabric.learn
        services.listen(DeviceSeen, learn)
        services.listen(PortSeen, learn)
        services.listen(PortReadings, learn)
        services.listen(PortGone, learn)
        services.listen(QueuePairReadings, learn)
        services.listen(HardwareError, learn)

    @property
    def counters(self) -> Mapping[str, int]:
        """What was left out or looked odd so far, by reason."""
        return self._fabric.counters

    def _connections(self, tgid: int, communicator_hash: int) -> Sequence[Context]:
        return self._fabric.connections(tgid, communicator_hash)

    def _context_of_process(self, tgid: int, time_ns: int) -> Context | None:
        """The span that a process worked under; None where it is not known, or there were several."""
        keys = {key for of, _, key in self._timeline.current() if of == tgid}
        return self._offers.context_of(keys.pop()) if len(keys) == 1 else None

    def tick(self, now_ns: int, *, final: bool) -> Iterable[SpanColumns]:
        """Spans of what is known by now; metrics that stand are set anew where they changed."""
        found = self._fabric.report(now_ns, self._clock.offset_ns, final)
        if self._fabric.is_active:
            self._services.wake()
        return found

    def end_process(self, tgid: int, time_ns: int) -> None:
        """Its spans come with the next tick."""
        self._fabric.forget_process(tgid, time_ns)
