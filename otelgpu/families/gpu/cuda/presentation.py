"""How CUDA is shown."""

from __future__ import annotations

from typing import Final

from otelgpu.families.gpu.presentations import device_presentation

PRESENTATION: Final = device_presentation(
    "cuda",
    "CUDA",
    {
        "MemcpyHostToHost": "HtoH",
        "MemcpyHostToDevice": "HtoD",
        "MemcpyDeviceToHost": "DtoH",
        "MemcpyDeviceToDevice": "DtoD",
    },
    rank=2,
)
