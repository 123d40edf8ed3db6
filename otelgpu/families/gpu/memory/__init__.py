"""Device memory: what each process holds, who asked for it, and what never comes back. Pure."""

from __future__ import annotations

from otelgpu.engine.contract import Family, Handler, Phase
from otelgpu.engine.services import Services


def _open(services: Services) -> Handler:
    from otelgpu.families.gpu.memory.handler import MemoryHandler

    return MemoryHandler(services)


FAMILY = Family(name="memory", load=None, open=_open, phase=Phase.MEMORY)
