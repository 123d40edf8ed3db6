"""The tables of one session in DuckDB, on disk, with bounded memory.

Rows that readers decode lie in a database of a temporary folder that :meth:`Store.close` removes. Parquet files of
``ops`` are not copied: ``ops`` is a view of both.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from otelgpu.store.batches import Batches
from otelgpu.store.files import StoreError
from otelgpu.store.observed import Observed
from otelgpu.store.queries import Columns, columns_of
from otelgpu.store.rank_checks import exclude
from otelgpu.store.row_checks import REASON, REASONS, chosen
from otelgpu.store.sums import summed
from otelgpu.store.tables import EVIDENCE, OPS, STEP_SPANS, STEP_SUMS, TABLES, Column

if TYPE_CHECKING:
    import duckdb

MEMORY_LIMIT: Final = "3GB"
"""Of DuckDB, which takes more for a moment; what needs more goes to the temporary folder."""

_SETTINGS: Final = {
    "memory_limit": MEMORY_LIMIT,
    "preserve_insertion_order": "false",  # else DuckDB keeps what it could have written
    "autoinstall_known_extensions": "false",  # nothing is fetched
    "autoload_known_extensions": "false",
}
_TABLES: Final = {
    "ops_read": OPS,
    "step_sums_read": STEP_SUMS,
    "evidence": EVIDENCE,
    "step_spans": STEP_SPANS,
}


class Store:
    """``rejected``: reason → rows or files that were left out. ``limits``: what the data cannot say, in sentences.

    ``connection`` has the views ``ops`` and ``step_sums`` and the tables ``evidence`` and ``step_spans``, with the
    columns of :mod:`otelgpu.store.tables`.
    """

    def __init__(
        self, *, job: str | None = None, begin_s: float | None = None, end_s: float | None = None
    ) -> None:
        """Of other jobs, and of what begins outside of [begin_s, end_s), nothing is in ``ops``.

        Raises `StoreError` where DuckDB is not installed.
        """
        connect = _connect()
        self.rejected: Counter[str] = Counter()
        self.limits: list[str] = []
        self.folder: Final = Path(tempfile.mkdtemp(prefix="otelgpu-store-"))
        settings: dict[str, Any] = {**_SETTINGS, "temp_directory": str(self.folder / "spilled")}
        # DuckDB counts processors that are not this process's, and each thread has sums of its own.
        settings["threads"] = len(os.sched_getaffinity(0))
        self.connection = connect(self.folder / "ops.duckdb", config=settings)
        # In `python -c` it is on, and on standard output.
        self.connection.execute("SET enable_progress_bar = false")
        self._job = job
        self._chosen = chosen(job, begin_s, end_s)
        self._views: list[str] = []
        self._links = 0
        self._observed: Observed | None = None
        for table, columns in _TABLES.items():
            self.connection.execute(f"CREATE TABLE {table} ({_declared(columns)})")
        self._show()

    def link(self, path: Path) -> str:
        """The path of a file under a name that SQL can have: without quotes, and without the signs of a glob."""
        self._links += 1
        linked = self.folder / f"input-{self._links}"
        linked.symlink_to(path.resolve())
        return str(linked)

    def insert(self, query: str) -> None:
        """Rows of ``ops`` by a query that gives its columns, in their order; those that cannot be are counted."""
        self._count_rejected(query)
        self.connection.execute(f"INSERT INTO ops_read SELECT * FROM ({query}) WHERE {REASON} = 0")

    def add_view(self, query: str) -> None:
        """Likewise, of rows that stay in their file."""
        is_clean = not self._count_rejected(query)
        self._views.append(query if is_clean else f"SELECT * FROM ({query}) WHERE {REASON} = 0")
        self._show()

    def evidence(self) -> Batches:
        """Takes rows of ``evidence``, in the order of its columns, one at a time."""
        columns = {column.name: column.type for column in EVIDENCE}
        insert = "INSERT INTO evidence SELECT * FROM batch"
        return Batches(self.connection, columns, lambda: self.connection.execute(insert))

    def batches(self) -> Batches:
        """Takes rows of ``ops``, in the order of its columns, one at a time."""
        cells = ", ".join(f"TRY_CAST({column.name} AS {column.type}) AS {column.name}" for column in OPS)
        columns = {column.name: column.type for column in OPS}
        return Batches(self.connection, columns, lambda: self.insert(f"SELECT {cells} FROM batch"))

    def staging(self, table: str, columns: Mapping[str, str]) -> Batches:
        """Takes rows of a table of a reader's own, which is made here, and dropped by :meth:`drop`."""
        declared = ", ".join(f"{name} {of_type}" for name, of_type in columns.items())
        self.connection.execute(f"CREATE TABLE {table} ({declared})")
        insert = f"INSERT INTO {table} SELECT * FROM batch"
        return Batches(self.connection, columns, lambda: self.connection.execute(insert))

    def observed(self) -> Observed:
        """What all readers of this session saw of processes, which becomes ``ops`` in the end."""
        if self._observed is None:
            self._observed = Observed(self)
        return self._observed

    def drop(self, *tables: str) -> None:
        """Tables of a reader's own."""
        for table in tables:
            self.connection.execute(f"DROP TABLE {table}")

    def start_over(self, *, begin_s: float) -> None:
        """Without rows, for another look, at what begins at ``begin_s`` or later. What was observed stays."""
        self._chosen, self._views = chosen(self._job, begin_s, None), []
        self._show()
        if self._observed is not None:
            self._observed.start_over()
        for table in _TABLES:
            self.connection.execute(f"DELETE FROM {table}")
        for linked in self.folder.glob("input-*"):
            linked.unlink()
        self.rejected.clear()
        self.limits.clear()

    def finish(self) -> None:
        """To be called when everything was added: what only all rows of a rank show is looked for."""
        if self._observed is not None:
            self._observed.insert()
        self._show(exclude(self.run, self.rejected, self.limits))

    def run(self, query: str) -> Columns:
        """SQL on the tables. Raises `StoreError` where a file cannot be read to its end."""
        return columns_of(self.connection)(query)

    def keep(self, folder: Path) -> list[Path]:
        """Write the tables as Parquet into a folder; the files. They are inputs again. Raises `StoreError`."""
        written = []
        with self.errors(f"{folder}: cannot be written"):
            folder.mkdir(parents=True, exist_ok=True)
            for table in TABLES:
                path = folder / f"{table}.parquet"
                begun = path.with_suffix(".part")  # the file may be one of those that are read
                self.connection.table(table).write_parquet(str(begun), compression="zstd")
                written.append(begun.replace(path))
        return written

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """What DuckDB and the system raise in it is a `StoreError`: no room on the disk, for one."""
        import duckdb

        try:
            yield
        except (OSError, duckdb.Error) as error:
            raise StoreError(
                f"{what}: {error}", f"temporary files are in {self.folder.parent} (TMPDIR)"
            ) from error

    def close(self) -> None:
        """Remove what was written. The connection is of no use after it."""
        self.connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _count_rejected(self, query: str) -> int:
        """How many rows cannot be; of the others the sums are kept."""
        run = self.connection.execute
        checked = f"(SELECT {REASON} AS reason, {self._chosen or 'true'} AS is_chosen, * FROM ({query}))"
        run(f"CREATE OR REPLACE TEMP TABLE sums AS {summed(checked, 'reason', 'is_chosen')}")
        columns = ", ".join(column.name for column in STEP_SUMS)
        run(f"INSERT INTO step_sums_read SELECT {columns} FROM sums WHERE reason = 0 AND is_chosen")
        counts = "SELECT reason, sum(operations)::BIGINT FROM sums WHERE reason > 0 GROUP BY reason"
        rejected = {REASONS[reason]: rows for reason, rows in run(counts).fetchall()}
        run("DROP TABLE sums")
        self.rejected.update(rejected)
        return sum(rejected.values())

    def _show(self, condition: str = "") -> None:
        """``condition``: of both views, besides what is chosen."""
        columns = ", ".join(column.name for column in OPS)
        rows = " UNION ALL ".join([f"SELECT {columns} FROM ops_read", *self._views])
        for view, query, conditions in (
            ("ops", rows, (self._chosen, condition)),
            ("step_sums", "FROM step_sums_read", (condition,)),
        ):
            where = " AND ".join(filter(None, conditions)) or "true"
            self.connection.execute(f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM ({query}) WHERE {where}")


def _declared(columns: Sequence[Column]) -> str:
    return ", ".join(f"{column.name} {column.type} NOT NULL" for column in columns)


def _connect() -> Callable[..., duckdb.DuckDBPyConnection]:
    try:
        from duckdb import connect
    except ImportError as error:
        raise StoreError("tables need DuckDB", "pip install 'otelgpu[diagnose]'") from error
    return connect
