"""``--export file:PATH``: OTLP/JSON lines."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from otelgpu.export.base import Exporter
from otelgpu.export.destination import Destination, Kind, Place, Trial
from otelgpu.export.file.line_file import DEFAULT_FILES, MOST_FILES, Rotation
from otelgpu.model.settings import captures_content
from otelgpu.model.text import did_you_mean

_OPTIONS: Final = re.compile(r"(?P<path>.+)\?(?P<options>[a-z_]+=[^&?]*(?:&[a-z_]+=[^&?]*)*)", re.DOTALL)
"""A question mark with anything else behind it is part of a name."""
_NUMBER: Final = re.compile(r"(?P<number>[0-9]{1,18})(?P<unit>|[KMG]iB)", re.ASCII)
_UNITS: Final = {"": 0, "KiB": 10, "MiB": 20, "GiB": 30}
_LEAST: Final = {"max_bytes": 4 << 20, "max_files": 1}
_MOST: Final = {"max_bytes": 1 << 50, "max_files": MOST_FILES}


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
        return Place(self.path, viewer=f"otelgpu view {shlex.quote(self.path)}")

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
    found = _OPTIONS.fullmatch(rest)
    if found is None:
        return FileDestination(rest)
    options = dict(part.partition("=")[::2] for part in found["options"].split("&"))
    if "max_bytes" not in options:
        raise ValueError("has options, and no max_bytes among them")
    return FileDestination(found["path"], **{name: _number(name, text) for name, text in options.items()})


def _number(name: str, text: str) -> int:
    """Of files, or of bytes with a unit. Raises ValueError."""
    if name not in _LEAST:
        raise ValueError(f"has an option {name}, which there is not{did_you_mean(name, _LEAST)}")
    found = _NUMBER.fullmatch(text)
    unit = found["unit"] if found is not None else ""
    if found is None or (unit and name == "max_files"):
        raise ValueError(f"has {name}={text}, where a number belongs, of bytes also as 64MiB")
    number = int(found["number"]) << _UNITS[unit]
    if not _LEAST[name] <= number <= _MOST[name]:
        raise ValueError(f"has {name}={text}: it is {_LEAST[name]} at least and {_MOST[name]} at most")
    return number


EXPORTER = Kind(
    scheme="file",
    forms={
        "file:PATH": "OTLP/JSON lines, as the Collector's file exporter writes them, appended to the file. "
        "`file:PATH?max_bytes=64MiB&max_files=5` rotates it: `PATH.1` is what was full last, what was `PATH.4` is gone."
    },
    parse=_parse,
)
