"""Family ``gloo``: collectives of gloo, by which PyTorch's jobs without GPUs communicate, and stretches of their steps.

``decode`` turns records into operations, ``groups`` says which group a call was made in, so that calls of all ranks
become one collective, and ``signals`` has the names that are exported of calls. What is reported of whole collectives
is as of those of NCCL.
"""

from __future__ import annotations

from typing import Final

from otelgpu.engine.contract import Family, Handler, Load, OperationFamily, Phase
from otelgpu.engine.services import Services
from otelgpu.families.gloo.decode import GlooDecoder
from otelgpu.families.gloo.signals import SIGNALS


def _open(services: Services) -> Handler:
    from otelgpu.families.gloo.handler import GlooHandler

    return GlooHandler(services)


FAMILY: Final = Family(
    name="gloo",
    load=Load.MAPPED,
    open=_open,
    phase=Phase.COLLECTIVES,
    operations=OperationFamily(decoder=lambda btf, _: GlooDecoder(btf), signals=SIGNALS),
)
