"""What is reported of a switch."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.description_tables import TEXT, Described, Descriptions, Page
from otelgpu.families.switches import names

_DESCRIBED: Final = {
    names.STATE: Described("`began`, `ended` or `refused`", "began"),
    names.REASON: Described(
        "of one that ended: `over`, `withdrawn` (the annotation, or the pod, is gone), `agent_ended` or, of a "
        "profile, `failed`; of one that was refused: why, as it is counted",
        "too_long",
    ),
    names.ANNOTATION: Described(
        "the annotation of the pod: `otelgpu.io/detail` or `otelgpu.io/profile`", "otelgpu.io/detail"
    ),
    names.VALUE: Described("what it says", "all 5m"),
    names.MANAGER: Described(
        "the field manager that wrote it, by its own word; who it was is in the API server's audit log",
        "kubectl-annotate",
    ),
    names.SAMPLES: Described("of a profile that ended: samples in it", "2970"),
    names.FILE: Described(
        "likewise: its file in the container `profile-pods`, where it was not sent to the Collector",
        "/var/lib/otelgpu/20261130T150000Z-serving-llm-server-1.pb.gz",
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
