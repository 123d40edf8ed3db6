"""What is reported of memory that tensors hold."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.description_tables import Described, Descriptions, MetricTable
from otelgpu.families.gpu.torch.metrics import DEVICE, METRICS, SCOPE

DESCRIPTIONS: Final = Descriptions(
    attributes={
        DEVICE: Described("A device as PyTorch writes it, numbered as the process sees them.", "cuda:0")
    },
    metrics=(MetricTable(scope=SCOPE, metrics=dict.fromkeys(METRICS, (DEVICE,))),),
)
