"""Hand-offs in a session: passed on to whoever attributes work. Pure."""

from __future__ import annotations

from otelgpu.engine.facts import HandedOff
from otelgpu.engine.services import Services
from otelgpu.families.sched.decode import SchedDecoder
from otelgpu.model.inputs import Batch


class SchedHandler:
    """Stateless."""

    def __init__(self, services: Services) -> None:
        self._emit, self._decoder = services.emit, SchedDecoder()

    def take(self, batch: Batch) -> None:
        """Emit the hand-offs of a batch."""
        self._emit(HandedOff(self._decoder.hand_offs(batch)))
