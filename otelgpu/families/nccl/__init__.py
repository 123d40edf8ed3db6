"""Family ``nccl``: collectives and point-to-point calls, groups, and the life of communicators.

``decode`` turns records into operations and what is known of communicators, ``signals`` and ``results`` are the
names that are exported; ``names`` those that others use of collectives too. ``collectives`` joins the calls of all
ranks into one trace, by the numbers of ``numbering``.
"""

from otelgpu.engine.contract import Family, Load, OperationFamily, Phase
from otelgpu.families.nccl.decode import NcclDecoder
from otelgpu.families.nccl.handler import NcclHandler
from otelgpu.families.nccl.signals import SIGNALS

FAMILY = Family(
    name="nccl",
    load=Load.FOUND,
    operations=OperationFamily(decoder=lambda btf, _: NcclDecoder(btf), signals=SIGNALS),
    open=NcclHandler,
    phase=Phase.COLLECTIVES,
)
