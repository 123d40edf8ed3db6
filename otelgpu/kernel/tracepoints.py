"""What the kernel's tracepoints report: the fields of their records, as tracefs describes them.

Format: ``events/CATEGORY/NAME/format`` of tracefs (Documentation/trace/events.rst, "Event formats").
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from msgspec import Struct

TRACEFS: Final = Path("/sys/kernel/tracing")
_FIELD: Final = re.compile(
    r"field:(.+?)([A-Za-z_]\w*)(\[\w*\])?;\s+offset:(\d+);\s+size:(\d+);\s+signed:([01]);"
)
_NAME: Final = re.compile(r"\w+")


class Field(Struct, frozen=True, kw_only=True):
    """One field: where it begins in the record, how many bytes it has, whether it has a sign."""

    offset: int
    size: int
    signed: bool


def fields_of(category: str, name: str, *, tracefs: Path = TRACEFS) -> dict[str, Field]:
    """The fields of a tracepoint by name, without the common ones.

    Raises OSError (FileNotFoundError where the kernel has no such tracepoint).
    """
    if not _NAME.fullmatch(category) or not _NAME.fullmatch(name):
        raise FileNotFoundError(f"no tracepoint is called {category}/{name}")
    text = (tracefs / "events" / category / name / "format").read_text()
    return {
        field[2]: Field(offset=int(field[4]), size=int(field[5]), signed=field[6] == "1")
        for field in _FIELD.finditer(text)
        if not field[2].startswith("common_") and not field[3]
    }
