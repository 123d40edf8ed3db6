"""Ranks of which each row could be, and all together cannot: they are left out of ``ops``, and counted. Pure.

* Most steps take more than an hour: its times are not in seconds.
* It is on two hosts within one step: two jobs share the name. A rank that moved was not on both at once.

``step_sums`` says it; no operation is read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from otelgpu.store.limits import ranks_of
from otelgpu.store.queries import Run, tuples
from otelgpu.store.reasons import RANKS_ON_TWO_HOSTS, TIMES_NOT_IN_SECONDS
from otelgpu.store.row_checks import text_literal

_LONGEST_STEP_S: Final = 3_600
"""Steps of reinforcement learning take many minutes."""

_SUSPECTS: Final = f"""
    SELECT
        job, rank, sum(operations) AS rows_of_it,
        2 * sum(CASE WHEN seconds > {_LONGEST_STEP_S} THEN 1 ELSE 0 END) > sum(CASE WHEN step >= 0 THEN 1 ELSE 0 END)
            AS in_hours,
        max(hosts) > 1 AS on_several
    FROM (
        SELECT
            job, rank, step, sum(step_sums.operations) AS operations,
            CASE WHEN step >= 0 THEN max(end_s) - min(begin_s) ELSE 0 END AS seconds,
            CASE
                WHEN step >= 0 AND min(CASE WHEN host <> '' THEN host END) < max(CASE WHEN host <> '' THEN host END)
                THEN 2 ELSE 1
            END AS hosts
        FROM step_sums
        GROUP BY job, rank, step
    ) AS steps
    GROUP BY job, rank
    HAVING in_hours OR on_several
    ORDER BY job, rank
"""
"""A rank that was moved within a step is one too: whether it was on both at once is asked of these alone."""

_HOSTS: Final = """
    SELECT job, rank, step, host AS host_name, min(begin_s) AS first_s, max(end_s) AS last_s
    FROM step_sums
    WHERE step >= 0 AND host <> '' AND (job, rank) IN ({suspects})
    GROUP BY job, rank, step, host
"""
_AT_ONCE: Final = f"""
    SELECT DISTINCT a.job AS job, a.rank AS rank
    FROM ({_HOSTS}) AS a INNER JOIN ({_HOSTS}) AS b ON a.job = b.job AND a.rank = b.rank AND a.step = b.step
    WHERE a.host_name < b.host_name AND a.first_s < b.last_s AND b.first_s < a.last_s
"""

_SENTENCES: Final = {
    TIMES_NOT_IN_SECONDS: "the times of {ranks} are not in seconds: the median step would take more than an hour",
    RANKS_ON_TWO_HOSTS: "{ranks} had two hosts in one step: two jobs share the name",
}


def exclude(run: Run, rejected: Counter[str], limits: list[str]) -> str:
    """Count the rows of such ranks, and say which they are. The condition of all others; "": there are none."""
    if rejected[TIMES_NOT_IN_SECONDS]:
        limits.append(f"rows whose times are not in seconds: {rejected[TIMES_NOT_IN_SECONDS]}")
    suspects = tuples(run(_SUSPECTS))
    several = [(job, rank) for job, rank, _, in_hours, on_several in suspects if on_several and not in_hours]
    at_once = set(tuples(run(_AT_ONCE.format(suspects=_listed(several))))) if several else set()
    found = [
        (TIMES_NOT_IN_SECONDS if in_hours else RANKS_ON_TWO_HOSTS, job, rank, int(rows))
        for job, rank, rows, in_hours, _ in suspects
        if in_hours or (job, rank) in at_once
    ]
    for (reason, job), ranks in groupby(sorted(found), key=itemgetter(0, 1)):
        mine = [(rank, rows) for _, _, rank, rows in ranks]
        rejected[reason] += sum(rows for _, rows in mine)
        limits.append(_SENTENCES[reason].format(ranks=ranks_of(job, [rank for rank, _ in mine])))
    return f"(job, rank) NOT IN ({_listed([(job, rank) for _, job, rank, _ in found])})" if found else ""


def _listed(ranks: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"({text_literal(job)}, {rank})" for job, rank in ranks)
