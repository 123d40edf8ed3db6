"""``--export file:PATH``: OTLP/JSON lines."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from otelgpu.export.base import Exporter
from otelgpu.export.destination import Destination, Kind, Place, Trial
from otelgpu.export.file.line_file import DEFAULT_FILES, MOST_FILES, Rotation
from otelgpu.export.options import path_and_options
from otelgpu.model.settings import captures_content

_LIMITS: Final = {"max_bytes": (4 << 20, 1 << 50), "max_files": (1, MOST_FILES)}


@dataclass(frozen=True, slots=True)
class FileDestination(Destination):
    """Lines appended to ``path``. ``max_bytes``: of one file, 0: it grows without end."""

    path: str
    max_bytes: int = 0
    max_files: int = DEFAULT_FILES
    is_opened_early: ClassVar[bool] = True  # the folder may be one that only root writes to

    def open(self, environ: Mapping[str, str], defaults: Mapping[str, str]) -> Exporter:
        """See :meth:`Destination.open`."""
        from otelgpu.export.file.exporter import FileExporter

        rotation = Rotation(max_bytes=self.max_bytes, max_files=self.max_files)
        return FileExporter(self.path, private=captures_content(environ), rotation=rotation)

    def place(self, environ: Mapping[str, str], defaults: Mapping[str, str]) -> Place:
        """See :meth:`Destination.place`."""
        return Place(self.path, viewer=f"otelgpu view {shlex.quote(self.path)}", has_files=True)

    def trials(
        self, environ: Mapping[str, str], defaults: Mapping[str, str], *, connects: bool
    ) -> Iterable[Trial]:
        """See :meth:`Destination.trials`."""
        path = Path(self.path)
        if os.access(path if os.path.exists(path) else path.parent, os.W_OK, effective_ids=True):
            return [Trial(True, f"results go to {path.absolute()}")]
        return [Trial(False, f"{path.absolute()} cannot be written", "name another: --export file:PATH")]


def _parse(rest: str | None) -> FileDestination:
    if not rest:
        raise ValueError("names no file")
    path, options = path_and_options(rest, _LIMITS)
    if options and "max_bytes" not in options:
        raise ValueError("has options, and no max_bytes among them")
    return FileDestination(path, **options)


EXPORTER = Kind(
    scheme="file",
    forms={
        "file:PATH": "OTLP/JSON lines, as the Collector's file exporter writes them, appended to the file. "
        "`file:PATH?max_bytes=64MiB&max_files=5` rotates it: `PATH.1` is what was full last, what was `PATH.4` is gone."
    },
    parse=_parse,
)
