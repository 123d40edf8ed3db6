"""Family ``nccl``: collectives and point-to-point calls, groups, and the life of communicators.

``decode`` turns records into operations and what is known of communicators, ``signals`` has the names that are
exported; ``names`` those that others use of collectives too. ``collectives`` joins the calls of all
ranks into one trace, by the numbers of ``numbering``.
"""

from __future__ import annotations

from otelgpu.engine.contract import Family, Handler, Load, OperationFamily, Phase
from otelgpu.engine.services import Services
from otelgpu.families.nccl.decode import NcclDecoder
from otelgpu.families.nccl.signals import SIGNALS


def _open(services: Services) -> Handler:
    from otelgpu.families.nccl.handler import NcclHandler

    return NcclHandler(services)


FAMILY = Family(
    name="nccl",
    load=Load.FOUND,
    operations=OperationFamily(decoder=lambda btf, _: NcclDecoder(btf), signals=SIGNALS),
    open=_open,
    phase=Phase.COLLECTIVES,
)
