"""gloo in a session: its groups become communicators, and stretches of threads are passed on to who has steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from otelgpu.engine.facts import CommunicatorsSeen, StretchesSeen
from otelgpu.engine.services import Services
from otelgpu.families.gloo.decode import stretches
from otelgpu.families.gloo.groups import learn
from otelgpu.model.inputs import Batch
from otelgpu.model.job_groups import JobGroups


class GlooHandler:
    """Calls are decoded elsewhere, and reported as all collectives are."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._groups = JobGroups("gloo", services.session.processes.known)

    @property
    def counters(self) -> Mapping[str, int]:
        """What could not be known, by reason."""
        return self._groups.counters

    def take(self, batch: Batch) -> None:
        """Calls, or stretches."""
        seen = learn(self._groups, batch)
        if seen:
            self._services.emit(CommunicatorsSeen(seen))
        rows = stretches(batch)
        if len(rows):
            self._services.emit(StretchesSeen(rows))

    def end_process(self, tgid: int, time_ns: int) -> None:
        """Its groups are gone."""
        self._groups.forget_process(tgid)
