"""The files that a user's probes come from: read once for each session, errors with the file and the line."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from otelgpu.config import Config
from otelgpu.errors import OtelgpuError
from otelgpu.model.user_probes import UserProbe
from otelgpu.probe_file import MOST_BYTES, parse


def user_probes(config: Config) -> tuple[UserProbe, ...]:
    """Those of ``probe_file``; none where it is not set. Raises :class:`OtelgpuError`."""
    return _parsed(config.probe_file) if config.probe_file else ()


def own_program(config: Config) -> tuple[str, str] | None:
    """The text of ``probe_program`` and its name; None where it is not set. Raises :class:`OtelgpuError`."""
    if not config.probe_program:
        return None
    if not config.probe_file:
        raise OtelgpuError(
            "a probe program is nothing without probes", hint="give --probe-file as well: docs/probes.md"
        )
    return _text(config.probe_program), config.probe_program


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
