"""Shared by the tables of this family: histograms of seconds, and values by series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from otelgpu.engine.metric import Instrument, Measured, Metric

NS: Final = 1e-9

Labels = tuple[tuple[str, str | int], ...]


def seconds(name: str, description: str, buckets: tuple[float, ...]) -> Metric:
    """A histogram of durations."""
    return Metric(
        name=name, unit="s", instrument=Instrument.HISTOGRAM, description=description, buckets=buckets
    )


def by_series(
    metric: Metric, reported: Iterable[tuple[int, Mapping[str, str | int], float | None]]
) -> list[Measured]:
    """Measurements of one metric from (position of the exchange, labels, value), None: nothing to measure."""
    values: dict[Labels, list[float]] = {}
    rows: dict[Labels, list[int]] = {}
    for row, labels, value in reported:
        if value is not None:
            key = tuple(labels.items())
            values.setdefault(key, []).append(value)
            rows.setdefault(key, []).append(row)
    return [
        Measured(metric=metric, labels=dict(key), values=column, rows=rows[key])
        for key, column in values.items()
    ]
