"""From what a command line names to tables: files, folders and globs, each file by the reader that knows its kind."""

from __future__ import annotations

import glob
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from otelgpu.export.parquet.folder import WRITING
from otelgpu.store.clickhouse.address import SCHEME, address_of
from otelgpu.store.database import Store
from otelgpu.store.files import StoreError
from otelgpu.store.line_files import whole_rotations
from otelgpu.store.queries import Tables
from otelgpu.store.readers.recognition import Reader, reader_of


def open_inputs(
    inputs: Sequence[str],
    *,
    job: str | None = None,
    begin_s: float | None = None,
    end_s: float | None = None,
) -> Store:
    """The tables of all inputs, to be closed.

    ``inputs``: files (with those that they were rotated to), folders (all that lies in them) and globs. With ``job``
    only that one's operations; with ``begin_s`` and ``end_s`` only what begins in [begin_s, end_s), in the inputs' own
    time.

    Raises `StoreError` for an input that is not there, and where DuckDB is not.
    """
    return open_files(found_files(inputs), job=job, begin_s=begin_s, end_s=end_s)


def open_files(
    files: Sequence[Path],
    *,
    job: str | None = None,
    begin_s: float | None = None,
    end_s: float | None = None,
) -> Store:
    """As `open_inputs`, of these files and no others."""
    store = Store(job=job, begin_s=begin_s, end_s=end_s)
    try:
        with store.errors("tables cannot be made"):
            _read(store, files)
    except BaseException:
        store.close()
        raise
    return store


def open_tables(
    inputs: Sequence[str],
    *,
    job: str | None = None,
    begin_s: float | None = None,
    end_s: float | None = None,
) -> Tables:
    """As `open_inputs`, and of ``clickhouse://``, which then is the only input, the tables that lie there."""
    if not is_remote(inputs):
        return open_inputs(inputs, job=job, begin_s=begin_s, end_s=end_s)
    from otelgpu.store.clickhouse.tables import ClickHouseTables

    return ClickHouseTables(address_of(inputs[0], os.environ), job=job, begin_s=begin_s, end_s=end_s)


def is_remote(inputs: Sequence[str]) -> bool:
    """Whether tables in ClickHouse are what is given. Raises `StoreError` where other inputs are given with them."""
    found = any(each.startswith(SCHEME) for each in inputs)
    if found and len(inputs) > 1:
        raise StoreError(
            "clickhouse:// cannot be read together with other inputs",
            "load the files there, or read them apart",
        )
    return found


def found_files(inputs: Sequence[str]) -> list[Path]:
    """Each once, rotated ones before what they were rotated from. Raises `StoreError` for what is not there."""
    return list(dict.fromkeys(found for each in inputs for found in _files(each)))


def _files(given: str) -> Iterator[Path]:
    path = Path(given)
    if path.is_dir():
        yield from _within(path)
    elif path.is_file():
        yield from whole_rotations([path])
    elif path.exists():
        raise StoreError(
            f"{given}: no file or folder", "a pipe cannot be read twice: write it to a file first"
        )
    else:
        found = sorted(glob.glob(given, recursive=True))
        if not found:
            raise StoreError(f"{given}: no such file or folder")
        for each in map(Path, found):
            yield from _within(each) if each.is_dir() else (each,)


def _within(folder: Path) -> Iterable[Path]:
    """Less what is being written: files that somebody else renames into place when they are whole."""
    found = (path for path in folder.rglob("*") if path.suffix != ".part" and path.is_file())
    return sorted(
        path for path in found if not any(part.startswith(WRITING) for part in path.relative_to(folder).parts)
    )


def _read(store: Store, files: Sequence[Path]) -> None:
    for reader, mine in by_reader(files).items():
        reader(store, mine)
    store.finish()


def by_reader(files: Sequence[Path]) -> dict[Reader, list[Path]]:
    """The files that each reader takes."""
    found: dict[Reader, list[Path]] = defaultdict(list)
    for path in files:
        found[reader_of(path)].append(path)
    return found
