"""Ranks of which each row could be, and all together cannot: they are left out of ``ops``, and counted. Pure.

* Most steps take more than an hour: its times are not in seconds.
* It is on two hosts within one step: two jobs share the name. A rank that moved was not on both at once.

``step_sums`` says it; no operation is read again.
"""

from __future__ import annotations

from typing import Final

from otelgpu.store.reasons import RANKS_ON_TWO_HOSTS, TIMES_NOT_IN_SECONDS

_LONGEST_STEP_S: Final = 3_600
"""Steps of reinforcement learning take many minutes."""

_IN_HOURS: Final = f"""
    SELECT job, rank FROM (
        SELECT job, rank, step, max(end_s) - min(begin_s) AS seconds
        FROM step_sums WHERE step >= 0 GROUP BY job, rank, step
    ) AS steps
    GROUP BY job, rank
    HAVING 2 * sum(CASE WHEN seconds > {_LONGEST_STEP_S} THEN 1 ELSE 0 END) > count(*)
"""
_HOSTS: Final = """
    SELECT job, rank, step, host AS host_name, min(begin_s) AS first_s, max(end_s) AS last_s
    FROM step_sums
    WHERE step >= 0 AND host <> '' AND (job, rank) IN (
        SELECT job, rank FROM step_sums WHERE host <> '' GROUP BY job, rank HAVING min(host) < max(host)
    )
    GROUP BY job, rank, step, host
"""
_ON_TWO_HOSTS: Final = f"""
    SELECT DISTINCT a.job AS job, a.rank AS rank
    FROM ({_HOSTS}) AS a INNER JOIN ({_HOSTS}) AS b ON a.job = b.job AND a.rank = b.rank AND a.step = b.step
    WHERE a.host_name < b.host_name AND a.first_s < b.last_s AND b.first_s < a.last_s
"""

EXCLUDED: Final = f"""
    SELECT reason, job, rank, sum(operations) AS operations
    FROM (
        SELECT job, rank, max(reason) AS reason
        FROM (
            SELECT job, rank, '{TIMES_NOT_IN_SECONDS}' AS reason FROM ({_IN_HOURS}) AS in_hours
            UNION ALL
            SELECT job, rank, '{RANKS_ON_TWO_HOSTS}' AS reason FROM ({_ON_TWO_HOSTS}) AS on_two_hosts
        ) AS found
        GROUP BY job, rank
    ) AS excluded
    INNER JOIN (
        SELECT job, rank, sum(operations) AS operations FROM step_sums GROUP BY job, rank
    ) AS counted USING (job, rank)
    GROUP BY reason, job, rank
    ORDER BY reason, job, rank
"""
"""A query: of each such rank the reason, the job, the rank and how many operations of it there are."""

SENTENCES: Final = {
    TIMES_NOT_IN_SECONDS: "the times of {ranks} are not in seconds: the median step would take more than an hour",
    RANKS_ON_TWO_HOSTS: "{ranks} had two hosts in one step: two jobs share the name",
}
"""Reason → what to say of its ranks."""
