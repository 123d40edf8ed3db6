"""A folder of Parquet files, each whole: written in a folder of the writer's own within it, then renamed into place.

What a crash left is in ``.writing-HOST-PID-…``, which readers pass over and the next writer of the host removes.
Nothing is counted or logged here: what cannot be written raises OSError.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Final

from msgspec import Struct

from otelgpu.export.base import ExportError
from otelgpu.export.parquet import INSTALL
from otelgpu.export.parquet.rows import Columns

WRITING: Final = ".writing-"
"""How folders begin whose files are not whole."""
_NAME: Final = re.compile(r"(?:steps|calls|waits|probes|evidence)-(?P<unix_ns>[0-9]{19})-[0-9]+\.parquet")
_MEMORY: Final = "256MB"


class Bounds(Struct, frozen=True, kw_only=True):
    """Of all files of the folder that have a writer's names: their size together, and the age of the oldest."""

    max_bytes: int
    max_age_s: float


class ParquetFolder:
    """Used by one thread at a time. Each host should have a folder of its own: a writer bounds what is in it."""

    def __init__(self, path: str, bounds: Bounds) -> None:
        """Makes the folder where there is none. Raises OSError; `ExportError` where DuckDB is not installed."""
        try:
            import duckdb
        except ImportError as error:
            raise ExportError("--export parquet: needs DuckDB", INSTALL) from error
        self._failures = (OSError, duckdb.Error)
        self._folder, self._bounds = Path(path), bounds
        self._folder.mkdir(parents=True, exist_ok=True)
        mine = f"{WRITING}{socket.gethostname()}-"
        for left in self._folder.glob(f"{mine}*"):
            if not _is_alive(left.name.removeprefix(mine)):
                shutil.rmtree(left, ignore_errors=True)
        # Of this user alone: nobody can put a link where a file is about to be written.
        self._writing = Path(tempfile.mkdtemp(prefix=f"{mine}{os.getpid()}-", dir=self._folder))
        self._connection = duckdb.connect(config={"threads": 1, "memory_limit": _MEMORY})

    def write(self, table: str, columns: Columns) -> None:
        """A new file. Raises OSError, and then there is none."""
        name = f"{table}-{time.time_ns():019d}-{os.getpid()}.parquet"
        begun = self._writing / name
        try:
            self._writing.mkdir(mode=0o700, exist_ok=True)  # somebody may have emptied the folder
            self._connection.register("rows", columns)
            self._connection.table("rows").write_parquet(str(begun), compression="zstd")
            begun.chmod(0o644)
            begun.rename(self._folder / name)
        except self._failures as error:
            begun.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise
            raise OSError(str(error)) from error
        finally:
            self._connection.unregister("rows")
        self._remove_oldest()

    def close(self) -> None:
        """Let it go; files stay."""
        self._connection.close()
        shutil.rmtree(self._writing, ignore_errors=True)

    def _remove_oldest(self) -> None:
        """What somebody else removed meanwhile is gone too."""
        oldest_ns = time.time_ns() - int(self._bounds.max_age_s * 1e9)
        left = self._bounds.max_bytes
        names = {each.name: each for each in os.scandir(self._folder) if _NAME.fullmatch(each.name)}
        for name in sorted(names, key=_unix_ns, reverse=True):
            try:
                left -= names[name].stat().st_size
                if left < 0 or _unix_ns(name) < oldest_ns:
                    os.unlink(names[name].path)
            except FileNotFoundError:
                pass


def _unix_ns(name: str) -> int:
    found = _NAME.fullmatch(name)
    return int(found["unix_ns"]) if found is not None else 0


def _is_alive(rest: str) -> bool:
    """Whose folder it is: ``PID-…``. What is no process's is nobody's."""
    pid = rest.partition("-")[0]
    return pid.isascii() and pid.isdecimal() and os.path.exists(f"/proc/{pid}")
