"""What is reported of work on devices."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.description_tables import Described, Descriptions, MetricTable
from otelgpu.families.gpu.device_time.spans import CALLS, KERNEL_DURATION, SAMPLED, SCOPE

DESCRIPTIONS: Final = Descriptions(
    attributes={SAMPLED: Described("The share of the calls whose device time is measured.", "0.1")},
    metrics=(MetricTable(scope=SCOPE, metrics={KERNEL_DURATION: (), CALLS: (SAMPLED,)}),),
)
