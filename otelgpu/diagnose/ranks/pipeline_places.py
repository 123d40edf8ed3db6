"""Stages and lanes of a pipeline where the input does not name them: they follow from who sends to whom. Pure.

Pairs that send to each other make chains; a rank's place in its chain is its stage, and the chain is its lane. Ranks
are numbered by stage, so the end with the lowest rank is the first stage.

Example: pairs (0, 2), (2, 4), (1, 3), (3, 5) are two lanes of three stages: 0-2-4 and 1-3-5.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


def stages_of(pairs: Iterable[tuple[int, int]], ranks: int) -> list[tuple[int, int]] | None:
    """(stage, lane) of each of ``ranks`` ranks; None: the pairs are not chains of one length that all ranks are in."""
    linked: dict[int, set[int]] = defaultdict(set)
    for one, other in pairs:
        linked[one].add(other)
        linked[other].add(one)
    if len(linked) < ranks or any(len(others) > 2 for others in linked.values()):
        return None
    found: dict[int, tuple[int, int]] = {}
    ends = sorted(rank for rank, others in linked.items() if len(others) == 1)
    lengths = set()
    for start in [
        *ends,
        *sorted(linked),
    ]:  # of a ring, which interleaved stages make, the lowest rank is the first
        if start in found:
            continue
        chain = _walk(start, linked)
        lane = min(chain)
        found |= {rank: (stage, lane) for stage, rank in enumerate(chain)}
        lengths.add(len(chain))
    return [found[rank] for rank in range(ranks)] if len(lengths) == 1 else None


def _walk(start: int, linked: dict[int, set[int]]) -> list[int]:
    chain, seen = [start], {start}
    while after := sorted(linked[chain[-1]] - seen):
        chain.append(after[0])
        seen.add(after[0])
    return chain
