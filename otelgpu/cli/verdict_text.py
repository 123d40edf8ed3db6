"""How verdicts are written to a terminal, and the exit codes that say whether there are any."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console, RenderableType
from rich.text import Text

from otelgpu.model.text import printable

FOUND: Final = 3
UNDECIDED: Final = 4
"""Exit codes of verdicts, and of none but what is missing for one."""

_PAGE_WIDTH: Final = 120


class Lines:
    """Standard output; what is no terminal gets each text on one line."""

    def __init__(self) -> None:
        width = None if sys.stdout.isatty() else _PAGE_WIDTH
        self._console = Console(markup=False, emoji=False, highlight=False, width=width)

    def say(self, text: str, style: str = "") -> None:
        """A line."""
        self._console.print(Text(printable(text), style=style), soft_wrap=not sys.stdout.isatty())

    def show(self, shown: RenderableType) -> None:
        """A table or a tree."""
        self._console.print(shown)


def counted(number: int, noun: str, several: str = "") -> str:
    """``1 rank``, ``2 ranks``; ``several``: where it does not end in an s more."""
    return f"{number} {noun}" if number == 1 else f"{number} {several or noun + 's'}"
