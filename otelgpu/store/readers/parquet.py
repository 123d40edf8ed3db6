"""Parquet files of ``ops`` or ``evidence``, by their columns. ``ops`` is read where it lies, never copied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from otelgpu.store.database import Store
from otelgpu.store.row_checks import REASON
from otelgpu.store.tables import EVIDENCE, OPS, Column

MAGIC: Final = b"PAR1"
_UNREADABLE: Final = "files_unreadable"
_OTHER_COLUMNS: Final = "files_of_other_columns"

_Schema = tuple[tuple[str, str], ...]  # name and type of each column
_WHOLE: Final = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")


def read(store: Store, paths: Sequence[Path]) -> None:
    """Files of the same columns are one view."""
    import duckdb

    groups: dict[_Schema, list[str]] = defaultdict(list)
    for path in paths:
        linked = store.link(path)
        try:
            groups[_schema(store, linked)].append(linked)
        except duckdb.Error:
            store.rejected[_UNREADABLE] += 1
    for schema, links in sorted(groups.items()):
        for table, columns in (("ops", OPS), ("evidence", EVIDENCE)):
            if {name for name, _ in schema} >= {each.name for each in columns if each.is_required}:
                _take(store, table, _query(columns, dict(schema), links), links)
                break
        else:
            store.rejected[_OTHER_COLUMNS] += len(links)


def _schema(store: Store, linked: str) -> _Schema:
    described = store.connection.execute(f"DESCRIBE SELECT * FROM read_parquet('{linked}')").fetchall()
    return tuple(sorted((str(name).lower(), str(of_type)) for name, of_type, *_ in described))


def _query(columns: Sequence[Column], types: Mapping[str, str], links: Sequence[str]) -> str:
    """The columns of a table from files that may lack some, or have others; NULL: not of the column's type."""
    cells = ", ".join(f"{_cell(column, types.get(column.name))} AS {column.name}" for column in columns)
    files = ", ".join(f"'{linked}'" for linked in links)
    return f"SELECT {cells} FROM read_parquet([{files}], union_by_name = true)"


def _cell(column: Column, of_type: str | None) -> str:
    if of_type is None:
        return f"{column.default}::{column.type}"
    cell = column.name
    if of_type != column.type:
        cell = f"TRY_CAST({cell} AS {column.type})"
        if column.type in _WHOLE and of_type not in _WHOLE:  # a cast would round
            cell = f"CASE WHEN {column.name} = {cell} THEN {cell} END"
    if column.default is None:
        return cell
    return f"CASE WHEN {column.name} IS NULL THEN {column.default} ELSE {cell} END"


def _take(store: Store, table: str, query: str, links: Sequence[str]) -> None:
    """A file that cannot be read to its end is left out, and counted, alone."""
    if table == "evidence":
        store.connection.execute(f"INSERT INTO evidence {query}")
        return
    rejected = store.connection.execute(
        f"SELECT {REASON} AS reason, count(*) FROM ({query}) GROUP BY ALL HAVING reason IS NOT NULL"
    ).fetchall()
    store.rejected.update(dict(rejected))
    store.add_view(f"SELECT * FROM ({query}) WHERE {REASON} IS NULL" if rejected else query)
