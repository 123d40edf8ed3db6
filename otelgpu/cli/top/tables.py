"""Tables as widgets: what render/top arranged, in cells."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar, Final

from msgspec import Struct, field
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Static

from otelgpu.engine.presentation import TopTable
from otelgpu.render.top.board import Choices, Order
from otelgpu.render.top.frames import Frame
from otelgpu.render.top.history import History, Identity, identity, sparkline
from otelgpu.render.top.layout import TITLE_LINES, Layout, Shown, cell, fitted, heights
from otelgpu.render.top.rows import Row
from otelgpu.render.top.values import NONE, cells, is_alarming

MOST_ROWS: Final = 500
"""Of a table; of more, the first in its order."""
_TREND: Final = "trend"
_SCROLL_BAR: Final = 1

Place = tuple[str, str]
"""A view's name and a table's."""
_Look = tuple[Hashable, ...]
"""All that a cell's looks depend on, but its words."""


class Shelf(Struct):
    """What the tables of all screens are made of."""

    choices: Choices
    histories: Mapping[Place, History]
    frame: Frame | None = None

    def rows(self, place: Place) -> Sequence[Row]:
        """All there are."""
        return self.frame.views[place[0]][place[1]] if self.frame is not None else ()


class _Rendered(Struct, frozen=True, kw_only=True):
    """A cell as it is on the screen."""

    look: _Look
    words: str
    lines: list[list[Segment]]

    def saying(self, text: Text) -> list[list[Segment]] | None:
        """The same with other words; None where that takes more than to exchange them."""
        words = text.plain
        if words == self.words:
            return self.lines
        if len(self.lines) != 1 or text.spans or cell_len(words) != cell_len(self.words):
            return None
        [line] = self.lines
        if [segment.text for segment in line].count(self.words) != 1:
            return None
        return [[Segment(words, each.style) if each.text == self.words else each for each in line]]


