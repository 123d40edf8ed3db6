"""What was read of spans → rows of ``ops`` and ``evidence``: by SQL, so that memory does not grow with the spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otelgpu.store.database import Store
from otelgpu.store.places import Member, Process
from otelgpu.store.placing import ROWS, TIMED, place, report_limits
from otelgpu.store.queries import columns_of
from otelgpu.store.reasons import RANKS_UNKNOWN, SPANS_REPEATED
from otelgpu.store.tables import RANK_OF_HOST

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


def insert_operations(store: Store, processes: Sequence[Process], launched: Sequence[Member] = ()) -> None:
    """From the tables that :mod:`otelgpu.store.readers.otlp` declares, which stay.

    ``processes``: by their number there. ``launched``: their places in jobs, as launchers say; a job is a communicator
    here. Of processes of which nothing is there, say those of a job's last run, nothing is known.
    """
    for table in ("otlp_steps", "otlp_calls", "otlp_errors", "otlp_seen"):
        _once(store, table)
    store.connection.execute(f"CREATE TABLE otlp_timed AS {TIMED}")
    run = columns_of(store.connection)
    present = _present(store)
    found = place(
        run,
        dict(enumerate(processes)),
        [each for each in launched if each.process in present],
        store.limits,
    )
    with store.staging("otlp_places", _PLACES) as batches:
        for each in found:
            batches.add(each.process, each.job, each.rank, each.host, each.added, each.alike)
    for query in ROWS:
        store.insert(query)
    _insert_evidence(store)
    lacking = report_limits(run, store.limits)
    store.rejected.update({RANKS_UNKNOWN: lacking} if lacking else {})
    store.drop("otlp_places", "otlp_timed")


def _present(store: Store) -> set[int]:
    """The processes of which there is anything."""
    found = "SELECT process FROM otlp_steps UNION SELECT process FROM otlp_calls"
    return {process for (process,) in store.connection.execute(found).fetchall()}


def _once(store: Store, table: str) -> None:
    """Spans that were delivered twice stay once."""
    run = store.connection.execute
    columns = [str(name) for name, *_ in run(f"DESCRIBE {table}").fetchall()]
    chosen = ", ".join(f"any_value({name}) AS {name}" for name in columns if name != "span")
    (before,) = run(f"SELECT count(*) FROM {table}").fetchall()[0]
    run(f"CREATE OR REPLACE TABLE {table} AS SELECT span, {chosen} FROM {table} GROUP BY span")
    (after,) = run(f"SELECT count(*) FROM {table}").fetchall()[0]
    store.rejected.update({SPANS_REPEATED: before - after} if before > after else {})


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
