"""A value as people read it, in a cell, and whether it is to be seen at once. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from otelgpu.engine.presentation import Column, TopTable, Unit
from otelgpu.model.quantities import duration, size
from otelgpu.model.text import printable
from otelgpu.render.top.rows import Row, Value

NONE: Final = "-"
"""What nobody reported."""


def written(value: Value, unit: Unit) -> str:
    """A value as people read it; ``-`` where nobody reported one."""
    if value is None or isinstance(value, str):
        return value or NONE
    match unit:
        case Unit.BYTES:
            return size(value)
        case Unit.SECONDS:
            return duration(value * 1e9)
        case Unit.SHARE:
            return f"{100 * value:.0f} %"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def cells(top_table: TopTable, row: Row) -> list[str]:
    """A row's texts: of its keys, then of its columns. Nothing in one of them steers a terminal."""
    keys = [NONE if row[name] is None else f"{row[name]}" for name, _ in top_table.keys.values()]
    values = [written(row[column.key], column.unit) for column in top_table.columns]
    return [printable(cell) for cell in (*keys, *values)]


def is_alarming(column: Column | None, value: Value) -> bool:
    """Whether something went wrong."""
    return column is not None and column.alarming and isinstance(value, float | int) and value > 0


def matching(top_table: TopTable, rows: Iterable[Row], wanted: str) -> list[Row]:
    """The rows in which each word of ``wanted`` is, in some key or text; case does not matter."""
    words = wanted.casefold().split()
    if not words:
        return list(rows)
    texts = [name for name, _ in top_table.keys.values()]
    texts += [column.key for column in top_table.columns if column.unit is Unit.TEXT]
    return [row for row in rows if _has_all(words, [f"{row[text]}".casefold() for text in texts])]


def _has_all(words: Sequence[str], texts: Sequence[str]) -> bool:
    return all(any(word in text for text in texts) for word in words)
