"""How work on a device is shown."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.presentation import Presentation
from otelgpu.engine.viewer import SpanKind, SpanRule, ViewerPart
from otelgpu.families.gpu.device_time.spans import SCOPE

PRESENTATION: Final = Presentation(
    viewer=ViewerPart(
        kinds=(SpanKind(id="device", words="work on the GPU", device=True, summed=True),),
        rules=(SpanRule(kind="device", scope=SCOPE),),
    ),
)
