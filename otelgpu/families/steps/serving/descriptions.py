"""What is reported of an engine's steps."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.description_tables import Descriptions, MetricTable
from otelgpu.engine.names import PHASE
from otelgpu.families.steps.names import SCOPE
from otelgpu.families.steps.serving.metrics import METRICS, TOKENS

DESCRIPTIONS: Final = Descriptions(
    metrics=(
        MetricTable(
            scope=SCOPE, metrics={metric: (PHASE,) if metric is TOKENS else () for metric in METRICS}
        ),
    ),
)
