"""What stands out in profiles, as tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from otelgpu.model.quantities import duration, size
from otelgpu.model.text import printable
from otelgpu.render.profile_totals import KindTotals

PLACES: Final = 8
"""Of each kind so many are shown."""


def written(value: int, unit: str) -> str:
    """A value as people read it."""
    match unit:
        case "nanoseconds" | "ns":
            return duration(float(value))
        case "bytes" | "By":
            return size(value)
    return f"{value:,}" if unit in ("count", "", "1") else f"{value:,} {unit}"


def write_totals(kinds: Sequence[KindTotals], console: Console) -> None:
    """A table of each kind: the places that most of it is at, by innermost frame, Python line and state."""
    if not kinds:
        console.print("no samples: nothing ran, or nothing of the wanted kinds happened")
    for kind in kinds:
        console.print(_table(kind))
        if (left := len(kind.places) - PLACES) > 0:
            console.print(f"and {left} more places: -o FILE.html shows whole stacks", soft_wrap=True)
        console.print()


def _table(kind: KindTotals) -> Table:
    title = f"{kind.type}: {written(kind.value, kind.unit)} in {kind.samples:,} samples"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    has_states = any(place.state for place in kind.places)
    if has_states:
        table.add_column("state", no_wrap=True)
    table.add_column("innermost frame", overflow="fold")
    table.add_column("Python line", overflow="fold")
    for place in kind.places[:PLACES]:
        share = f"{100 * place.value / kind.value:.1f} %" if kind.value else "-"
        cells = (
            written(place.value, kind.unit),
            share,
            *([place.state or "-"] if has_states else []),
            place.leaf,
            "" if place.line == place.leaf else place.line,
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table
