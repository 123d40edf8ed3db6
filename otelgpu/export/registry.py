"""Finds the exporters: every package below ``otelgpu.export`` with an ``EXPORTER``; and reads ``--export`` by them.

Parsing does no I/O; opening checks files, certificates and settings, so that mistakes show at start-up.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

import otelgpu.export
from otelgpu.export.base import ExportError
from otelgpu.export.destination import Destination, Kind


@cache
def kinds() -> dict[str, Kind]:
    """All exporters by scheme, in alphabetical order."""
    found: dict[str, Kind] = {}
    for module in pkgutil.iter_modules(otelgpu.export.__path__):
        kind = (
            getattr(import_module(f"otelgpu.export.{module.name}"), "EXPORTER", None)
            if module.ispkg
            else None
        )
        if kind is not None:
            found[kind.scheme] = kind
    return dict(sorted(found.items()))


def forms() -> str:
    """What can be written, as a line has it: ``console, file:PATH, otlp or otlp:URL``."""
    *most, last = (form for kind in kinds().values() for form in kind.forms)
    return f"{', '.join(most)} or {last}" if most else last


def parse_destination(text: str) -> Destination:
    """Parse one ``--export`` value. Raises :class:`~otelgpu.export.base.ExportError`."""
    scheme, colon, rest = text.strip().partition(":")
    kind = kinds().get(scheme)
    if kind is None:
        for other in kinds().values():
            if scheme in other.url_schemes:
                hint = f"Write {other.scheme}:{text.strip()}."
                raise ExportError(f"--export {text!r} does not say how to send", hint)
        raise ExportError(f"--export {text!r} is not known", f"Write {forms()}.")
    try:
        return kind.parse(rest if colon else None)
    except ValueError as error:
        raise ExportError(f"--export {text!r} {error}", f"Write {forms()}.") from error
