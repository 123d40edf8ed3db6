"""What names of the user's probes mean."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.description_tables import Described, Descriptions

DESCRIPTIONS: Final = Descriptions(
    attributes={
        "otelgpu.probe.name": Described(
            "What the user calls the probe; its values are `otelgpu.probe.argument.<name>`.", "tokenize"
        ),
    },
)
