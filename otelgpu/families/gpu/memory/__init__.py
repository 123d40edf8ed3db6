"""Device memory: what each process holds, who asked for it, and what never comes back. Pure."""

from otelgpu.engine.contract import Family, Phase
from otelgpu.families.gpu.memory.handler import MemoryHandler

FAMILY = Family(name="memory", load=None, open=MemoryHandler, phase=Phase.MEMORY)
