"""Parquet files of ``ops``, and the rows of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from otelgpu.store import Store
from otelgpu.store.row_checks import text_literal
from otelgpu.store.tables import OPS, Column


def ops(path: Path, *queries: str) -> str:
    """A file of the rows of queries."""
    duckdb.sql(" UNION ALL ".join(queries)).write_parquet(str(path), overwrite=True)
    return str(path)


def row(**given: Any) -> str:
    """A query for one row that is as it should be, but for what is given; None: NULL."""
    values = {"job": "j", "step": 1, "rank": 0, "host": "h", "kind": "compute", "t0": 1.0, "t1": 2.0} | given
    return f"SELECT {', '.join(_cell(column, values) for column in OPS)}"


def _cell(column: Column, values: dict[str, Any]) -> str:
    if column.name not in values:
        literal = column.default
    elif values[column.name] is None:
        literal = "NULL"
    else:
        literal = text_literal(str(values[column.name]))
    return f"{literal}::{column.type} AS {column.name}"


def rows(store: Store) -> list[Any]:
    """All rows of ``ops``, in the order of their columns' values."""
    return store.connection.sql("SELECT * FROM ops ORDER BY ALL").fetchall()
