"""Rows from a reader into a table of DuckDB: gathered as Python tuples, handed over in columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

if TYPE_CHECKING:
    import duckdb

ROWS: Final = 1 << 16
"""So many are gathered at most."""

_DTYPES: Final = {
    "VARCHAR": object,
    "DOUBLE": np.float64,
    "INTEGER": np.int64,  # what an INTEGER cannot hold is for the checks of rows to find
    "BIGINT": np.int64,
    "UBIGINT": np.uint64,
}
_LONGEST_TEXT: Final = 1024


class Batches:
    """A context; what was added is in the table when it ends."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        columns: Mapping[str, str],
        take: Callable[[], object],
    ) -> None:
        """``columns``: name → type. ``take`` is called when rows are in the view ``batch``."""
        self._connection, self._columns, self._take = connection, columns, take
        self._rows: list[tuple[Any, ...]] = []

    def add(self, *row: Any) -> None:
        """One row. Integers have to be of 64 bits; NaN becomes NULL."""
        self._rows.append(row)
        if len(self._rows) >= ROWS:
            self.flush()

    def flush(self) -> None:
        """Hand over what was gathered."""
        if not self._rows:
            return
        cells = zip(*self._rows, strict=True)
        batch = {
            name: np.array(values, dtype=_DTYPES[of_type])
            for (name, of_type), values in zip(self._columns.items(), cells, strict=True)
        }
        self._rows = []
        self._connection.register("batch", batch)
        try:
            self._take()
        finally:
            self._connection.unregister("batch")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.flush()


def text(value: object) -> str:
    """A text that a table can hold: valid Unicode, and not without end."""
    return str(value)[:_LONGEST_TEXT].encode("utf-8", "replace").decode()
