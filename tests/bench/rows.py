"""One measured thing and how it compares: what every benchmark gives, and how it is shown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A bound of DESIGN.md section 9, on the row's value or on its ratio to the baseline."""

    limit: float
    kind: Literal["at least", "at most"]
    of: Literal["value", "ratio"] = "value"

    def holds(self, row: Row) -> bool | None:
        measured = row.value if self.of == "value" else row.ratio
        if measured is None:
            return None
        return measured >= self.limit if self.kind == "at least" else measured <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``value`` is None when it was not measured, and ``note`` then says why."""

    bench: str
    name: str
    value: float | None
    unit: str
    baseline: str = ""
    baseline_value: float | None = None
    budget: Budget | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Value by baseline."""
        if self.value is None or not self.baseline_value or min(self.value, self.baseline_value) <= 0:
            return None  # a difference of two times that noise has turned negative compares with nothing
        return self.value / self.baseline_value

    @property
    def inside(self) -> bool | None:
        """Whether the budget holds; None without one, or when it was not measured."""
        return self.budget.holds(self) if self.budget is not None else None

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "inside_budget": self.inside}


def not_measured(bench: str, name: str, unit: str, why: str) -> Row:
    """A row that says why there is no number."""
    return Row(bench=bench, name=name, value=None, unit=unit, note=f"not measured: {why}")


def median(values: Iterable[float]) -> float:
    """The middle one, as a float."""
    return float(statistics.median(values))


def spread(values: Sequence[float]) -> str:
    """How far apart the rounds were: what a reader needs to trust a median."""
    return f"{number(min(values))}–{number(max(values))} in {len(values)} rounds"


def number(value: float | None) -> str:
    """Three significant digits, thousands separated."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def show(rows: Sequence[Row], console: Console) -> None:
    """The table, one section per benchmark."""
    table = Table(title="otelgpu benchmarks", title_justify="left")
    for column in ("benchmark", "value", "unit", "baseline", "", "ratio", "budget", "inside"):
        right = column in ("value", "", "ratio")
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    notes: dict[str, int] = {}
    for position, row in enumerate(rows):
        mark = f" [{notes.setdefault(row.note, len(notes) + 1)}]" if row.note else ""
        last = position + 1 == len(rows) or rows[position + 1].bench != row.bench
        table.add_row(
            f"{row.bench}: {row.name}{mark}",
            number(row.value),
            row.unit,
            row.baseline,
            number(row.baseline_value) if row.baseline else "",
            f"{number(row.ratio)}×" if row.ratio is not None else "",
            _budget(row),
            {True: "yes", False: "NO", None: ""}[row.inside],
            end_section=last,
        )
    console.print(table)
    for note, index in notes.items():
        console.print(f"[{index}] {note}", markup=False, highlight=False, soft_wrap=True)


def _budget(row: Row) -> str:
    if row.budget is None:
        return ""
    sign = {"at least": "≥", "at most": "≤"}[row.budget.kind]
    return f"{sign} {number(row.budget.limit)}" + (" × baseline" if row.budget.of == "ratio" else "")
