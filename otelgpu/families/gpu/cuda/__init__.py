"""Family ``cuda``: calls of the CUDA runtime and driver APIs.

``functions`` says what a name reports, ``decode`` turns records into operations, ``signals`` and ``results`` are
the names that are exported; ``handler`` passes on what devices did.
"""

from __future__ import annotations

from otelgpu.engine.contract import Family, Handler, OperationFamily
from otelgpu.engine.services import Services
from otelgpu.families.gpu.cuda.decode import CudaDecoder
from otelgpu.families.gpu.cuda.signals import SIGNALS


def _open(services: Services) -> Handler:
    from otelgpu.families.gpu.cuda.handler import CudaHandler

    return CudaHandler(services)


FAMILY = Family(
    name="cuda",
    operations=OperationFamily(decoder=lambda btf, _: CudaDecoder(btf), signals=SIGNALS),
    open=_open,
)
