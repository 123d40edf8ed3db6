"""A file of JSON lines that a process appends what it knows to: an observer is checked against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class TruthFile:
    """Appends lines to a file; without a path, to nothing."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("a", buffering=1)

    def write(self, line: dict[str, Any]) -> None:
        """Append one line."""
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
