"""Queries that lie in files beside who uses them, run on the tables: columns of numpy out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from otelgpu.model.text import printable
from otelgpu.store.files import StoreError

if TYPE_CHECKING:
    import duckdb

Columns = Mapping[str, np.ndarray[Any, Any]]
Run = Callable[[str], Columns]
"""SQL in. It is of the subset that DuckDB and ClickHouse read alike; raises `StoreError`."""


def named(run: Run, package: str) -> Run:
    """Runs ``NAME.sql`` of a package. No query may give NULL: what it would be is not in the columns."""
    folder = resources.files(package)
    return lambda name: run(folder.joinpath(f"{name}.sql").read_text(encoding="utf-8"))


def columns_of(connection: duckdb.DuckDBPyConnection) -> Run:
    """Runs SQL in DuckDB. Raises `StoreError` where a file cannot be read to its end."""
    import duckdb

    def run(query: str) -> Columns:
        try:
            found = connection.execute(query).fetchnumpy()
        except duckdb.Error as error:
            raise StoreError(f"the input cannot be read: {printable(str(error))}") from error
        return {column: np.ma.getdata(values) for column, values in found.items()}

    return run


def queries_of(connection: duckdb.DuckDBPyConnection, package: str) -> Run:
    """The queries of a package on the tables of a DuckDB."""
    return named(columns_of(connection), package)
