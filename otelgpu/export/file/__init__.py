"""``--export file:PATH``: OTLP/JSON lines."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from otelgpu.export.base import Exporter
from otelgpu.export.destination import Destination, Kind, Trial
from otelgpu.model.settings import captures_content


@dataclass(frozen=True, slots=True)
class FileDestination(Destination):
    """Lines appended to ``path``."""

    path: str
    is_opened_early: ClassVar[bool] = True  # the folder may be one that only root writes to

    def open(self, environ: Mapping[str, str], defaults: Mapping[str, str]) -> Exporter:
        """See :meth:`Destination.open`."""
        from otelgpu.export.file.exporter import FileExporter

        return FileExporter(self.path, private=captures_content(environ))

    def shown(self, environ: Mapping[str, str], defaults: Mapping[str, str]) -> str:
        """See :meth:`Destination.shown`."""
        return self.path

    @property
    def viewer(self) -> str:
        """See :attr:`Destination.viewer`."""
        return f"otelgpu view {shlex.quote(self.path)}"

    def uses_files(self, environ: Mapping[str, str], defaults: Mapping[str, str]) -> bool:
        """See :meth:`Destination.uses_files`."""
        return True

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
    return FileDestination(rest)


EXPORTER = Kind(
    scheme="file",
    forms={
        "file:PATH": "OTLP/JSON lines, as the Collector's file exporter writes them, appended to the file."
    },
    parse=_parse,
)
