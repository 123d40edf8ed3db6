"""What was counted as lost, in words: what is missing, what was meant to be so, what this machine does not have.

In: counts by (family, reason). Out: lines. The words are those of the manual, which ``python -m tools.document`` writes
beside this module from what stands where each reason is counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Final

from otelgpu.model.losses import Nature
from otelgpu.model.text import printable

_EACH: Final = "each"
"""The file of reasons that every family with probes has."""
_TITLES: Final = {Nature.LOST: "lost", Nature.INTENDED: "intended", Nature.UNAVAILABLE: "not here"}


def explain(family: str, reason: str) -> tuple[Nature, str]:
    """What a count of it says of the results, and what one count means; "" where nothing says that."""
    found = _reasons(family).get(reason) or _reasons(_EACH).get(reason) or (Nature.LOST, "")
    return Nature(found[0]), found[1]


@cache
def _reasons(room: str) -> Mapping[str, tuple[str, str]]:
    """Of one file. A capture may name families that are none of ours: their names open nothing."""
    if not room.isidentifier():
        return {}
    try:
        text = (resources.files("otelgpu.cli") / "loss_reasons" / f"{room}.json").read_text(encoding="utf-8")
    except OSError:
        return {}
    found: Mapping[str, tuple[str, str]] = json.loads(text)
    return found


def loss_lines(losses: Mapping[tuple[str, str], int]) -> Iterator[str]:
    """A line for each reason, the largest counts first; that nothing was lost is said too."""
    lines: dict[Nature, list[str]] = {nature: [] for nature in Nature}
    for (family, reason), count in sorted(losses.items(), key=lambda each: (-each[1], each[0])):
        if count:
            nature, text = explain(family, reason)
            meaning = f": {text}" if text else ""
            times = "" if nature is Nature.UNAVAILABLE else f" {count}"
            lines[nature].append(f"{_TITLES[nature]:8} {printable(f'{family}.{reason}')}{times}{meaning}")
    yield from lines[Nature.LOST] or [f"{_TITLES[Nature.LOST]:8} nothing"]
    yield from (*lines[Nature.INTENDED], *lines[Nature.UNAVAILABLE])
