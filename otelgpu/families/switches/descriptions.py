"""What is reported of a switch."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.description_tables import TEXT, Described, Descriptions, Page
from otelgpu.families.switches import names

_DESCRIBED: Final = {
    names.STATE: Described("`began`, `ended` or `refused`", "began"),
    names.REASON: Described(
        "of one that ended: `over`, `withdrawn` (the annotation, or the pod, is gone) or `agent_ended`; of one "
        "that was refused: why, as it is counted",
        "too_long",
    ),
    names.VALUE: Described("what the annotation `otelgpu.io/detail` of the pod says", "all 5m"),
    names.MANAGER: Described(
        "the field manager that wrote it, by its own word; who it was is in the API server's audit log",
        "kubectl-annotate",
    ),
}

DESCRIPTIONS: Final = Descriptions(
    attributes=_DESCRIBED,
    pages={
        "switch attributes": Page(
            header=("Attribute", "What it reports"), rows=dict.fromkeys(_DESCRIBED, (TEXT,))
        )
    },
)
