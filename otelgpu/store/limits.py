"""Ranks in the sentences of :attr:`otelgpu.store.Store.limits`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_RANGES: Final = 8
"""So many are written out."""


def ranks_of(job: str, ranks: Sequence[int]) -> str:
    """Ranks of a job, which ascend, in words.

    >>> ranks_of("llama", [0, 1, 2, 5])
    'ranks 0–2 and 5 of llama'
    """
    ranges: list[list[int]] = []
    for rank in ranks:
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    written = [str(first) if first == last else f"{first}–{last}" for first, last in ranges[:_RANGES]]
    if len(ranges) > _RANGES:
        written.append(f"{len(ranks)} in all")
    *others, final = written
    listed = f"{', '.join(others)} and {final}" if others else final
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}{f' of {job}' if job else ''}"
