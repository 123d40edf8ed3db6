"""What was seen of processes becomes rows of the tables: which rank and step they are of. Pure.

In: the tables ``otlp_steps``, ``otlp_calls``, ``otlp_waits``, ``otlp_probes`` and ``otlp_errors``, by SQL that DuckDB
and ClickHouse read alike. What only all processes together say is asked first: ``otlp_places`` has the job, the rank
and the numbers of steps. ``process`` is a number or a text, the same in all tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from msgspec import Struct

from otelgpu.export.parquet.rows import PROBE, XID
from otelgpu.families.steps.training import names as training
from otelgpu.store.limits import ranks_of
from otelgpu.store.marks import mark_in_sql
from otelgpu.store.places import (
    Member,
    Place,
    Process,
    Shift,
    jobs_of,
    offsets,
    places,
    without_conflicts,
)
from otelgpu.store.queries import Run, tuples
from otelgpu.store.tables import (
    CHECKPOINT,
    CHECKPOINT_BYTES,
    RANK_OF_HOST,
    SEQUENCE_UNKNOWN,
    STEP_UNKNOWN,
)

TIMED: Final = """
    SELECT
        c.process AS process, c.trace AS trace, c.kind AS kind, c.operation AS operation, c.grp AS grp,
        c.ranks AS ranks, c.seq AS seq, c.t0 AS t0, c.device_s AS device_s, c.bytes AS bytes,
        CASE WHEN c.t0 < s.t1 THEN s.number END AS number,
        CASE WHEN w.call = c.span THEN w.t1 - c.t0 END AS waited_s
    FROM otlp_calls AS c
    ASOF LEFT JOIN otlp_steps AS s ON c.process = s.process AND c.t0 >= s.t0
    LEFT JOIN (SELECT call, max(t1) AS t1 FROM otlp_waits GROUP BY call) AS w ON w.call = c.span
"""
"""``otlp_timed``: calls with the step of their process in which they began, and how long they were waited for.

NULL, or of one engine a value that no row has, where there is none: both are asked by conditions that say so.
"""

_MEMBERS: Final = """
    SELECT process, hash, rank, max(ranks) AS size FROM otlp_calls WHERE grp <> ''
    GROUP BY process, hash, rank ORDER BY process, hash, rank
"""
_PRESENT: Final = """
    SELECT DISTINCT process FROM (SELECT process FROM otlp_steps UNION ALL SELECT process FROM otlp_calls) AS present
"""
_SHIFTS: Final = """
    SELECT one, other, CAST(number - its_number AS BIGINT) AS difference, count(*) AS calls
    FROM (
        SELECT
            process AS other, number, min(process) OVER (PARTITION BY trace) AS one,
            argMin(number, process) OVER (PARTITION BY trace) AS its_number
        FROM otlp_timed
        WHERE number IS NOT NULL
    ) AS numbered
    WHERE one <> other
    GROUP BY one, other, difference
    ORDER BY one, other, difference
"""
_PARTS: Final = {
    "step": ("training step", "s.t1 - s.t0"),
    "input": ("data loader stall", "s.input_s"),
    "file": ("slow files", "s.file_s"),
    "host": ("host overhead", "s.host_s"),
    "compute": ("device compute", "s.compute_s"),
    "copy": ("device copies", "s.copy_s"),
}
"""Kind → name of the row, and its seconds."""

_KINDS: Final = " UNION ALL ".join(
    f"SELECT '{kind}' AS kind, '{name}' AS name" for kind, (name, _) in _PARTS.items()
)
_SECONDS: Final = " ".join(f"WHEN '{kind}' THEN {seconds}" for kind, (_, seconds) in _PARTS.items())
_DURING: Final = f"""
    SELECT during.process AS process, during.number AS number, min(during.mark) AS mark
    FROM (
        SELECT h.process AS process, s.number AS number, h.t0 AS t0, s.t1 AS ended,
            {mark_in_sql("h.name")} AS mark
        FROM otlp_probes AS h
        ASOF LEFT JOIN otlp_steps AS s ON h.process = s.process AND h.t0 >= s.t0
    ) AS during
    WHERE during.mark <> '' AND during.t0 < during.ended
    GROUP BY during.process, during.number
