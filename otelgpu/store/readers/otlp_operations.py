"""What was read of spans → rows of ``ops``: by SQL, so that memory does not grow with the spans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from otelgpu.store.database import Store
from otelgpu.store.limits import ranks_of
from otelgpu.store.readers.places import (
    MEMBERS,
    Member,
    Place,
    Process,
    Shift,
    jobs_of,
    offsets,
    places,
    without_conflicts,
)
from otelgpu.store.reasons import RANKS_UNKNOWN, SPANS_REPEATED
from otelgpu.store.tables import RANK_OF_HOST, SEQUENCE_UNKNOWN, STEP_UNKNOWN

XID: Final = "xid"
"""Evidence. Its value is the number of the Xid or SXid."""
PROBE: Final = "otelgpu.probe"
"""Evidence. Its value is the seconds in what a user's own probe is on."""

_PLACES: Final = {
    "process": "INTEGER",
    "job": "VARCHAR",
    "rank": "INTEGER",
    "host": "VARCHAR",
    "added": "BIGINT",
    "alike": "BIGINT",
}
_SHIFTS: Final = """
    WITH firsts AS (
        SELECT trace, min(process) AS process, arg_min(number, process) AS number
        FROM otlp_timed WHERE number IS NOT NULL GROUP BY trace
    )
    SELECT f.process, o.process, o.number - f.number, count(*)
    FROM otlp_timed o JOIN firsts f ON f.trace = o.trace AND f.process <> o.process
    WHERE o.number IS NOT NULL GROUP BY ALL ORDER BY ALL
"""
_PARTS: Final = {
    "step": ("training step", "t1 - t0"),
    "input": ("data loader stall", "input_s"),
    "file": ("slow files", "file_s"),
    "host": ("host overhead", "host_s"),
    "compute": ("device compute", "compute_s"),
    "copy": ("device copies", "copy_s"),
}
"""Kind → name of the row, and its seconds."""

_NOT_ALIKE: Final = "the steps of {ranks} cannot be matched with other ranks': they share no collectives"
_NO_DEVICE: Final = "no device time of {ranks}: what their devices computed and copied is not known"
_NO_RANK: Final = (
    "processes with steps whose rank is not known (no communicator, or two are one rank of it): {count}"
)
_NO_END: Final = "calls of collectives with neither device time nor a wait, so without a duration: {count}"


def insert_operations(store: Store, processes: Sequence[Process], launched: Sequence[Member] = ()) -> None:
    """From the tables that :mod:`otelgpu.store.readers.otlp` declares, which stay.

    ``processes``: by their number there. ``launched``: their places in jobs, as launchers say; a job is a communicator
    here. Of processes of which nothing is there, say those of a job's last run, nothing is known.
    """
    for table in ("otlp_steps", "otlp_calls", "otlp_errors", "otlp_seen"):
        _once(store, table)
    _find_steps(store)
    present = _present(store)
    found = places(
        [*_members(store), *without_conflicts(each for each in launched if each.process in present)]
    )
    _write_places(store, processes, found)
    _insert_steps(store)
    _insert_calls(store)
    _insert_evidence(store)
    _report_limits(store, processes, found)
    store.drop("otlp_places", "otlp_timed")


def _once(store: Store, table: str) -> None:
    """Spans that were delivered twice stay once."""
    run = store.connection.execute
    columns = [str(name) for name, *_ in run(f"DESCRIBE {table}").fetchall()]
    chosen = ", ".join(f"any_value({name}) AS {name}" for name in columns if name != "span")
    (before,) = run(f"SELECT count(*) FROM {table}").fetchall()[0]
    run(f"CREATE OR REPLACE TABLE {table} AS SELECT span, {chosen} FROM {table} GROUP BY span")
    (after,) = run(f"SELECT count(*) FROM {table}").fetchall()[0]
    store.rejected.update({SPANS_REPEATED: before - after} if before > after else {})


def _find_steps(store: Store) -> None:
    """``otlp_timed``: calls with the step of their process in which they began (NULL: none), and their ends."""
    store.connection.execute(
        """
        CREATE TABLE otlp_timed AS
        SELECT c.*, CASE WHEN c.t0 < s.t1 THEN s.number END AS number, w.t1 - c.t0 AS waited
        FROM otlp_calls c
        ASOF LEFT JOIN otlp_steps s ON c.process = s.process AND c.t0 >= s.t0
        LEFT JOIN (SELECT call, max(t1) AS t1 FROM otlp_waits GROUP BY call) w ON w.call = c.span
        """
    )


def _present(store: Store) -> set[int]:
    """The processes of which there is anything."""
    found = "SELECT process FROM otlp_steps UNION SELECT process FROM otlp_calls"
    return {process for (process,) in store.connection.execute(found).fetchall()}


