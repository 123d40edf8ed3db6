"""Which columns of a table fit beside each other, how wide, and how many lines each table of a screen gets. Pure.

Keys are always there, cut where they are long. Of the other columns those from a given one on, as many as fit whole,
and the one that rows are sorted by. What room is left goes to a trend. Nothing is cut by the edge of the screen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from rich.cells import cell_len, set_cell_size

from otelgpu.engine.presentation import TopTable, Unit

GAP: Final = 2
"""Cells between two columns."""
TITLE_LINES: Final = 2
"""Of a table: its title, and those of its columns."""
_LONGEST: Final = 48  # cells of a text, however much room there is
_SHORTEST: Final = 6  # to which a key is cut where there is little room, and not below its title
_KEYS: Final = 0.6  # of the width, at most, while other columns want some
_TREND: Final = (8, 30)  # cells, at least and at most


class Shown(Struct, frozen=True, kw_only=True):
    """A column on the screen. ``place``: in a row's cells."""

    key: str
    title: str
    place: int
    width: int
    right: bool


class Layout(Struct, frozen=True, kw_only=True):
    """What fits. ``before`` and ``behind``: columns for which there is no room; ``trend``: its cells, or 0."""

    columns: tuple[Shown, ...]
    before: int
    behind: int
    trend: int


def fitted(
    top_table: TopTable,
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    sort: str,
    first: int = 0,
    least: Mapping[str, int] | None = None,
) -> Layout:
    """``rows``: cells as :func:`otelgpu.render.top.values.cells` has them. ``first``: the column to begin with.

    ``least``: how wide columns were before, for a table in which columns come and go cannot be read.
    """
    before = least or {}
    titles = [title for _, title in top_table.keys.values()] + [each.title for each in top_table.columns]
    names = [name for name, _ in top_table.keys.values()] + [each.key for each in top_table.columns]
    texts = [True] * len(top_table.keys) + [each.unit is Unit.TEXT for each in top_table.columns]
    wanted = [
        min(
            max(
                before.get(names[place], 0),
                cell_len(titles[place]) + 2 * (names[place] == sort),
                *(cell_len(row[place]) for row in rows),
            ),
            _LONGEST,
        )
        for place in range(len(names))
    ]
    keys = len(top_table.keys)
    shortest = [max(cell_len(titles[place]) + 2 * (names[place] == sort), _SHORTEST) for place in range(keys)]
    widths = [*_cut(wanted[:keys], shortest, int(width * _KEYS) - GAP * keys), *wanted[keys:]]
    room = width - sum(widths[:keys]) - GAP * keys
    chosen = _chosen(widths[keys:], room, first, names[keys:].index(sort) if sort in names[keys:] else None)
    room -= sum(widths[keys + each] + GAP for each in chosen)
    fewest, most = _TREND
    return Layout(
        columns=tuple(
            Shown(
                key=names[place],
                title=titles[place],
                place=place,
                width=widths[place],
                right=not texts[place],
            )
            for place in (*range(keys), *(keys + each for each in chosen))
        ),
        before=sum(each not in chosen for each in range(first)),
        behind=sum(each not in chosen for each in range(first, len(top_table.columns))),
        trend=min(room - GAP, most) if room - GAP >= fewest else 0,
    )


def _cut(wanted: Sequence[int], shortest: Sequence[int], room: int) -> list[int]:
    """Widths of keys that have ``room`` together: the widest are cut first, none below ``shortest``."""
    widths = list(wanted)
    while sum(widths) > room:
        spare = [width if width > least else 0 for width, least in zip(widths, shortest, strict=True)]
        if not any(spare):
            break
        widths[spare.index(max(spare))] -= 1
    return widths


def _chosen(widths: Sequence[int], room: int, first: int, sort: int | None) -> list[int]:
    chosen = [sort] if sort is not None and widths[sort] + GAP <= room else []
    left = room - sum(widths[each] + GAP for each in chosen)
    for place in range(first, len(widths)):
        if place in chosen:
            continue
        if widths[place] + GAP > left:
            break
        chosen.append(place)
        left -= widths[place] + GAP
    return sorted(chosen)


def cell(text: str, shown: Shown) -> str:
    """A text as wide as its column; ``…`` where something is missing."""
    if cell_len(text) > shown.width:
        return set_cell_size(text, shown.width - 1) + "…"
    blank = " " * (shown.width - cell_len(text))
    return blank + text if shown.right else text + blank


def heights(wanted: Sequence[int], available: int) -> list[int]:
    """Lines of each of several tables: what it wants, or else as much as others get that want more.

    >>> heights([3, 20, 20], 23)
    [3, 10, 10]
    """
    given = [0] * len(wanted)
    left = available
    while left > 0 and (hungry := [each for each in range(len(wanted)) if given[each] < wanted[each]]):
        share = max(left // len(hungry), 1)
        for each in hungry[:left]:
            more = min(share, wanted[each] - given[each])
            given[each] += more
            left -= more
    return given
