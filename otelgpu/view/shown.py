"""What the page shows, as its program reads it: the families' parts as one. Pure.

In: :func:`otelgpu.engine.presentation.presentations`. Out: JSON values, which are part of the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from otelgpu.engine.presentation import presentations
from otelgpu.engine.viewer import ViewerPart


def shown(parts: Sequence[ViewerPart] | None = None) -> dict[str, Any]:
    """All families' kinds, rules, lists, divisions and notes; of a kind or list that two declare, the first."""
    if parts is None:
        parts = [each.viewer for each in presentations() if each.viewer is not None]
    kinds = {kind.id: kind for part in reversed(parts) for kind in reversed(part.kinds)}
    lists = {each.id: each for part in reversed(parts) for each in reversed(part.lists)}
    found = {
        "kinds": list(kinds.values()),
        "rules": [rule for part in parts for rule in part.rules],
        "lists": sorted(lists.values(), key=lambda each: (each.rank, each.id)),
        "divisions": [division for part in parts for division in part.divisions],
        "notes": [note for part in parts for note in part.notes],
        "launches": [part.launches for part in parts if part.launches],
        "reasons": [reason for part in parts for reason in part.reasons],
    }
    made: dict[str, Any] = msgspec.to_builtins(found)
    return made


@cache
def shown_histograms() -> frozenset[str]:
    """Metrics of which the page shows a histogram; of others but the losses it shows nothing."""
    parts = [each.viewer for each in presentations() if each.viewer is not None]
    return frozenset(one.metric for part in parts for each in part.lists for one in each.histograms)