"""
"""Steps in which a probe was hit whose name says what the program did beside training."""

_STEPS: Final = f"""
    SELECT
        p.job AS job, CASE WHEN p.alike = 1 THEN s.number + p.added ELSE {STEP_UNKNOWN} END AS step,
        p.rank AS rank, p.host AS host, '' AS role, '' AS lane, 0 AS unit, s.kind AS kind, s.name AS name, '' AS grp,
        {SEQUENCE_UNKNOWN} AS seq, 0 AS n, s.t0 AS t0, s.t0 + s.seconds AS t1, 0 AS bytes
    FROM (
        SELECT s.process AS process, s.number AS number, s.t0 AS t0, k.kind AS kind,
            CASE
                WHEN k.kind <> 'step' THEN k.name
                WHEN s.written_bytes >= {CHECKPOINT_BYTES} THEN '{CHECKPOINT}'
                WHEN d.number = s.number THEN d.mark
                ELSE k.name
            END AS name,
            CASE k.kind {_SECONDS} END AS seconds
        FROM otlp_steps AS s CROSS JOIN ({_KINDS}) AS k
        LEFT JOIN ({_DURING}) AS d ON d.process = s.process AND d.number = s.number
    ) AS s
    INNER JOIN otlp_places AS p ON p.process = s.process
    WHERE s.seconds IS NOT NULL
"""
_CALLS: Final = f"""
    SELECT
        p.job AS job,
        CASE WHEN p.alike = 1 AND e.number IS NOT NULL THEN e.number + p.added ELSE {STEP_UNKNOWN} END AS step,
        p.rank AS rank, p.host AS host, '' AS role, '' AS lane, 0 AS unit, e.kind AS kind, e.operation AS name,
        e.grp AS grp, e.seq AS seq, CASE WHEN e.kind = 'p2p' THEN 2 ELSE e.ranks END AS n, e.t0 AS t0,
        e.t0 + e.seconds AS t1, e.bytes AS bytes
    FROM (
        SELECT m.*, CASE WHEN m.unmeasured = 0 THEN m.device_s ELSE m.waited_s END AS seconds
        FROM (
            SELECT o.*, sum(CASE WHEN o.device_s IS NULL THEN 1 ELSE 0 END) OVER (PARTITION BY o.trace) AS unmeasured
            FROM otlp_timed AS o
        ) AS m
    ) AS e
    INNER JOIN otlp_places AS p ON p.process = e.process
    WHERE e.seconds IS NOT NULL
"""
"""Of a collective all ranks' durations are of one kind: the device's where every call has it, else to the waits."""

ROWS: Final = (_STEPS, _CALLS)
"""Queries for rows of ``ops``, in the order of its columns. Each reads its table once: ClickHouse reads it anew."""

_ERRORS: Final = f"""
    SELECT '' AS job, {RANK_OF_HOST} AS rank, host, t0, t1, '{XID}' AS name, number AS value, text FROM otlp_errors
"""
_FILES: Final = f"""
    SELECT
        p.job AS job, p.rank AS rank, p.host AS host, s.t0 AS t0, s.t1 AS t1, '{training.FILE}' AS name,
        s.file_s AS value, concat('seconds in files, slowest ', s.slowest_file) AS text
    FROM otlp_steps AS s INNER JOIN otlp_places AS p ON p.process = s.process
    WHERE s.slowest_file <> '' AND isFinite(s.file_s)
"""
_PROBES: Final = f"""
    SELECT
        p.job AS job, p.rank AS rank, p.host AS host, h.t0 AS t0, h.t1 AS t1, '{PROBE}' AS name, h.seconds AS value,
        concat('seconds in ', h.name) AS text
    FROM otlp_probes AS h INNER JOIN otlp_places AS p ON p.process = h.process
    WHERE isFinite(h.seconds)
"""
_THROTTLED: Final = f"""
    SELECT
        p.job AS job, p.rank AS rank, p.host AS host, s.t0 AS t0, s.t1 AS t1, '{training.THROTTLED}' AS name,
        s.throttled_s AS value, 'seconds throttled by the CPU quota of its cgroup' AS text
    FROM otlp_steps AS s INNER JOIN otlp_places AS p ON p.process = s.process
    WHERE isFinite(s.throttled_s) AND s.throttled_s > 0
"""
_FAULTS: Final = f"""
    SELECT
        p.job AS job, p.rank AS rank, p.host AS host, s.t0 AS t0, s.t1 AS t1, '{training.MAJOR_FAULTS}' AS name,
        CAST(s.major_faults AS DOUBLE) AS value, 'page faults that waited for a disk' AS text
    FROM otlp_steps AS s INNER JOIN otlp_places AS p ON p.process = s.process
    WHERE s.major_faults > 0
