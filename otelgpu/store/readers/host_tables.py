"""Tables that agents write (``--export parquet:DIR``), into what was seen of all processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otelgpu.store.calls import IS_PAIR, numbered
from otelgpu.store.database import Store
from otelgpu.store.observed import CALLS, PROBES, STEPS, WAITS
from otelgpu.store.reasons import ROWS_INCOMPLETE
from otelgpu.store.tables import OF_HOSTS, Column

_IDENTITY: Final = ("host", "service", "instance")
_INTO: Final = {
    "steps": ("otlp_steps", STEPS),
    "calls": ("otlp_calls", CALLS),
    "waits": ("otlp_waits", WAITS),
    "probes": ("otlp_probes", PROBES),
}


def insert(store: Store, table: str, query: str) -> None:
    """Rows of a table of :data:`~otelgpu.store.tables.OF_HOSTS`, by a query that gives its columns."""
    into, columns = _INTO[table]
    store.observed()
    run = store.connection.execute
    run(f"CREATE OR REPLACE TEMP TABLE said AS SELECT * FROM ({query}) WHERE {_is_whole(OF_HOSTS[table])}")
    ((given,), (kept,)) = run(
        f"SELECT count(*) FROM ({query}) UNION ALL SELECT count(*) FROM said"
    ).fetchall()
    store.rejected.update({ROWS_INCOMPLETE: given - kept} if given > kept else {})
    if table == "waits":
        rows = "SELECT call, ended AS t1 FROM said"
    else:
        _number_processes(store)
        rows = "SELECT said.*, numbers.process FROM said JOIN numbers USING (host, service, instance)"
    if table == "calls":
        run(
            f"CREATE OR REPLACE TEMP TABLE paired AS SELECT * FROM ({rows}) WHERE NOT ({IS_PAIR} AND peer < 0)"
        )
        rows = numbered("SELECT * FROM paired")
    run(f"INSERT INTO {into} SELECT {', '.join(columns)} FROM ({rows})")
    run("DROP TABLE said; DROP TABLE IF EXISTS numbers; DROP TABLE IF EXISTS paired")


def _is_whole(columns: Sequence[Column]) -> str:
    """Nothing is NULL that may not be; a duration that was not measured may."""
    return " AND ".join(f"{column.name} IS NOT NULL" for column in columns if column.default != "NULL")


def _number_processes(store: Store) -> None:
    """The table ``numbers``; of processes beyond the most there is none."""
    found = store.connection.execute(
        """
        SELECT host, service, instance, max(job_id), max(job_rank), max(job_size) FROM said
        GROUP BY ALL ORDER BY min(t0), host, service, instance
        """
    ).fetchall()
    columns = dict.fromkeys(_IDENTITY, "VARCHAR") | {"process": "INTEGER"}
    with store.staging("numbers", columns) as batches:
        for host, service, instance, job, rank, size in found:
            number = store.observed().process(host, service, instance, job, rank, size)
            if number is not None:
                batches.add(host, service, instance, number)
