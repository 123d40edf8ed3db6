"""The spans that show a verdict: those of the steps in which its ranks spent most on what it is about. Pure.

In: a verdict and the tables, of which only inputs with spans have ``step_spans``. Out: the same with links.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from otelgpu.diagnose.ranks.facts import OWN, STEP, Columns, Query
from otelgpu.diagnose.ranks.verdicts import INCONCLUSIVE, MIXED, RankVerdict, StepLink

OF_EACH_RANK: Final = 2
MOST: Final = 8
"""Links of a rank, and of a verdict: a person looks at a few."""
_LINK: Final = re.compile("(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})")
_MOST_RANKS: Final = 1_000
"""Named in a question; the verdict on more is as well shown by these."""


def with_links(verdict: RankVerdict, query: Query) -> RankVerdict:
    """One that is about no steps has none."""
    if verdict.klass == INCONCLUSIVE or verdict.first_step < 0:
        return verdict
    kinds = OWN if verdict.cause == MIXED else (verdict.cause if verdict.cause in OWN else STEP,)
    ranks = ", ".join(str(int(rank)) for rank in verdict.ranks[:_MOST_RANKS])
    found = query(
        "step_links",
        kinds=", ".join(f"'{kind}'" for kind in kinds),
        first=str(int(verdict.first_step)),
        last=str(int(verdict.last_step)),
        ranks=f"s.rank IN ({ranks})" if ranks else "1 = 1",
        each=str(OF_EACH_RANK),
        most=str(MOST),
    )
    return replace(verdict, links=list(_links(found)))


def _links(found: Columns) -> Iterator[StepLink]:
    """What is no identity of a span is no link: a file may have anything there."""
    rows = zip(*(found[name].tolist() for name in ("rank", "step", "link")), strict=True)
    for rank, step, link in rows:
        if read := _LINK.fullmatch(link):
            yield StepLink(rank=rank, step=step, trace_id=read["trace"], span_id=read["span"])
