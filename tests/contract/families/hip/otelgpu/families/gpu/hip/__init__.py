"""Family ``hip``: calls of AMD's HIP runtime. The same operations as CUDA's, under names of their own.

``decode`` turns records into operations; ``signals`` and ``results`` are the names that are exported.
"""

from otelgpu.families.gpu.hip.decode import HipDecoder
from otelgpu.families.gpu.hip.signals import SIGNALS

from otelgpu.engine.contract import Family, Load, OperationFamily

FAMILY = Family(
    name="hip",
    load=Load.FOUND,
    operations=OperationFamily(decoder=lambda btf, _: HipDecoder(btf), signals=SIGNALS),
)
