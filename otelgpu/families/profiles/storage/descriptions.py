"""What is reported of block devices."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.description_tables import Described, Descriptions, MetricTable
from otelgpu.families.profiles.storage.block import LABELS, METRICS, SCOPE

DESCRIPTIONS: Final = Descriptions(
    attributes={
        LABELS[0]: Described("The block device.", "nvme0n1"),
        LABELS[1]: Described("What it was asked to do.", "read"),
        LABELS[2]: Described(
            "Control group (the last part of its path) that a thread of the kernel wrote it back for, which charges "
            "it with the pages; the process is one that is in it. Absent: the process itself asked for it.",
            "docker-3f2a….scope",
        ),
    },
    metrics=(MetricTable(scope=SCOPE, metrics=dict.fromkeys(METRICS, LABELS)),),
)
