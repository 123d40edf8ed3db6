"""``--export`` texts into exporters: ``console``, ``file:PATH``, ``otlp`` and ``otlp:URL``.

Parsing does no I/O; opening checks files, certificates and settings, so that mistakes show at start-up.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from otelgpu.export.base import Exporter, ExportError, Signal


@dataclass(frozen=True, slots=True)
class ConsoleDestination:
    """Trees on the terminal."""


@dataclass(frozen=True, slots=True)
class FileDestination:
    """OTLP/JSON lines appended to ``path``."""

    path: str


@dataclass(frozen=True, slots=True)
class OtlpDestination:
    """An OTLP server. ``endpoint`` is a base URL; None leaves it to the environment."""

    endpoint: str | None


Destination = ConsoleDestination | FileDestination | OtlpDestination

_FORMS = "Write console, file:PATH, otlp or otlp:URL."


@dataclass(frozen=True, slots=True)
class Opening:
    """A destination and all that is said of it, to be opened. Equal ones would be opened alike.

    ``defaults``: see :func:`open_exporter`. ``has_files``: what is opened reads or writes files, which may have been
    replaced since it was.
    """

    destination: Destination
    environ: Mapping[str, str]
    defaults: Mapping[str, str]

    @property
    def has_files(self) -> bool:
        """A log that was rotated, or a certificate that was renewed, has its old name."""
        if isinstance(self.destination, ConsoleDestination):
            return False
        return isinstance(self.destination, FileDestination) or any(
            name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith(("CERTIFICATE", "CLIENT_KEY"))
            for name in (*self.environ, *self.defaults)
        )

    def open(self) -> Exporter:
        """See :func:`open_exporter`."""
        return open_exporter(self.destination, self.environ, defaults=self.defaults)


def parse_destination(text: str) -> Destination:
    """Parse one ``--export`` value. Raises :class:`~otelgpu.export.base.ExportError`."""
    kind, colon, rest = text.strip().partition(":")
    if kind == "console" and not colon:
        return ConsoleDestination()
    if kind == "file":
        if not rest:
            raise ExportError(f"--export {text!r} names no file", _FORMS)
        return FileDestination(rest)
    if kind == "otlp" and (rest or not colon):
        return OtlpDestination(rest or None)
    if kind in ("http", "https"):
        raise ExportError(f"--export {text!r} does not say how to send", f"Write otlp:{text.strip()}.")
    raise ExportError(f"--export {text!r} is not known", _FORMS)


def open_exporter(
    destination: Destination,
    environ: Mapping[str, str],
    *,
    defaults: Mapping[str, str] | None = None,
    stream: TextIO | None = None,
) -> Exporter:
    """Make a destination ready to take spans, metrics and profiles.

    ``environ``: the ``OTEL_EXPORTER_OTLP_*`` variables; ``defaults``: the same names, from a configuration
    file, for what ``environ`` leaves unset. ``stream``: where ``console`` prints; standard output otherwise.
    Raises :class:`~otelgpu.export.base.ExportError` for what cannot be opened or used.
    """
    if isinstance(destination, ConsoleDestination):
        from otelgpu.export.console import ConsoleExporter

        return ConsoleExporter(stream or sys.stdout)
    if isinstance(destination, FileDestination):
        from otelgpu.export.file import FileExporter

        return FileExporter(destination.path)
    from otelgpu.export.otlp import OtlpExporter
    from otelgpu.export.settings import OtlpSettings

    traces, metrics, profiles = (
        OtlpSettings.from_environment(environ, signal, endpoint=destination.endpoint, defaults=defaults)
        for signal in (Signal.TRACES, Signal.METRICS, Signal.PROFILES)
    )
    return OtlpExporter(traces, metrics, profiles)
