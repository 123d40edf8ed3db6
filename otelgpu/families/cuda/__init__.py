"""Family ``cuda``: calls of the CUDA runtime and driver APIs.

``functions`` says what a name tells, ``decode`` turns records into operations, ``signals`` and ``results`` are
the names that are exported.
"""

from otelgpu.families.base import Family
from otelgpu.families.cuda.decode import CudaDecoder
from otelgpu.families.cuda.signals import SIGNALS

FAMILY = Family(name="cuda", open=lambda btf, _: CudaDecoder(btf), signals=SIGNALS)
