"""Tables that agents write (``--export parquet:DIR``), into what was seen of all processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otelgpu.otlp_json.reader import RESOURCES
from otelgpu.store.calls import IS_PAIR, numbered
from otelgpu.store.database import Store
from otelgpu.store.observed import CALLS, PROBES, STEPS, WAITS
from otelgpu.store.reasons import ROWS_INCOMPLETE
from otelgpu.store.tables import OF_HOSTS, Column

_IDENTITY: Final = ("host", "service", "instance")
_UNMEASURED: Final = "NULL"
"""The default of a duration that may not have been measured."""
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
    cells, whole = _cells(OF_HOSTS[table]), _is_whole(table)
    run(f"CREATE OR REPLACE TEMP TABLE said AS SELECT {cells} FROM ({query}) WHERE {whole}")
    counted = f"SELECT (SELECT count(*) FROM ({query})), (SELECT count(*) FROM said)"  # a union has no order
    ((given, kept),) = run(counted).fetchall()
    store.rejected.update({ROWS_INCOMPLETE: given - kept} if given > kept else {})
    if table == "waits":
        rows = "SELECT call, ended AS t1 FROM said"
    else:
        _number_processes(store)
        rows = "SELECT said.*, numbers.process FROM said JOIN numbers USING (host, service, instance)"
    if table == "calls":
        rows = numbered(rows)
    run(f"INSERT INTO {into} SELECT {', '.join(columns)} FROM ({rows})")
    run("DROP TABLE said; DROP TABLE IF EXISTS numbers")


def _cells(columns: Sequence[Column]) -> str:
    """NaN is NULL where a duration may not have been measured."""
    return ", ".join(
        f"CASE WHEN NOT isnan({column.name}) THEN {column.name} END AS {column.name}"
        if column.default == _UNMEASURED
        else column.name
        for column in columns
    )


def _is_whole(table: str) -> str:
    """Nothing is NULL that may not be, and who sends or receives says to or from whom."""
    needed = (column.name for column in OF_HOSTS[table] if column.default != _UNMEASURED)
    conditions = [f"{name} IS NOT NULL" for name in needed]
    return " AND ".join([*conditions, f"NOT ({IS_PAIR} AND peer < 0)"] if table == "calls" else conditions)


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
            if number is None:
                store.rejected[RESOURCES] += 1
            else:
                batches.add(host, service, instance, number)
