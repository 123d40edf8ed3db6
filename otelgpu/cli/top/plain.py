"""Frames below each other: tables where no terminal takes more, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from otelgpu.engine.presentation import TopTable, TopView, Unit
from otelgpu.render.top.frames import Frame
from otelgpu.render.top.rows import Row
from otelgpu.render.top.values import cells

_LINES: Final = 40  # rows of one table; --json has all

_WIDE: Final = 240  # columns of what is written to no terminal: a row a line


def plain_console(*, is_terminal: bool) -> Console:
    """As wide as it is, or a row a line."""
    return Console(markup=False, emoji=False, highlight=False, width=None if is_terminal else _WIDE)


def tables(views: Sequence[TopView], frame: Frame) -> RenderableType:
    """Those of a view; of several views those that have something."""
    found = [
        (top_table, frame.views[view.name][top_table.name]) for view in views for top_table in view.top_tables
    ]
    if len(views) > 1:
        found = [each for each in found if each[1]]
    return Group(*(_table(top_table, those) for top_table, those in found))


def _table(top_table: TopTable, those: list[Row]) -> Table:
    table = Table(title=top_table.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for _, title in top_table.keys.values():
        table.add_column(title, overflow="fold")
    for column in top_table.columns:
        table.add_column(
            column.title, justify="left" if column.unit is Unit.TEXT else "right", overflow="fold"
        )
    for row in those[:_LINES]:
        table.add_row(*map(Text, cells(top_table, row)))
    if len(those) > _LINES:
        table.caption = f"and {len(those) - _LINES} more"
    elif not those:
        table.caption = "nothing yet"
    return table


def line(view: str | None, frame: Frame) -> str:
    """One JSON document on one line: the tables of a view, or all views by name."""
    head = {"view": view, "seconds": frame.seconds}
    return json.dumps(head | (frame.views[view] if view is not None else {"views": frame.views}))
