"""Family ``torch``: what PyTorch's caching allocators report of the memory of tensors.

Its functions are called for each tensor that is made or dropped: so it is loaded only where it is asked for, by its
name or with profiles of memory.
"""

from __future__ import annotations

from typing import Final

from otelgpu.engine.contract import Family, Handler, Load, Phase
from otelgpu.engine.services import Services


def _open(services: Services) -> Handler:
    from otelgpu.families.gpu.torch.handler import TorchHandler

    return TorchHandler(services)


FAMILY: Final = Family(name="torch", load=Load.ASKED, open=_open, phase=Phase.MEMORY)