def _members(store: Store) -> Iterable[Member]:
    calls = "(FROM otlp_calls WHERE grp <> '')"
    return (Member(*row) for row in store.connection.execute(MEMBERS.format(calls=calls)).fetchall())


def _write_places(store: Store, processes: Sequence[Process], found: Mapping[int, Place]) -> None:
    """``otlp_places``: of each process job and rank, and how its steps are numbered (``alike``: as others' are)."""
    jobs = jobs_of(store.limits, processes, found)
    rows = store.connection.execute(_SHIFTS).fetchall()
    shifts = [Shift(*row) for row in rows]
    by_job: dict[str, list[int]] = defaultdict(list)
    for process in sorted(found, key=lambda process: found[process].rank):
        by_job[jobs[process]].append(process)
    with store.staging("otlp_places", _PLACES) as batches:
        for job, members in by_job.items():
            mine = set(members)
            added = offsets(members, (each for each in shifts if {each.one, each.other} <= mine))
            for process in members:
                alike = process in added
                host = processes[process].host
                batches.add(process, job, found[process].rank, host, added.get(process, 0), alike)


def _insert_steps(store: Store) -> None:
    for kind, (name, seconds) in _PARTS.items():
        store.insert(
            f"""
            SELECT job, CASE WHEN alike = 1 THEN number + added ELSE {STEP_UNKNOWN} END AS step, rank, host,
                '' AS role, '' AS lane, 0 AS unit, '{kind}' AS kind, '{name}' AS name, '' AS grp,
                {SEQUENCE_UNKNOWN} AS seq, 0 AS n, t0, t0 + {seconds} AS t1, 0 AS bytes
            FROM otlp_steps JOIN otlp_places USING (process) WHERE {seconds} IS NOT NULL
            """
        )


def _insert_calls(store: Store) -> None:
    """Of a collective all ranks' durations are of one kind: the device's where every call has it, else to the waits."""
    store.insert(
        f"""
        WITH measured AS (
            SELECT trace, bool_and(device_s IS NOT NULL) AS on_device FROM otlp_timed GROUP BY trace
        ), ended AS (
            SELECT *, CASE WHEN on_device THEN device_s ELSE waited END AS seconds
            FROM otlp_timed JOIN measured USING (trace)
        )
        SELECT p.job, CASE WHEN p.alike = 1 AND number IS NOT NULL THEN number + added ELSE {STEP_UNKNOWN} END AS step,
            p.rank, p.host, '' AS role, '' AS lane, 0 AS unit, kind, operation AS name, grp, seq,
            CASE WHEN kind = 'p2p' THEN 2 ELSE ranks END AS n, t0, t0 + seconds AS t1, bytes
        FROM ended JOIN otlp_places p USING (process) WHERE seconds IS NOT NULL
        """
    )


def _insert_evidence(store: Store) -> None:
    """Of a host: an Xid or SXid, whoever's work it ended, and how counters of trouble grew; of a rank the others."""
    for name, value, table in ((f"'{XID}'", "number", "otlp_errors"), ("name", "value", "otlp_growths")):
        store.connection.execute(
            f"INSERT INTO evidence SELECT '', {RANK_OF_HOST}, host, t0, t1, {name}, {value}, text FROM {table}"
        )
    store.connection.execute(
        "INSERT INTO evidence SELECT job, rank, host, t0, t1, name, value, text "
        "FROM otlp_seen JOIN otlp_places USING (process)"
    )


def _report_limits(store: Store, processes: Sequence[Process], found: Mapping[int, Place]) -> None:
    run = store.connection.execute
    without_rank = (
        "SELECT process, count(*) FROM otlp_steps WHERE process NOT IN (SELECT process FROM otlp_places)"
    )
    if lacking := run(f"{without_rank} GROUP BY process").fetchall():
        store.rejected[RANKS_UNKNOWN] += sum(count for _, count in lacking)
        store.limits.append(_NO_RANK.format(count=len(lacking)))
    stepping = "SELECT job, rank FROM otlp_places JOIN otlp_steps USING (process) GROUP BY ALL"
    for sentence, condition in ((_NOT_ALIKE, "alike = 0"), (_NO_DEVICE, "compute_s IS NULL")):
        rows = run(f"{stepping} HAVING bool_and({condition}) ORDER BY ALL").fetchall()
        for job, ranks in groupby(rows, key=itemgetter(0)):
            store.limits.append(sentence.format(ranks=ranks_of(job, [rank for _, rank in ranks])))
    ((unended,),) = run(
        "SELECT count(*) FROM otlp_timed WHERE device_s IS NULL AND waited IS NULL"
    ).fetchall()
    if unended:
        store.limits.append(_NO_END.format(count=unended))
