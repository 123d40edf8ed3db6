"""What somebody has chosen to see: the order and the first column of each table, a filter. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from otelgpu.engine.presentation import TopTable
from otelgpu.render.top.rows import Row, column_keys, in_order
from otelgpu.render.top.values import matching


class Order(Struct):
    """Of one table. ``first``: the column to begin with, behind the keys."""

    sort: str
    reverse: bool = False
    first: int = 0


class Choices(Struct):
    """All of them. ``sort``: what was asked for at the start, for the tables that have such a column."""

    sort: str = ""
    filter: str = ""
    _orders: dict[tuple[str, str], Order] = field(default_factory=dict)

    def order(self, view: str, top_table: TopTable) -> Order:
        """The one of a table."""
        sort = self.sort if self.sort in column_keys(top_table) else top_table.sort
        return self._orders.setdefault((view, top_table.name), Order(sort))

    def sort_by(self, view: str, top_table: TopTable, key: str) -> None:
        """Another column; the same one again: the other way round."""
        order = self.order(view, top_table)
        order.reverse = not order.reverse if order.sort == key else False
        order.sort = key

    def move_sort(self, view: str, top_table: TopTable, step: int) -> None:
        """The next column, or the one before."""
        keys, order = column_keys(top_table), self.order(view, top_table)
        order.sort, order.reverse = keys[(keys.index(order.sort) + step) % len(keys)], False

    def scroll(self, view: str, top_table: TopTable, step: int) -> None:
        """Begin with another column."""
        order = self.order(view, top_table)
        order.first = min(max(order.first + step, 0), len(top_table.columns) - 1)

    def rows(self, view: str, top_table: TopTable, found: Sequence[Row], pid: int | None = None) -> list[Row]:
        """As they are to be listed. ``pid``: only those of a process."""
        order = self.order(view, top_table)
        if pid is not None:
            found = [row for row in found if row.get("pid") == pid]
        return in_order(top_table, matching(top_table, found, self.filter), order.sort, reverse=order.reverse)
