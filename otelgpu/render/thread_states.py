"""What a thread was doing while it was off the CPU, in the words of people who read it. Pure.

In: a batch of waits. Out: for each row its state: why it was not on a CPU, which no frame of its stack says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from otelgpu.families.profiles.names import THREAD_STATE
from otelgpu.model.codes import Codes
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.spans import Text

WORDS: Final[Mapping[str, str]] = {
    "runnable": "runnable",
    "interruptible": "sleeping",
    "uninterruptible": "uninterruptible",
    "stopped": "stopped",
}
"""Values of ``otelgpu.thread.state`` → how they are shown; others are not."""


def states_of(batch: ProfileColumns) -> tuple[Codes, tuple[str, ...]]:
    """Of each row the position of its state in the second, which begins with "": not known. Shape (n,)."""
    for attribute in batch.attributes:
        if attribute.key == THREAD_STATE and isinstance(attribute.values, Text):
            shown = ["", *dict.fromkeys(WORDS.values())]
            places = [shown.index(WORDS.get(str(value), "")) for value in attribute.values.table]
            codes = np.array(places, dtype=np.intp)[attribute.values.codes]
            if attribute.present is not None:
                codes = np.where(attribute.present, codes, 0)
            return codes, tuple(shown)
    return np.zeros(len(batch), dtype=np.intp), ("",)
