"""Small files of ``/proc`` and ``/sys``, read whole."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

_MOST_BYTES: Final = 65_536


def kernel_text(path: Path) -> str:
    """What it says, at most 64 KiB of it; nothing where it cannot be read."""
    with suppress(OSError), open(path, "rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8", "replace")
    return ""
