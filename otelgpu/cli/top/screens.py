"""What lies over the tables: the keys, the columns to sort by, messages, one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from otelgpu.cli.top.tables import Board, Shelf
from otelgpu.engine.presentation import AGENT, PROCESSES, TopTable, TopView
from otelgpu.model.text import printable

HELP: Final = """\
[b]Views[/b]
  Tab, Shift+Tab     the next view, the one before
  1 … 9              a view by its number
  t                  the next table of a view
  Enter              a process: all that is known of the row's
  Escape             back; no filter

[b]Rows[/b]
  < >                sort by the column to the left, to the right
  s                  choose the column to sort by
  r                  the other way round
  /                  only rows with these words
  ↑ ↓ PgUp PgDn      move; the cursor stays on its row
  ← →                further columns

[b]Program[/b]
  Space              pause, and go on
  m                  messages
  q, Ctrl+C          quit

A mouse works: a click on a column's title sorts by it. [b]-[/b] is what nobody
reported. Rates are of the time between two frames; [b]trend[/b] is how the table's
first figure was in the last 60. Percentiles are the upper bound of their
histogram's bucket. [b]lost[/b] is all that was not seen or was dropped: the view
Agent says why. docs/reference/cli.md, "otelgpu top", has all of it.
"""

_BACK: Final = [Binding("escape,q,question_mark", "dismiss", "Back")]


class _Sheet(ModalScreen[None]):
    """A text over the tables."""

    BINDINGS: ClassVar[list[BindingType]] = [*_BACK]

    def __init__(self, text: str | Text) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """See :class:`textual.widget.Widget`."""
        with VerticalScroll(classes="sheet"):
            yield Static(self._text)


class HelpScreen(_Sheet):
    """The keys."""

    def __init__(self) -> None:
        super().__init__(HELP)


class MessagesScreen(_Sheet):
    """What was logged."""

    def __init__(self, messages: Sequence[str]) -> None:
        super().__init__(Text("\n".join(map(printable, messages)) or "no messages"))


class SortScreen(ModalScreen[str | None]):
    """Choose a column; its key is the result."""

    AUTO_FOCUS = "OptionList"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "Back")]

    def __init__(self, top_table: TopTable, now: str) -> None:
        super().__init__()
        keys = [(name, title) for name, title in top_table.keys.values()]
        self._columns = keys + [(column.key, column.title) for column in top_table.columns]
        self._now = now

    def compose(self) -> ComposeResult:
        """See :class:`textual.widget.Widget`."""
        choices = OptionList(
            *(Option(Text(f"{title}  ({key})"), id=key) for key, title in self._columns), classes="choices"
        )
        choices.border_title = "Sort by"
        choices.highlighted = [key for key, _ in self._columns].index(self._now)
        yield choices

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """One was chosen."""
        self.dismiss(event.option.id)


class ProcessScreen(Screen[None]):
    """All tables, as far as they have rows of one process."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back"),
        Binding("t", "next_table", "Next table"),
    ]

    def __init__(self, shelf: Shelf, views: Sequence[TopView], pid: int, name: str) -> None:
        super().__init__()
        self._headline = Static(Text(printable(f"Process {pid}  {name}"), "bold"), classes="headline")
        tables = [
            (view.name, table)
            for view in sorted(views, key=lambda view: view.name != PROCESSES)
            for table in view.top_tables
            if any(key == "pid" for key, _ in table.keys.values()) and view.name != AGENT
        ]
        self.board = Board(shelf, tables, pid=pid)

    def compose(self) -> ComposeResult:
        """See :class:`textual.widget.Widget`."""
        yield self._headline
        yield self.board
        yield Footer(compact=True, show_command_palette=False)

    def action_next_table(self) -> None:
        """Turn to the next table."""
        self.board.focus_next()
