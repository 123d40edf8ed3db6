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


def queries_of(connection: duckdb.DuckDBPyConnection, package: str) -> Callable[[str], Columns]:
    """Runs ``NAME.sql`` of a package. No query may give NULL: what it would be is not in the columns.

    What it returns raises `StoreError` where a file cannot be read to its end.
    """
    import duckdb

    folder = resources.files(package)

    def run(name: str) -> Columns:
        text = folder.joinpath(f"{name}.sql").read_text(encoding="utf-8")
        try:
            found = connection.execute(text).fetchnumpy()
        except duckdb.Error as error:
            raise StoreError(f"the input cannot be read: {printable(str(error))}") from error
        return {column: np.ma.getdata(values) for column, values in found.items()}

    return run
