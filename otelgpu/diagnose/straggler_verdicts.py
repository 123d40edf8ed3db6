"""Verdicts of the report on collectives: which rank the others wait for. Pure.

In: a :class:`~otelgpu.diagnose.stragglers.CollectiveReport`. Out: verdicts, the most costly first; none for a healthy
job. In every collective some rank is the last one, so being last is not enough: it must be the same rank nearly
always, by more than the clocks' spread, and cost a share of the time that matters.
"""

from __future__ import annotations

from typing import Final

from otelgpu.diagnose.stragglers import CollectiveReport, RankLateness
from otelgpu.families.nccl import collective_names as names
from otelgpu.model.resource import AttributeValue
from otelgpu.model.verdict import SpanReference, Verdict

STRAGGLER: Final = "straggler"
LEAST_COLLECTIVES: Final = 11
"""Of fewer, one of two ranks that are equally fast is the last of nearly all too often, by chance."""
LEAST_LAST: Final = 0.8
"""Share of its collectives in which the rank was the last. Of 11 coin tosses, 9 or more fall alike in 7 % of cases."""
LEAST_SHARE: Final = 0.01
"""Of the time in which the rank was seen, that the others waited for it alone."""


def straggler_verdicts(report: CollectiveReport) -> list[Verdict]:
    """See the module."""
    found = [_verdict(each) for each in report.ranks if _is_straggler(each)]
    return sorted(found, key=lambda verdict: -verdict.cost_s)


def _is_straggler(rank: RankLateness) -> bool:
    seconds = (rank.end_unix_ns - rank.start_unix_ns) * 1e-9
    return (
        rank.certain
        and rank.collectives >= LEAST_COLLECTIVES
        and rank.last >= LEAST_LAST
        and rank.cost_s >= LEAST_SHARE * seconds
    )


def _verdict(rank: RankLateness) -> Verdict:
    place: dict[str, AttributeValue] = {
        "host.name": rank.host,
        names.HASH: rank.communicator,
        names.RANK: rank.rank,
    }
    return Verdict(
        kind=STRAGGLER,
        place=place,
        start_unix_ns=rank.start_unix_ns,
        end_unix_ns=rank.end_unix_ns,
        cost_s=rank.cost_s,
        confidence=rank.last,
        text=f"rank {rank.rank} of communicator {rank.communicator} on {rank.host} is a straggler: the last of "
        f"{rank.last:.0%} of {rank.collectives} collectives, by {rank.median_s * 1e3:.3f} ms in the median",
        proof=SpanReference(trace_id=bytes.fromhex(rank.trace_id), span_id=bytes.fromhex(rank.span_id)),
    )
