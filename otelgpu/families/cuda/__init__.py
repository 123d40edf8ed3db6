"""Family ``cuda``: calls of the CUDA runtime API."""

from otelgpu.families.base import Family
from otelgpu.families.cuda.decode import CudaDecoder
from otelgpu.families.cuda.signals import SIGNALS

FAMILY = Family(name="cuda", open=CudaDecoder, signals=SIGNALS)
