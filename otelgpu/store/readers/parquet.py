"""Parquet files of the documented tables, by their columns. ``ops`` is read where it lies, never copied."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

from otelgpu.store.database import Store
from otelgpu.store.readers import host_tables
from otelgpu.store.reasons import CALLS_PENDING, FILES_OF_OTHER_COLUMNS, FILES_REPEATED, FILES_UNREADABLE
from otelgpu.store.row_checks import IS_PENDING, REASON
from otelgpu.store.tables import COLLECTIVE_PENDING, OF_HOSTS, TABLES, Column

_END_BYTES: Final = 1 << 16

_TABLES: Final = OF_HOSTS | TABLES
"""In this order: a row of ``probes`` has all that one of ``evidence`` needs."""

_Schema = tuple[tuple[str, str], ...]  # name and type of each column
_WHOLE: Final = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")


def read(store: Store, paths: Sequence[Path]) -> None:
    """Files of the same columns are one view."""
    import duckdb

    groups: dict[_Schema, list[str]] = defaultdict(list)
    for path in _without_copies(store, paths):
        linked = store.link(path)
        try:
            groups[_schema(store, linked)].append(linked)
        except duckdb.Error:
            store.rejected[FILES_UNREADABLE] += 1
    for schema, links in sorted(groups.items()):
        names = {name for name, _ in schema}
        table = next((table for table, columns in _TABLES.items() if names >= _required(columns)), "")
        if table:
            _take(store, table, schema, links)
        else:
            store.rejected[FILES_OF_OTHER_COLUMNS] += len(links)


def _without_copies(store: Store, paths: Sequence[Path]) -> Iterator[Path]:
    """Files whose length and end are another's are its copies: the end says where everything is, and its bounds."""
    seen = set()
    for path in paths:
        try:
            end = _end(path)
        except OSError:  # it is gone meanwhile
            store.rejected[FILES_UNREADABLE] += 1
            continue
        if end in seen:
            store.rejected[FILES_REPEATED] += 1
            continue
        seen.add(end)
        yield path


def _end(path: Path) -> tuple[int, bytes]:
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(-min(length, _END_BYTES), os.SEEK_END)
        return length, blake2b(file.read()).digest()


def _required(columns: Sequence[Column]) -> set[str]:
    return {column.name for column in columns if column.is_required}


def _schema(store: Store, linked: str) -> _Schema:
    described = store.connection.execute(f"DESCRIBE SELECT * FROM read_parquet('{linked}')").fetchall()
    return tuple(sorted((str(name).lower(), str(of_type)) for name, of_type, *_ in described))


def _take(store: Store, table: str, schema: _Schema, links: Sequence[str]) -> None:
    """Where one of several files cannot be read to its end, it is left out alone."""
    import duckdb

    query = _query(_TABLES[table], dict(schema), links)
    try:
        if table in OF_HOSTS:
            _take_seen(store, table, schema, links)
        elif table == "ops":
            store.add_view(query)
            if store.rejected.pop(CALLS_PENDING, 0):
                _insert_pending(store, query)
        else:
            store.connection.execute(f"INSERT INTO {table} {query}")
    except (duckdb.Error, OSError):
        if len(links) == 1:
            store.rejected[FILES_UNREADABLE] += 1
            return
        for linked in links:
            _take(store, table, schema, [linked])


def _take_seen(store: Store, table: str, schema: _Schema, links: Sequence[str]) -> None:
    """Rows of processes stay where they were read into, from one look to the next."""
    observed = store.observed()
    if unread := observed.unread(links):
        host_tables.insert(store, table, _query(OF_HOSTS[table], dict(schema), list(unread)))
        observed.have_read(unread.values())


def _insert_pending(store: Store, query: str) -> None:
    """Calls without an end: they last to the latest time of these files."""
    latest = f"SELECT max(greatest(t0, CASE WHEN isfinite(t1) THEN t1 ELSE t0 END)) FROM ({query}) WHERE isfinite(t0)"
    ended = f"SELECT * REPLACE (({latest}) AS t1) FROM ({query}) WHERE {IS_PENDING}"
    store.insert(ended)
    store.connection.execute(
        f"INSERT INTO evidence SELECT job, rank, host, t0, t1, '{COLLECTIVE_PENDING}', seq, name || ' had not ended' "
        f"FROM ({ended}) WHERE {REASON} = 0"
    )


def _query(columns: Sequence[Column], types: Mapping[str, str], links: Sequence[str]) -> str:
    """The columns of a table from files that may lack some, or have others; NULL: not of the column's type."""
    cells = ", ".join(f"{_cell(column, types.get(column.name))} AS {column.name}" for column in columns)
    files = ", ".join(f"'{linked}'" for linked in links)
    return f"SELECT {cells} FROM read_parquet([{files}], union_by_name = true)"


def _cell(column: Column, of_type: str | None) -> str:
    if of_type is None:
        return f"{column.default}::{column.type}"
    name = cell = f'"{column.name}"'
    if of_type != column.type:
        cell = f"TRY_CAST({name} AS {column.type})"
        if column.type in _WHOLE and of_type not in _WHOLE:  # a cast would round
            cell = f"CASE WHEN TRY_CAST({name} AS DOUBLE) = {cell} THEN {cell} END"
    if column.default is None:
        return cell
    return f"CASE WHEN {name} IS NULL THEN {column.default} ELSE {cell} END"