class RateTable(DataTable[Text]):
    """The rows of one table."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "app.scroll_columns(-1)", "Columns to the left", show=False),
        Binding("right", "app.scroll_columns(1)", "Columns to the right", show=False),
        Binding("home", "scroll_top", "First row", show=False),
        Binding("end", "scroll_bottom", "Last row", show=False),
    ]

    def __init__(self, view: str, top_table: TopTable) -> None:
        super().__init__(cursor_type="row", cell_padding=1)
        self.place: Place = (view, top_table.name)
        self.top_table = top_table
        self._drawn: tuple[Layout, Order] | None = None
        self._least: dict[str, int] = {}
        self._least_for = 0
        self._rows: list[Row] = []
        self._texts: list[list[Text]] = []
        self._rendered: dict[tuple[int, int], _Rendered] = {}

    @property
    def chosen(self) -> Row | None:
        """The row under the cursor."""
        return self._rows[self.cursor_row] if self.cursor_row < len(self._rows) else None

    def draw(self, rows: list[Row], order: Order, history: History, width: int) -> Layout:
        """Show these, in that order, in so many cells."""
        at = self._followed()
        self._rows = rows[:MOST_ROWS]
        written = [cells(self.top_table, row) for row in self._rows]
        layout = self._fit(written, order, width)
        texts = [
            [
                *(self._text(row, line[shown.place], shown) for shown in layout.columns),
                *_trend(history, row, layout),
            ]
            for row, line in zip(self._rows, written, strict=True)
        ]
        if self._drawn != (layout, order) or len(texts) < len(self._texts):
            self._rebuild(layout, order, texts)
        else:
            self._replace(texts)
        self._texts = texts
        self._follow(at)
        return layout

    def _fit(self, written: list[list[str]], order: Order, width: int) -> Layout:
        if self._least_for != width:
            self._least, self._least_for = {}, width
        layout = fitted(self.top_table, written, width, sort=order.sort, first=order.first, least=self._least)
        self._least |= {shown.key: shown.width for shown in layout.columns}
        return layout

    def _text(self, row: Row, written: str, shown: Shown) -> Text:
        place = shown.place - len(self.top_table.keys)
        column = self.top_table.columns[place] if place >= 0 else None
        text = cell(written, shown)
        if is_alarming(column, row[shown.key]):
            return Text(text, "bold red", no_wrap=True)
        return Text(text, "dim" if written == NONE else "", no_wrap=True)

    def _rebuild(self, layout: Layout, order: Order, texts: list[list[Text]]) -> None:
        self.clear(columns=True)
        self._rendered.clear()
        for shown in layout.columns:
            arrow = ("▲" if order.reverse else "▼") if shown.key == order.sort else ""
            title = cell(f"{shown.title} {arrow}".rstrip(), shown)
            self.add_column(Text(title, "bold underline" if arrow else ""), width=shown.width, key=shown.key)
        if layout.trend:
            self.add_column(Text(_TREND), width=layout.trend, key=_TREND)
        self.add_rows(texts)
        self._drawn = layout, Order(order.sort, order.reverse, order.first)

    def _replace(self, texts: list[list[Text]]) -> None:
        """Only what is another: most of a table stays as it is."""
        for place, (before, after) in enumerate(zip(self._texts, texts, strict=False)):
            for column, (was, now) in enumerate(zip(before, after, strict=True)):
                if was != now or was.style != now.style:
                    self.update_cell_at(Coordinate(place, column), now)
        self.add_rows(texts[len(self._texts) :])

    def _render_cell(
        self,
        row_index: int,
        column_index: int,
        base_style: Style,
        width: int,
        cursor: bool = False,
        hover: bool = False,
    ) -> list[list[Segment]]:
        """As the base class renders a cell, which does all cells anew when one has changed.

        That was two thirds of what drawing costs: a cell that looks as before is kept, and one of which only the
        words are others, as wide as before, has them exchanged.
        """
        place = row_index, column_index
        text = (
            self.ordered_columns[column_index].label
            if row_index < 0
            else self.get_cell_at(Coordinate(*place))
        )
        look: _Look = (
            *(text.style, base_style, width, cursor, hover),
            *(self.show_cursor, self._show_hover_cursor, self._pseudo_class_state),
        )
        kept = self._rendered.get(place)
        lines = kept.saying(text) if kept is not None and kept.look == look else None
        if lines is None:
            lines = super()._render_cell(row_index, column_index, base_style, width, cursor, hover)
        self._rendered[place] = _Rendered(look=look, words=text.plain, lines=lines)
        return lines

    def notify_style_update(self) -> None:
        """See :class:`textual.widget.Widget`: colours are others."""
        self._rendered.clear()
        super().notify_style_update()

    def _followed(self) -> Identity | None:
        """The row that the cursor stays on wherever it goes; on the first line, the cursor stays."""
        row = self.chosen
        return identity(self.top_table, row) if row is not None and self.cursor_row else None

    def _follow(self, wanted: Identity | None) -> None:
        if wanted is None:
            return
        place = next(
            (place for place, row in enumerate(self._rows) if identity(self.top_table, row) == wanted), None
        )
        if place is not None and place != self.cursor_row:
            self.move_cursor(row=place, animate=False)


def _trend(history: History, row: Row, layout: Layout) -> list[Text]:
    return [Text(sparkline(history.of(row), layout.trend), "green", no_wrap=True)] if layout.trend else []


class Section(Vertical):
    """A table under its title."""

    def __init__(self, view: str, top_table: TopTable) -> None:
        super().__init__()
        self.title = Static(classes="title")
        self.table = RateTable(view, top_table)
        self._entitled = Text()

    def entitle(self, title: Text) -> None:
        """Put this above the table; the same again costs nothing."""
        if title != self._entitled or title.spans != self._entitled.spans:
            self._entitled = title
            self.title.update(title, layout=False)

    def compose(self) -> ComposeResult:
        """See :class:`textual.widget.Widget`."""
        yield self.title
        yield self.table


class _Filled(Struct, frozen=True, kw_only=True):
    section: Section
    rows: list[Row] = field(default_factory=list)
    all_rows: int = 0


class Board(Vertical):
    """Several tables below each other. ``pid``: only rows of that process, and only tables that have some."""

    def __init__(
        self,
        shelf: Shelf,
        tables: Sequence[tuple[str, TopTable]],
        *,
        pid: int | None = None,
        id: str | None = None,
    ) -> None:
        super().__init__(id=id)
        self.sections = [Section(view, top_table) for view, top_table in tables]
        self._shelf, self._pid = shelf, pid

    def compose(self) -> ComposeResult:
        """See :class:`textual.widget.Widget`."""
        yield from self.sections

    def on_resize(self) -> None:
        """Draw it as large as it is."""
        self.draw()

    def draw(self) -> None:
        """Show the frame that there is now."""
        filled = [self._fill(section) for section in self.sections]
        shown = [each for each in filled if each.rows or self._pid is None]
        lines = heights(
            [len(each.rows) + TITLE_LINES if each.rows else 1 for each in shown], self.size.height
        )
        for each in filled:
            each.section.display = each in shown
        for each, height in zip(shown, lines, strict=True):
            self._draw(each, height)
        self._mind_focus()

    def _fill(self, section: Section) -> _Filled:
        table = section.table
        found = self._shelf.rows(table.place)
        rows = self._shelf.choices.rows(table.place[0], table.top_table, found, self._pid)
        return _Filled(section=section, rows=rows, all_rows=len(found))

    def _draw(self, filled: _Filled, height: int) -> None:
        section, table = filled.section, filled.section.table
        section.styles.height = height
        table.display = bool(filled.rows)
        title = Text(table.top_table.title, "bold")
        if filled.rows:
            order = self._shelf.choices.order(table.place[0], table.top_table)
            layout = table.draw(
                filled.rows, order, self._shelf.histories[table.place], self.size.width - _SCROLL_BAR
            )
            title.append(f"  {_counted(filled, self._pid)}{_beyond(layout)}", "dim not bold")
        elif self._shelf.frame is not None:
            title.append("  nothing like that" if filled.all_rows else "  nothing yet", "dim not bold")
        section.entitle(title)

    def _mind_focus(self) -> None:
        """Keys are for some table that is there."""
        usable = [section.table for section in self.sections if section.display and section.table.display]
        if usable and self.display and self.screen.focused not in (*usable,) and not self._is_typing():
            usable[0].focus(scroll_visible=False)

    def _is_typing(self) -> bool:
        return self.screen.focused is not None and not isinstance(self.screen.focused, RateTable)

    def focus_next(self) -> None:
        """Turn to the next table that has rows."""
        usable = [section.table for section in self.sections if section.display and section.table.display]
        if usable:
            at = usable.index(self.screen.focused) if self.screen.focused in usable else -1
            usable[(at + 1) % len(usable)].focus(scroll_visible=False)


def _counted(filled: _Filled, pid: int | None) -> str:
    shown = len(filled.rows)
    if pid is None and shown < filled.all_rows:
        return f"{shown} of {filled.all_rows}"
    return f"{shown}" if shown <= MOST_ROWS else f"the first {MOST_ROWS} of {shown}"


def _beyond(layout: Layout) -> str:
    """Which columns there is no room for."""
    before = f"  ← {layout.before}" if layout.before else ""
    return before + (f"  → {layout.behind} more" if layout.behind else "")
