"""The live side of family ``file``: from when on a call on a file is slow."""

from __future__ import annotations

from typing import Final

from otelgpu.model.settings import Settings
from otelgpu.processes.discovery import Choice, Discovery, ring_of_few


def choose(settings: Settings) -> Choice:
    """By setting ``file_slow_ms``; in a ring of few records."""
    return Choice(
        constants={"file_slow_ns": int(settings.get("file_slow_ms", 1.0) * 1e6)}, ring_bytes=ring_of_few
    )


DISCOVERY: Final = Discovery(choose=choose)
