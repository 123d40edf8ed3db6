"""ClickHouse itself, in this process: chDB is its engine as a library.

One in a process, which it insists on. It has no network: :mod:`tests.rig.clickhouse_server` lends it one.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from otelgpu.store.clickhouse.native import columns
from otelgpu.store.clickhouse.tables import TYPES
from otelgpu.store.queries import Columns
from otelgpu.store.sums import summed
from otelgpu.store.tables import TABLES
from otelgpu.store.tables import Column as Declared

if TYPE_CHECKING:
    import duckdb


class ClickHouse:
    """Its tables are in databases, as those of a server are."""

    def __init__(self) -> None:
        from chdb.session import Session

        self._session = Session()
        self._session.query("SET max_threads = 1", "Null")  # other tests run beside it
        self._lock = threading.Lock()

    def run(self, query: str, database: str = "default") -> Columns:
        """Raises what chDB raises, with what ClickHouse says."""
        return columns(lambda question: self.ask(question, database), query)

    def ask(self, query: str, database: str = "default") -> bytes:
        """Raises the same. The format is the query's."""
        with self._lock:
            self._session.query(f"USE {database}", "Null")
            return bytes(self._session.query(query, "Null").bytes())

    def copy(self, connection: duckdb.DuckDBPyConnection, database: str) -> None:
        """A database with the tables of a DuckDB, through Parquet."""
        import tempfile

        self.ask(f"DROP DATABASE IF EXISTS {database}")
        self.ask(f"CREATE DATABASE {database}")
        for name, declared in TABLES.items():
            self._declare(f"{database}.{name}", declared)
            with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
                connection.table(name).write_parquet(file.name, overwrite=True)
                names = ", ".join(each.name for each in declared)
                self.ask(f"INSERT INTO {database}.{name} SELECT {names} FROM file('{file.name}', Parquet)")
        self.ask(f"CREATE VIEW step_sums AS {summed('ops')}", database)

    def _declare(self, table: str, declared: tuple[Declared, ...]) -> None:
        cells = ", ".join(f"{each.name} {TYPES[each.type]}" for each in declared)
        self.ask(f"CREATE TABLE {table} ({cells}) ENGINE = MergeTree ORDER BY tuple()")


@cache
def clickhouse() -> ClickHouse:
    """The one of this process."""
    return ClickHouse()


def differences(one: Columns, other: Columns) -> list[str]:
    """What is not the same in two answers, whatever the order of their rows. Sums may differ by their rounding."""
    if list(one) != list(other):
        return [f"columns {list(one)} and {list(other)}"]
    lengths = {len(values) for each in (one, other) for values in each.values()}
    if len(lengths) > 1:
        return [f"lengths {sorted(lengths)}"]
    ordered = [_ordered(each) for each in (one, other)]
    return [
        f"{name}: {left[at]!r} and {right[at]!r}, and {len(wrong)} in all"
        for name, left, right in zip(one, *ordered, strict=True)
        if len(wrong := _unequal(left, right))
        for at in wrong[:1]
    ]


def _ordered(columns: Columns) -> list[np.ndarray[Any, Any]]:
    """By the columns that are no floating point, which are the keys of every query here."""
    keys = [
        np.unique(values, return_inverse=True)[1]
        for values in columns.values()
        if not np.issubdtype(values.dtype, np.floating)
    ]
    order = np.lexsort(keys[::-1]) if keys else np.arange(0)
    return [values[order] for values in columns.values()]


def _unequal(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if np.issubdtype(left.dtype, np.floating):
        return np.flatnonzero(~np.isclose(left, right, rtol=1e-13, atol=1e-12))
    return np.flatnonzero(left != right)
