"""``--export console``: trees on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TextIO

from otelgpu.export.base import Exporter
from otelgpu.export.destination import Destination, Kind, Place, Trial


@dataclass(frozen=True, slots=True)
class ConsoleDestination(Destination):
    """``stream``: where it prints; None: standard output."""

    stream: TextIO | None = None

    def open(self, environ: Mapping[str, str], defaults: Mapping[str, str]) -> Exporter:
        """See :meth:`Destination.open`."""
        from otelgpu.export.console.exporter import ConsoleExporter

        return ConsoleExporter(self.stream or sys.stdout)

    def place(self, environ: Mapping[str, str], defaults: Mapping[str, str]) -> Place:
        """See :meth:`Destination.place`."""
        return Place("standard output")

    def trials(
        self, environ: Mapping[str, str], defaults: Mapping[str, str], *, connects: bool
    ) -> Iterable[Trial]:
        """See :meth:`Destination.trials`."""
        return [Trial(True, "standard output")]


def _parse(rest: str | None) -> ConsoleDestination:
    if rest is not None:
        raise ValueError("has something behind console")
    return ConsoleDestination()


EXPORTER = Kind(
    scheme="console",
    forms={"console": "A readable tree of every trace, on standard output."},
    parse=_parse,
)
