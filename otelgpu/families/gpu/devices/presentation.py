"""How devices are shown: what the driver says of a process, in ``otelgpu top``."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.presentation import Column, How, Presentation, ProcessColumns, Unit
from otelgpu.families.gpu.devices.metrics import PROCESS_MEMORY, PROCESS_UTILIZATION, TASK

PRESENTATION: Final = Presentation(
    process_columns=ProcessColumns(
        columns=(
            Column(
                key="gpu_share",
                title="GPU",
                how=How.MEAN,
                metrics=(PROCESS_UTILIZATION.name,),
                where={TASK: "general"},
                unit=Unit.SHARE,
            ),
            Column(
                key="gpu_memory_bytes",
                title="GPU memory",
                how=How.TOTAL,
                metrics=(PROCESS_MEMORY.name,),
                unit=Unit.BYTES,
            ),
        ),
        rank=0,
    ),
)
