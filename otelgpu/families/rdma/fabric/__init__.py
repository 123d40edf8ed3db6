"""RDMA as a whole: queue pairs of processes, ports of devices, errors of the hardware. Pure."""

from otelgpu.engine.contract import Family, Phase
from otelgpu.families.rdma.fabric.handler import FabricHandler

FAMILY = Family(name="fabric", load=None, open=FabricHandler, phase=Phase.CONNECTIONS)
