"""RDMA as a whole: queue pairs of processes, ports of devices, errors of the hardware. Pure."""

from __future__ import annotations

from otelgpu.engine.contract import Family, Handler, Phase
from otelgpu.engine.services import Services


def _open(services: Services) -> Handler:
    from otelgpu.families.rdma.fabric.handler import FabricHandler

    return FabricHandler(services)


FAMILY = Family(name="fabric", load=None, open=_open, phase=Phase.CONNECTIONS)
