"""Queries that lie in files beside who uses them, run on the tables: columns of numpy out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import duckdb

Columns = Mapping[str, np.ndarray[Any, Any]]


def queries_of(connection: duckdb.DuckDBPyConnection, package: str) -> Callable[[str], Columns]:
    """Runs ``NAME.sql`` of a package. No query may give NULL: what it would be is not in the columns."""
    folder = resources.files(package)

    def run(name: str) -> Columns:
        text = folder.joinpath(f"{name}.sql").read_text(encoding="utf-8")
        found = connection.execute(text).fetchnumpy()
        return {column: np.ma.getdata(values) for column, values in found.items()}

    return run
