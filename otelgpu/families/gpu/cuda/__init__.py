"""Family ``cuda``: calls of the CUDA runtime and driver APIs.

``functions`` says what a name reports, ``decode`` turns records into operations, ``signals`` and ``results`` are
the names that are exported; ``handler`` passes on what devices did.
"""

from otelgpu.engine.contract import Family, OperationFamily
from otelgpu.families.gpu.cuda.decode import CudaDecoder
from otelgpu.families.gpu.cuda.handler import CudaHandler
from otelgpu.families.gpu.cuda.signals import SIGNALS

FAMILY = Family(
    name="cuda",
    operations=OperationFamily(decoder=lambda btf, _: CudaDecoder(btf), signals=SIGNALS),
    open=CudaHandler,
)
