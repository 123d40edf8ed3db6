"""Tables and words of Markdown, as the manual has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Rows = Iterable[Sequence[str]]


def table(header: Sequence[str], rows: Rows) -> str:
    """A Markdown table; ``|`` in a cell is escaped."""
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(" --- " for _ in header) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """``text`` as inline code, or nothing."""
    return f"`{text}`" if text else ""
