"""Hand-offs in a session: passed on to whoever attributes work. Pure."""

from __future__ import annotations

from otelgpu.engine.facts import HandedOff
from otelgpu.engine.services import Services
from otelgpu.families.sched.decode import SchedDecoder
from otelgpu.model.inputs import Batch


class SchedHandler:
    """Keeps nothing."""

    def __init__(self, services: Services) -> None:
        self._emit, self._decoder = services.emit, SchedDecoder()

    def take(self, batch: Batch) -> None:
        """Who woke whom."""
        self._emit(HandedOff(self._decoder.hand_offs(batch)))
