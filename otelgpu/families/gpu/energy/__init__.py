"""What requests used of GPUs: energy, time and what they cost."""

from __future__ import annotations

from otelgpu.engine.contract import Family, Handler, Phase
from otelgpu.engine.services import Services


def _open(services: Services) -> Handler:
    from otelgpu.families.gpu.energy.handler import EnergyHandler

    return EnergyHandler(services)


FAMILY = Family(name="energy", load=None, open=_open, phase=Phase.CONNECTIONS)
