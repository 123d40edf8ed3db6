"""Family ``torch``: what PyTorch's caching allocators report of the memory of tensors.

Its functions are called for each tensor that is made or dropped: so it is loaded only where it is asked for, by its
name or with profiles of memory.
"""

from typing import Final

from otelgpu.families.base import Family, Load
from otelgpu.families.torch.decode import TorchDecoder

FAMILY: Final = Family(name="torch", open=lambda btf, _: TorchDecoder(), signals=None, load=Load.ASKED)