"""
EVIDENCE_ROWS: Final = (_ERRORS, _FILES, _PROBES, _THROTTLED, _FAULTS)
"""Likewise of ``evidence``. An Xid or SXid is of its host, whoever's work it ended; the others are of a rank."""

SPAN_ROWS: Final = """
    SELECT p.job AS job, p.rank AS rank, s.number + p.added AS step, s.link AS link
    FROM otlp_steps AS s INNER JOIN otlp_places AS p ON p.process = s.process
    WHERE p.alike = 1 AND s.link <> ''
"""
"""A query for rows of ``step_spans``."""

_NOT_ALIKE: Final = "the steps of {ranks} cannot be matched with other ranks': they share no collectives"
_NO_DEVICE: Final = "no device time of {ranks}: what their devices computed and copied is not known"
_NO_RANK: Final = (
    "processes with steps whose rank is not known (no communicator, or two are one rank of it): {count}"
)
_NO_END: Final = "calls of collectives with neither device time nor a wait, so without a duration: {count}"


class Placed(Struct, frozen=True):
    """A row of ``otlp_places``. ``process``: its place among the processes.

    ``added``: to the numbers of its steps; ``alike``: whether they are then the same as others'.
    """

    process: int
    job: str
    rank: int
    host: str
    added: int
    alike: bool


def place(
    run: Run,
    processes: Mapping[Any, Process],
    launched: Sequence[Member],
    limits: list[str],
) -> list[Placed]:
    """Of each process whose rank is known. ``processes``: by their names in the tables, in an order that is kept.

    ``launched``: their places in jobs, as launchers say, where ``process`` is the place among ``processes``; a job is a
    communicator here. Of processes of which nothing is there, say those of a job's last run, nothing is known.
    """
    number = {name: at for at, name in enumerate(processes)}
    known = list(processes.values())
    members = [Member(number[process], *rest) for process, *rest in tuples(run(_MEMBERS))]
    present = {number[process] for (process,) in tuples(run(_PRESENT))}
    believed = without_conflicts(each for each in launched if each.process in present)
    found = places([*members, *believed])
    jobs = jobs_of(limits, known, found, believed)
    shifts = [Shift(number[one], number[other], *rest) for one, other, *rest in tuples(run(_SHIFTS))]
    by_job: dict[str, list[int]] = defaultdict(list)
    for process in sorted(found, key=lambda process: found[process].rank):
        by_job[jobs[process]].append(process)
    return [placed for job, mine in by_job.items() for placed in _of_job(job, mine, known, found, shifts)]


def _of_job(
    job: str,
    members: Sequence[int],
    processes: Sequence[Process],
    found: Mapping[int, Place],
    shifts: Sequence[Shift],
) -> Iterator[Placed]:
    mine = set(members)
    added = offsets(members, (each for each in shifts if {each.one, each.other} <= mine))
    for process in members:
        host, alike = processes[process].host, process in added
        yield Placed(process, job, found[process].rank, host, added.get(process, 0), alike)


def report_limits(run: Run, limits: list[str]) -> int:
    """What the tables cannot say, in sentences; how many steps are of no known rank."""
    lacking = tuples(
        run(
            "SELECT process, count(*) AS steps FROM otlp_steps "
            "WHERE process NOT IN (SELECT process FROM otlp_places) GROUP BY process"
        )
    )
    if lacking:
        limits.append(_NO_RANK.format(count=len(lacking)))
    stepping = """
        SELECT p.job AS job, p.rank AS rank
        FROM otlp_steps AS s INNER JOIN otlp_places AS p ON p.process = s.process
        GROUP BY job, rank
    """
    for sentence, condition in ((_NOT_ALIKE, "p.alike = 0"), (_NO_DEVICE, "s.compute_s IS NULL")):
        have_it = f"HAVING min(CASE WHEN {condition} THEN 1 ELSE 0 END) = 1 ORDER BY job, rank"
        for job, ranks in groupby(tuples(run(f"{stepping} {have_it}")), key=itemgetter(0)):
            limits.append(sentence.format(ranks=ranks_of(job, [rank for _, rank in ranks])))
    unended = "SELECT count(*) AS calls FROM otlp_timed WHERE device_s IS NULL AND waited_s IS NULL"
    ((calls,),) = tuples(run(unended))
    if calls:
        limits.append(_NO_END.format(count=calls))
    return sum(steps for _, steps in lacking)
