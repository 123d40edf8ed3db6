"""How verdicts are written to a terminal, and the exit codes that say whether there are any."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from otelgpu.diagnose.stall.verdicts import Spent
from otelgpu.model.quantities import duration as written_duration
from otelgpu.model.text import printable

FOUND: Final = 3
UNDECIDED: Final = 4
"""Exit codes of verdicts, and of none but what is missing for one."""

_PAGE_WIDTH: Final = 120


class Evidence(Protocol):
    """What speaks for a verdict, in words."""

    @property
    def text(self) -> str:
        """One sentence."""


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


def say_verdict(lines: Lines, text: str, evidence: Sequence[Evidence], *, undecided_next: str | None) -> None:
    """A sentence and its evidence; with ``undecided_next`` what is missing, of which the sentence has the first."""
    lines.say(text, "bold")
    for each in evidence if undecided_next is None else evidence[1:]:
        lines.say(f"  · {each.text}")
    if undecided_next is not None:
        lines.say(f"  next: {undecided_next}")


def say_limits(
    lines: Lines, remarks: Iterable[str], limits: Iterable[str], rejected: Mapping[str, int], *, remark: str
) -> None:
    """What ends a report; ``remark``: what the remarks are."""
    for each in remarks:
        lines.say(f"{remark}: {each}")
    for limit in limits:
        lines.say(f"limit: {limit}")
    for reason, count in sorted(rejected.items()):
        lines.say(f"rejected: {reason}: {count}")


def number_table(title: str, *numbers: str) -> Table:
    """A table that begins with columns of numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def spent_table(title: str, rows: Iterable[Spent], *, cause: str) -> Table:
    """What a thread's time went into; ``cause`` heads the causes."""
    table = number_table(title, "time", "share", "times", "longest")
    table.add_column(cause, no_wrap=True)
    table.add_column("", overflow="fold")
    for row in rows:
        table.add_row(
            written_duration(row.seconds * 1e9),
            f"{row.share:.1%}",
            f"{row.times:,}" if row.times else "",
            written_duration(row.most_s * 1e9) if row.times else "",
            row.cause,
            printable(row.what),
        )
    return table
