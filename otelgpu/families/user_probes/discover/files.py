"""The files that a user's probes come from: read once for each session, errors with the file and the line."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from otelgpu.errors import OtelgpuError
from otelgpu.families.user_probes.probe_file import MOST_BYTES, parse
from otelgpu.model.settings import Settings
from otelgpu.model.user_probes import UserProbe


def user_probes(settings: Settings) -> tuple[UserProbe, ...]:
    """Those of setting ``probe_file``; none where it is not set. Raises :class:`OtelgpuError`."""
    path = settings.get("probe_file", "")
    return _parsed(path) if path else ()


def own_program(settings: Settings) -> tuple[str, str] | None:
    """The text of setting ``probe_program`` and its name; None where it is not set. Raises :class:`OtelgpuError`."""
    path = settings.get("probe_program", "")
    if not path:
        return None
    if not settings.get("probe_file", ""):
        raise OtelgpuError(
            "a probe program is nothing without probes",
            hint="give --probe-file as well: docs/how-to/probes.md",
        )
    return _text(path), path


@cache
def _parsed(path: str) -> tuple[UserProbe, ...]:
    return parse(_text(path), path)


def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(MOST_BYTES + 1).decode()
    except OSError as error:
        raise OtelgpuError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise OtelgpuError(f"{path} is not UTF-8: byte {error.start} is in no character") from error
