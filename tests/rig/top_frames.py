"""Frames of `otelgpu top` as tests make them up: some rows in each table of the views that there are."""

from __future__ import annotations

from otelgpu.engine.presentation import AGENT, LOSSES, TopTable, Unit
from otelgpu.engine.top_views import top_views
from otelgpu.render.top.frames import Frame, Setup, Tables
from otelgpu.render.top.rows import Row, column_keys

PIDS = (101, 102, 103)


def setup(view: str | None = None, sort: str = "") -> Setup:
    return Setup(views=tuple(top_views().values()), view=view, sort=sort)


def frame(*, scale: float = 1.0, rows: int = len(PIDS), lost: float = 0.0, only: str = "") -> Frame:
    """In row n every number is n + 1 times `scale`. `only`: the one view that has something, beside the agent's."""
    views: dict[str, Tables] = {}
    for view in top_views().values():
        has_some = only in ("", view.name) or view.name == AGENT
        views[view.name] = {
            table.name: [made(table, place, scale) for place in range(rows if has_some else 0)]
            for table in view.top_tables
        }
    views[AGENT][LOSSES] = [
        {"family": "http", "reason": "ring_full", "lost_per_s": lost, "lost": 10 * lost}
    ] * bool(lost)
    return Frame(seconds=1.0, unix_s=1_700_000_000.0, views=views)


def made(table: TopTable, place: int, scale: float) -> Row:
    row: Row = dict.fromkeys(column_keys(table))
    for name, _ in table.keys.values():
        row[name] = PIDS[0] + place if name == "pid" else f"{name}-{place}"
    for column in table.columns:
        row[column.key] = f"{column.key}-{place}" if column.unit is Unit.TEXT else (place + 1) * scale
    return row
