"""Ranks of which each row could be, and all together cannot: they are left out of ``ops`` as a whole, and counted.

* The median step takes more than an hour: its times are not in seconds.
* It is on two hosts within one step: two jobs share the name. A rank that moved was not on both at once.

Sums that are made while rows are checked say which ranks to look at; of all others no row is read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otelgpu.store.reasons import RANKS_ON_TWO_HOSTS, TIMES_NOT_IN_SECONDS

if TYPE_CHECKING:
    import duckdb

_LONGEST_STEP_S: Final = 3_600
"""Steps of reinforcement learning take many minutes."""

RANK_TABLES: Final = (
    """
    CREATE TABLE rank_sums (
        job VARCHAR, rank INTEGER, host VARCHAR, operations BIGINT, first_step BIGINT, last_step BIGINT,
        t0 DOUBLE, t1 DOUBLE, busy_s DOUBLE
    )
    """,
    "CREATE TABLE excluded (job VARCHAR, rank INTEGER, reason VARCHAR)",
)
SUMS: Final = """
    job, rank, host, count(*) AS operations, min(step) FILTER (step >= 0) AS first_step, max(step) AS last_step,
    min(t0) AS t0, max(t1) AS t1, sum(t1 - t0) AS busy_s
"""
"""The columns of ``rank_sums`` from rows of ``ops``."""

_SUSPECTS: Final = {
    TIMES_NOT_IN_SECONDS: f"""
        SELECT job, rank FROM rank_sums WHERE last_step >= 0 GROUP BY ALL
        HAVING sum(busy_s) / (max(last_step) - min(first_step) + 1) > {_LONGEST_STEP_S}
    """,
    RANKS_ON_TWO_HOSTS: """
        WITH hosts AS (
            SELECT job, rank, host, min(t0) AS t0, max(t1) AS t1 FROM rank_sums WHERE host <> '' GROUP BY ALL
        )
        SELECT DISTINCT job, rank FROM hosts a JOIN hosts b USING (job, rank)
        WHERE a.host < b.host AND a.t0 < b.t1 AND b.t0 < a.t1
    """,
}
_CONVICTED: Final = {
    TIMES_NOT_IN_SECONDS: f"""
        SELECT job, rank FROM (
            SELECT job, rank, step, max(t1) - min(t0) AS seconds
            FROM ops SEMI JOIN suspects USING (job, rank) WHERE step >= 0 GROUP BY ALL
        ) GROUP BY ALL HAVING median(seconds) > {_LONGEST_STEP_S}
    """,
    RANKS_ON_TWO_HOSTS: """
        WITH steps AS (
            SELECT job, rank, step, host, min(t0) AS t0, max(t1) AS t1
            FROM ops SEMI JOIN suspects USING (job, rank) WHERE step >= 0 AND host <> '' GROUP BY ALL
        )
        SELECT DISTINCT job, rank FROM steps a JOIN steps b USING (job, rank, step)
        WHERE a.host < b.host AND a.t0 < b.t1 AND b.t0 < a.t1
    """,
}


SENTENCES: Final = {
    TIMES_NOT_IN_SECONDS: "the times of {ranks} are not in seconds: the median step would take more than an hour",
    RANKS_ON_TWO_HOSTS: "{ranks} had two hosts in one step: two jobs share the name",
}
"""Reason → what to say of its ranks."""


def exclude_ranks(connection: duckdb.DuckDBPyConnection) -> list[tuple[str, str, int, int]]:
    """Fill the table ``excluded``; of each rank the reason, the job, the rank and its rows, in that order."""
    run = connection.execute
    for reason, suspects in _SUSPECTS.items():
        run(f"CREATE OR REPLACE TEMP TABLE suspects AS {suspects}")
        run(
            f"""
            INSERT INTO excluded SELECT job, rank, '{reason}' FROM ({_CONVICTED[reason]})
            ANTI JOIN excluded USING (job, rank)
            """
        )
    run("DROP TABLE suspects")
    rows = run(
        """
        SELECT reason, job, rank, sum(operations)::BIGINT
        FROM rank_sums JOIN excluded USING (job, rank) GROUP BY ALL ORDER BY ALL
        """
    )
    return rows.fetchall()
