"""How HIP is shown."""

from __future__ import annotations

from typing import Final

from otelgpu.families.gpu.presentations import device_presentation

PRESENTATION: Final = device_presentation(
    "hip",
    "HIP",
    {
        "hipMemcpyHostToHost": "HtoH",
        "hipMemcpyHostToDevice": "HtoD",
        "hipMemcpyDeviceToHost": "DtoH",
        "hipMemcpyDeviceToDevice": "DtoD",
    },
)
