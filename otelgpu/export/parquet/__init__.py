"""``--export parquet:DIR``: what ranks of training jobs are compared by, as tables for ``diagnose ranks``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Final

from otelgpu.export.base import Exporter
from otelgpu.export.destination import Destination, Kind, Place, Trial
from otelgpu.export.options import path_and_options

INSTALL: Final = "pip install 'otelgpu[diagnose]'"
_LIMITS: Final = {"max_bytes": (1 << 20, 1 << 50), "max_hours": (1, 24 * 3650), "seconds": (1, 86_400)}


@dataclass(frozen=True, slots=True)
class ParquetDestination(Destination):
    """Files in the folder ``path``, a new one of each table every ``seconds``; the oldest go where they are too many.

    ``max_bytes`` and ``max_hours`` bound all of them together.
    """

    path: str
    max_bytes: int = 1 << 30
    max_hours: int = 24 * 7
    seconds: int = 60
    is_opened_early: ClassVar[bool] = True  # the folder may be one that only root writes to

    def open(self, environ: Mapping[str, str], defaults: Mapping[str, str]) -> Exporter:
        """See :meth:`Destination.open`."""
        from otelgpu.export.parquet.exporter import ParquetExporter
        from otelgpu.export.parquet.folder import Bounds

        bounds = Bounds(max_bytes=self.max_bytes, max_age_s=self.max_hours * 3600)
        return ParquetExporter(self.path, bounds, every_s=self.seconds)

    def place(self, environ: Mapping[str, str], defaults: Mapping[str, str]) -> Place:
        """See :meth:`Destination.place`."""
        return Place(f"tables in {self.path}", has_files=True)

    def trials(
        self, environ: Mapping[str, str], defaults: Mapping[str, str], *, connects: bool
    ) -> Iterable[Trial]:
        """See :meth:`Destination.trials`."""
        if find_spec("duckdb") is None:
            return [Trial(False, "Parquet needs DuckDB, which is not installed", INSTALL)]
        path = Path(self.path)
        there = next(each for each in (path, *path.absolute().parents) if each.exists())
        if there.is_dir() and os.access(there, os.W_OK, effective_ids=True):
            return [Trial(True, f"tables go to {path.absolute()}")]
        return [Trial(False, f"{path.absolute()} cannot be written", "name another: --export parquet:DIR")]


def _parse(rest: str | None) -> ParquetDestination:
    if not rest:
        raise ValueError("names no folder")
    path, options = path_and_options(rest, _LIMITS)
    return ParquetDestination(path, **options)


EXPORTER = Kind(
    scheme="parquet",
    forms={
        "parquet:DIR": "Training steps, calls of collectives, hits of the user's own probes and errors of hardware as "
        "Parquet, for `otelgpu diagnose ranks DIR`; all else is left to another `--export`. A new file of each table "
        "every minute, and the oldest go beyond a GiB or a week: "
        "`parquet:DIR?max_bytes=1GiB&max_hours=168&seconds=60`. Needs `otelgpu[diagnose]`."
    },
    parse=_parse,
)
