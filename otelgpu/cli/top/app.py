"""The program on a terminal: reports come in by a pipe, keys from the user, tables go out.

What a table shows is worked out in :mod:`otelgpu.render.top`; here it is put on the screen.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import ClassVar, Final

from rich.console import RenderableType
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.timer import Timer
from textual.widgets import DataTable, Footer, Input, Static, Tab, Tabs

from otelgpu.cli.top.screens import HelpScreen, MessagesScreen, ProcessScreen, SortScreen
from otelgpu.cli.top.tables import Board, Place, RateTable, Shelf
from otelgpu.engine.presentation import AGENT, PROCESSES, TopView
from otelgpu.model.text import printable
from otelgpu.render.top.board import Choices
from otelgpu.render.top.frames import Failure, Frame, Report, Setup, decoded
from otelgpu.render.top.headline import Status, Tone, headline
from otelgpu.render.top.history import History
from otelgpu.render.top.rows import Row, column_keys

_MESSAGES: Final = 200  # that are kept
_SHOWN_S: Final = 15.0  # a message, where no other comes
_LONGEST_LINE: Final = 64 << 20  # more is no frame
_STYLES: Final = {
    Tone.PLAIN: "",
    Tone.STRONG: "bold",
    Tone.FAINT: "dim",
    Tone.WARNING: "bold yellow",
    Tone.ALARM: "bold red",
}


async def _lines(pipe: int) -> AsyncIterator[bytes]:
    """What comes through a pipe, until that is closed."""
    reader = asyncio.StreamReader(limit=_LONGEST_LINE)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", buffering=0)
    )
    try:
        while line := await reader.readline():
            yield line
    finally:
        transport.close()


class TopApp(App[None]):
    """``reports`` and ``log``: pipes, closed when there is no more. ``failure``: why observing ended, if it did.

    It begins with nothing; tabs come with the :class:`Setup`, rows with each :class:`Frame`.
    """

    CSS = """
    Screen { background: $background; overflow: hidden; }
    #views { height: 1fr; }
    .headline { height: 1; padding: 0 1; background: $panel; }
    .title { height: 1; padding: 0 1; }
    #message { height: 1; padding: 0 1; color: $warning; display: none; }
    #message.alarm { height: auto; max-height: 8; color: $error; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    Board { height: 1fr; }
    Section { height: auto; }
    RateTable { height: 1fr; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
    .sheet { border: round $primary; background: $surface; padding: 0 1; max-width: 84; }
    .sheet { height: auto; max-height: 100%; }
    .choices { border: round $primary; width: 50; max-height: 100%; height: auto; }
    HelpScreen, MessagesScreen, SortScreen { align: center middle; }
    """
    AUTO_FOCUS = None
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("less_than_sign", "sort(-1)", "Sort", key_display="<"),
        Binding("greater_than_sign", "sort(1)", "Sort", key_display=">"),
        Binding("r", "reverse", "Reverse"),
        Binding("space", "pause", "Pause"),
        Binding("q", "quit", "Quit"),
        Binding("tab", "view(1)", "Next view", priority=True, show=False),
        Binding("shift+tab", "view(-1)", "View before", priority=True, show=False),
        Binding("s", "choose_sort", "Sort by", show=False),
        Binding("t", "next_table", "Next table", show=False),
        Binding("m", "messages", "Messages", show=False),
        Binding("escape", "drop_filter", "No filter", show=False),
        Binding("ctrl+c", "quit", "Quit", priority=True, show=False),
        *(
            Binding(f"{number}", f"view_number({number})", f"View {number}", show=False)
            for number in range(1, 10)
        ),
    ]

    def __init__(self, *, reports: int, log: int) -> None:
        super().__init__()
        self.failure: Failure | None = None
        self._pipes = reports, log
        self._views: dict[str, TopView] = {}
        self._view = ""
        self._has_chosen = False
        self._histories: dict[Place, History] = {}
        self._shelf = Shelf(Choices(), self._histories)
        self._labels: dict[str, str] = {}
        self._latest: Frame | None = None
        self._paused = False
        self._is_mounting = self._is_ending = False
        self._messages: deque[str] = deque(maxlen=_MESSAGES)
        self._fading: Timer | None = None
        self._headline = Static(classes="headline")
        self._place = Vertical(id="views")
        self._tabs: Tabs | None = None
        self._boards: dict[str, Board] = {}
        self._message = Static(id="message")
        self._field = Input(
            placeholder="words of the rows to show; Enter keeps, Escape drops it", id="filter"
        )

    # -- what is on the screen ------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """See :class:`textual.app.App`."""
        yield self._headline
        yield self._place
        yield self._message
        yield self._field
        yield Footer(compact=True, show_command_palette=False)

    async def _set_up(self, setup: Setup) -> None:
        """Make the tabs, and the tables of each."""
        if self._is_ending:
            return
        views = {each.name: each for each in setup.views}
        self._view, self._has_chosen = setup.view or setup.views[0].name, setup.view is not None
        self._shelf.choices.sort = setup.sort
        self._histories.update(
            {(each.name, table.name): History(table) for each in setup.views for table in each.top_tables}
        )
        self._boards = {
            name: Board(self._shelf, [(name, table) for table in view.top_tables], id=f"board-{name}")
            for name, view in views.items()
        }
        self._tabs = Tabs(
            *(
                Tab(self._label(number, view), id=name)
                for number, (name, view) in enumerate(views.items(), 1)
            ),
            active=self._view,
        )
        self._tabs.can_focus = False
        for name, board in self._boards.items():
            board.display = name == self._view
        self._is_mounting = True
        await self._place.mount(self._tabs, *self._boards.values())
        self._is_mounting = False
        if self._is_ending:
            self.exit()
            return
        self._views = views
        self.refresh_bindings()
        self._draw()

    def exit(self, result: None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        """See :meth:`textual.app.App.exit`: it waits for tabs that are half mounted, for these would raise."""
        self._is_ending = True
        if not self._is_mounting:
            super().exit(result, return_code, message)

    def _label(self, number: int, view: TopView) -> str:
        """Faint where there is nothing yet."""
        title = f"{number} {view.title}"
        tables = self._shelf.frame.views[view.name] if self._shelf.frame is not None else {}
        return title if any(tables.values()) else f"[dim]{title}[/dim]"

    def on_mount(self) -> None:
        """Begin to read, and to mind signals."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self.exit)
        reports, log = self._pipes
        self.run_worker(self._follow_reports(reports))
        self.run_worker(self._follow_log(log))
        self._draw()

    def _draw(self) -> None:
        """All that is to be seen now."""
        frame = self._shelf.frame
        status = Status(
            before="loading probes …" if self._views else "starting …",
            time=time.strftime("%H:%M:%S", time.localtime(frame.unix_s)) if frame is not None else "",
            filter=self._shelf.choices.filter,
            paused=self._paused,
            failed=self.failure is not None,
        )
        parts = [Text(text, _STYLES[tone]) for text, tone in headline(frame, status)]
        self._headline.update(Text("   ", no_wrap=True, overflow="ellipsis").join(parts), layout=False)
        for number, (name, view) in enumerate(self._views.items(), 1):
            label = self._label(number, view)
            if self._labels.get(name) != label and self._tabs is not None:
                self._labels[name] = label
                self._tabs.query_one(f"#{name}", Tab).label = label
        with self.batch_update():
            if isinstance(self.screen, ProcessScreen):
                self.screen.board.draw()
            elif self._views:
                self._boards[self._view].draw()

    # -- what comes in ----------------------------------------------------------------------------------

    async def _follow_reports(self, pipe: int) -> None:
        async for line in _lines(pipe):
            await self._take(decoded(line))
        if self.failure is None or not self._views:  # its time is over, or it did not come to anything
            self.exit()

    async def _take(self, report: Report) -> None:
        match report:
            case Setup():
                await self._set_up(report)
            case Failure():
                self.failure = report
                self._say(report.text, alarm=True)
                self._draw()
            case Frame():
                self._latest = report
                for (view, table), history in self._histories.items():
                    history.add(report.views[view][table])
                if not self._paused:
                    self._show(report)

    def _show(self, frame: Frame) -> None:
        self._shelf.frame = frame
        if not self._has_chosen:
            self._choose_what_there_is(frame)
        self._draw()

    def _choose_what_there_is(self, frame: Frame) -> None:
        """The first view in which something happens, until somebody chooses another."""
        for name, tables in frame.views.items():
            if name != AGENT and any(tables.values()):
                self._turn_to(name)
                return

    async def _follow_log(self, pipe: int) -> None:
        async for line in _lines(pipe):
            self._say(line.decode(errors="replace"))

    def _say(self, text: str, *, alarm: bool = False) -> None:
        """Show a message for a while: a line of it, but all of why this ended."""
        text = text.strip().removeprefix("otelgpu: ")
        self._messages.append(text)
        if self._fading is not None:
            self._fading.stop()
        if alarm:
            self._message.update(Text("\n".join(map(printable, text.splitlines()))))
            self._message.add_class("alarm")
        elif self.failure is None:
            self._message.update(Text(printable(text), no_wrap=True, overflow="ellipsis"))
            self._fading = self.set_timer(_SHOWN_S, self._fade)
        self._message.display = True

    def _fade(self) -> None:
        self._message.display = False

    # -- what the user does -----------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a key means that here: over a sheet, those of tables mean nothing."""
        over = len(self.screen_stack) > 1
        if not self._views and action not in ("quit", "help", "messages"):
            return False
        of_tables = action in ("sort", "reverse", "choose_sort", "scroll_columns", "pause")
        if over and action not in ("quit", "help"):
            return of_tables and isinstance(self.screen, ProcessScreen)
        return True

    def _turn_to(self, name: str) -> None:
        self._view, self._has_chosen = name, True
        if self._tabs is not None:
            self._tabs.active = name
        for each, board in self._boards.items():
            board.display = each == name
        self.call_after_refresh(self._draw)

    def on_tabs_tab_activated(self, event: Tabs.TabActivated) -> None:
        """Somebody clicked on a view; of those that :meth:`_turn_to` chose, it is no news."""
        name = event.tab.id
        if name is not None and name == event.tabs.active and name != self._view:
            self._turn_to(name)

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Somebody clicked on a column's title."""
        table, key = event.data_table, event.column_key.value
        if isinstance(table, RateTable) and key in column_keys(table.top_table):
            self._shelf.choices.sort_by(table.place[0], table.top_table, key)
            self._draw()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the row's process."""
        table = event.data_table
        row = table.chosen if isinstance(table, RateTable) else None
        pid = row.get("pid") if row is not None else None
        if len(self.screen_stack) > 1:
            return
        if not isinstance(pid, int) or row is None or self._view == AGENT:
            self._say("this row is of no single process")
            return
        screen = ProcessScreen(self._shelf, list(self._views.values()), pid, self._name_of(pid, row))
        self.push_screen(screen, self._uncovered)

    def _uncovered(self, result: None) -> None:
        """What lay over this has gone: the keys mean what they did."""
        self.refresh_bindings()
        self._draw()

    def _name_of(self, pid: int, row: Row) -> str:
        processes = self._shelf.rows((PROCESSES, PROCESSES))
        rows = [each for each in (row, *processes) if each.get("pid") == pid]
        found = [each.get(key) for key in ("service", "program") for each in rows]
        return next((f"{name}" for name in found if name), "")

    def _focused(self) -> RateTable | None:
        return self.focused if isinstance(self.focused, RateTable) else None

    def action_view(self, step: int) -> None:
        """The next view, or the one before."""
        names = list(self._views)
        self._turn_to(names[(names.index(self._view) + step) % len(names)])

    def action_view_number(self, number: int) -> None:
        """A view by its number."""
        names = list(self._views)
        if number <= len(names):
            self._turn_to(names[number - 1])

    def action_next_table(self) -> None:
        """Turn to the next table of the view."""
        self._boards[self._view].focus_next()

    def action_sort(self, step: int) -> None:
        """Sort by the next column, or the one before."""
        if table := self._focused():
            self._shelf.choices.move_sort(table.place[0], table.top_table, step)
            self._draw()

    def action_reverse(self) -> None:
        """Sort the other way round."""
        if table := self._focused():
            order = self._shelf.choices.order(table.place[0], table.top_table)
            order.reverse = not order.reverse
            self._draw()

    def action_choose_sort(self) -> None:
        """Sort by a column of a list."""
        if table := self._focused():
            now = self._shelf.choices.order(table.place[0], table.top_table).sort

            def sort(key: str | None) -> None:
                if key is not None:
                    self._shelf.choices.sort_by(table.place[0], table.top_table, key)
                self._uncovered(None)

            self.push_screen(SortScreen(table.top_table, now), sort)

    def action_scroll_columns(self, step: int) -> None:
        """Begin with another column."""
        if table := self._focused():
            self._shelf.choices.scroll(table.place[0], table.top_table, step)
            self._draw()

    def action_pause(self) -> None:
        """Stay with this frame, or go on with the latest."""
        self._paused = not self._paused
        if not self._paused and self._latest is not None:
            self._show(self._latest)
        self._draw()

    def action_help(self) -> None:
        """The keys."""
        self.push_screen(HelpScreen(), self._uncovered)

    def action_messages(self) -> None:
        """What was logged."""
        self.push_screen(MessagesScreen(self._messages), self._uncovered)

    def action_filter(self) -> None:
        """Type the words of the rows to show."""
        self._field.display = True
        self._field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        self._shelf.choices.filter = event.value
        self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter."""
        self._leave_filter()

    def action_drop_filter(self) -> None:
        """Drop the filter."""
        self._field.value = ""
        self._leave_filter()

    def _leave_filter(self) -> None:
        self._field.display = False
        self.set_focus(None)
        self._draw()
