"""Queries that lie in files beside who uses them, run on the tables: columns of numpy out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from otelgpu.model.text import printable
from otelgpu.store.files import StoreError

if TYPE_CHECKING:
    import duckdb

Columns = Mapping[str, np.ndarray[Any, Any]]
Run = Callable[[str], Columns]
"""SQL in. It is of the subset that DuckDB and ClickHouse read alike; raises `StoreError`."""
Named = Callable[..., Columns]
"""A query's name in, and SQL for what stands in braces in it; no text of an input may be in that."""


class Tables(Protocol):
    """``ops``, ``step_sums``, ``evidence`` and ``step_spans``, wherever they are.

    ``rejected``: reason → rows or files that were left out. ``limits``: what the data cannot say, in sentences.
    """

    rejected: Counter[str]
    limits: list[str]

    def run(self, query: str) -> Columns:
        """SQL on them, as of :data:`Run`."""

    def keep(self, folder: Path) -> list[Path]:
        """Write all but ``step_sums`` as Parquet into a folder; the files. Raises `StoreError`."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def named(run: Run, package: str) -> Named:
    """Runs ``NAME.sql`` of a package. No query may give NULL: what it would be is not in the columns."""
    folder = resources.files(package)

    def query(name: str, /, **values: str) -> Columns:
        return run(folder.joinpath(f"{name}.sql").read_text(encoding="utf-8").format(**values))

    return query


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


def queries_of(connection: duckdb.DuckDBPyConnection, package: str) -> Named:
    """The queries of a package on the tables of a DuckDB."""
    return named(columns_of(connection), package)


def tuples(columns: Columns) -> list[tuple[Any, ...]]:
    """The rows of an answer."""
    return list(zip(*(values.tolist() for values in columns.values()), strict=True))
