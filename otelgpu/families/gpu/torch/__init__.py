"""Family ``torch``: what PyTorch's caching allocators report of the memory of tensors.

Its functions are called for each tensor that is made or dropped: so it is loaded only where it is asked for, by its
name or with profiles of memory.
"""

from typing import Final

from otelgpu.engine.contract import Family, Load, Phase
from otelgpu.families.gpu.torch.handler import TorchHandler

FAMILY: Final = Family(name="torch", load=Load.ASKED, open=TorchHandler, phase=Phase.MEMORY)
