"""What each row's first figure was in the last frames, as a line of blocks. Pure.

In: the rows of each frame. Out: sparklines. Rows that are in a frame no more are forgotten.

>>> sparkline([0, 1, 2, 4], 6)
'  ▁▂▄█'
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from otelgpu.engine.presentation import TopTable
from otelgpu.render.top.rows import Row, Value

KEPT: Final = 60
"""Frames that are remembered of a row: a minute, as they usually come."""
_BLOCKS: Final = "▁▂▃▄▅▆▇█"

Identity = tuple[Value, ...]
"""The values of a row's keys."""


def identity(top_table: TopTable, row: Row) -> Identity:
    """What a row is the row of."""
    return tuple(row[name] for name, _ in top_table.keys.values())


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The last ``width`` values as high as they are beside the highest of them; a gap where one is not known."""
    latest = values[-width:] if width > 0 else ()
    highest = max((value for value in latest if value is not None), default=0.0)
    blocks = "".join(_block(value, highest) for value in latest)
    return blocks.rjust(max(width, 0))


def _block(value: float | None, highest: float) -> str:
    if value is None:
        return " "
    if value <= 0 or highest <= 0:
        return _BLOCKS[0]
    return _BLOCKS[min(round(value / highest * (len(_BLOCKS) - 1)), len(_BLOCKS) - 1)]


class History:
    """Of one table: by row, the column that the table is sorted by unless somebody wants another order."""

    def __init__(self, top_table: TopTable) -> None:
        self._top_table = top_table
        self._values: dict[Identity, deque[float | None]] = {}

    def add(self, rows: Iterable[Row]) -> None:
        """Those of one more frame."""
        kept: dict[Identity, deque[float | None]] = {}
        for row in rows:
            key, value = identity(self._top_table, row), row[self._top_table.sort]
            values = self._values.get(key) or deque(maxlen=KEPT)
            values.append(value if isinstance(value, float | int) else None)
            kept[key] = values
        self._values = kept

    def of(self, row: Row) -> list[float | None]:
        """The oldest first."""
        return list(self._values.get(identity(self._top_table, row), ()))
