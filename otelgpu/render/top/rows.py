"""Rates of a moment, from two readings of a session's metrics, and their order. Pure.

In: two MetricsData of one session, cumulative, and the seconds between them. Out: rows, by the families' tables
(:mod:`otelgpu.engine.presentation`), which say which labels make a row and which metric makes each of its columns. A
quantity that nobody reported is None, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from otelgpu.engine.presentation import Column, How, TopTable

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

Value = int | float | str | None


_QUANTILES: Final = {How.P50: 0.5, How.P99: 0.99}


Row = dict[str, Value]


class _Point(Struct):
    value: float = 0.0
    count: float = 0.0
    bounds: tuple[float, ...] = ()
    buckets: tuple[float, ...] = ()

    def since(self, before: _Point | None) -> _Point:
        """What came since; a series that is new began at zero."""
        if before is None or len(before.buckets) != len(self.buckets):
            return self
        return _Point(
            self.value - before.value,
            self.count - before.count,
            self.bounds,
            tuple(now - then for now, then in zip(self.buckets, before.buckets, strict=True)),
        )


_Series = tuple[str, tuple[tuple[str, str | int], ...]]  # metric, labels with those of the resource
_Points = dict[_Series, _Point]


def rows(
    top_table: TopTable, before: MetricsData, after: MetricsData, seconds: float, sort: str = ""
) -> list[Row]:
    """The rows of a table, the largest in column ``sort`` first; a row of which nothing is known is left out."""
    wanted = {metric for column in top_table.columns for metric in column.metrics}
    then = _points(before, wanted, top_table)
    series: dict[tuple[str | int, ...], _Points] = {}
    for one, point in _points(after, wanted, top_table).items():
        labels = dict(one[1])
        series.setdefault(tuple(labels.get(key, "") for key in top_table.keys), {})[one] = point
    found = []
    for key, points in series.items():
        row: Row = {
            name: (value if value != "" else None)
            for (name, _), value in zip(top_table.keys.values(), key, strict=True)
        }
        cells = {column.key: _cell(column, points, then, seconds) for column in top_table.columns}
        if any(value is not None for value in cells.values()):
            found.append(row | cells)
    return in_order(top_table, found, sort)


def in_order(
    top_table: TopTable, found: Iterable[Row], sort: str = "", *, reverse: bool = False
) -> list[Row]:
    """By column ``sort``: numbers from the largest, texts from A; ``reverse``: the other way.

    Raises KeyError where there is no such column. Of equals, in the order of their keys.
    """
    by = sort or top_table.sort
    if by not in column_keys(top_table):
        raise KeyError(by)
    rows = sorted(found, key=lambda row: [_ordered(row[name]) for name, _ in top_table.keys.values()])
    text = any(isinstance(row[by], str) for row in rows)
    rows.sort(key=lambda row: _ordered(row[by]), reverse=text == reverse)
    return rows


def column_keys(top_table: TopTable) -> list[str]:
    """By what a table can be sorted."""
    return [name for name, _ in top_table.keys.values()] + [column.key for column in top_table.columns]


def _ordered(value: Value) -> tuple[int, float, str]:
    if value is None:
        return 0, 0.0, ""
    return (2, 0.0, value) if isinstance(value, str) else (1, value, "")


def _cell(column: Column, points: _Points, before: _Points, seconds: float) -> Value:
    for metric in column.metrics:
        mine = {
            one: point for one, point in points.items() if one[0] == metric and _fits(column, dict(one[1]))
        }
        if mine:
            return _value(column, mine, before, seconds)
    return None


def _fits(column: Column, labels: dict[str, str | int]) -> bool:
    return (
        column.where.items() <= labels.items()
        and (not column.having or column.having in labels)
        and not any(labels.get(key) == value for key, value in column.without.items())
    )


def _value(column: Column, points: _Points, before: _Points, seconds: float) -> Value:
    if column.how is How.TOTAL:
        return sum(point.value for point in points.values())
    if column.how is How.LABEL:
        texts = {
            str(dict(labels).get(column.label, "")) for (_, labels), point in points.items() if point.value
        }
        return ", ".join(sorted(texts - {""})) or None
    new = {one: point.since(before.get(one)) for one, point in points.items()}
    if column.how is How.WORST:
        means = {one: point.value / point.count for one, point in new.items() if point.count > 0}
        worst = max(means, key=lambda one: means[one], default=None)
        return str(dict(worst[1]).get(column.label, "")) or None if worst is not None else None
    together = _together(new.values())
    if column.how is How.MEAN:
        if not together.buckets:
            return sum(point.value for point in points.values()) / len(points)
        return together.value / together.count if together.count > 0 else None
    if column.how in _QUANTILES:
        return _quantile(together, _QUANTILES[column.how])
    if seconds <= 0:
        return None
    grown = together.count if column.how is How.RATE and together.buckets else together.value
    return max(grown, 0.0) / seconds


def _together(points: Iterable[_Point]) -> _Point:
    """Series of one metric as one."""
    found = _Point()
    for point in points:
        found.value += point.value
        found.count += point.count
        if point.buckets and not found.buckets:
            found.bounds, found.buckets = point.bounds, point.buckets
        elif len(point.buckets) == len(found.buckets):
            found.buckets = tuple(a + b for a, b in zip(found.buckets, point.buckets, strict=True))
    return found


def _quantile(histogram: _Point, share: float) -> float | None:
    """The upper bound of the bucket in which it is; None beyond the last, where there is none."""
    total = sum(histogram.buckets)
    if total <= 0:
        return None
    seen = 0.0
    for count, bound in zip(histogram.buckets, histogram.bounds, strict=False):
        seen += count
        if seen >= share * total:
            return bound
    return None


def _points(data: MetricsData, wanted: set[str], top_table: TopTable) -> _Points:
    found: _Points = {}
    for part in data.resource_metrics:
        own = [_label(each) for each in part.resource.attributes if each.key in top_table.keys]
        for scope in part.scope_metrics:
            for metric in scope.metrics:
                if metric.name in wanted:
                    for labels, point in _of_metric(metric):
                        found[metric.name, tuple(sorted([*own, *labels]))] = point
    return found


def _of_metric(metric: Any) -> Iterable[tuple[list[tuple[str, str | int]], _Point]]:
    kind = metric.WhichOneof("data")
    for point in getattr(metric, kind).data_points if kind else ():
        labels = [_label(each) for each in point.attributes]
        if kind == "histogram":
            yield (
                labels,
                _Point(point.sum, point.count, tuple(point.explicit_bounds), tuple(point.bucket_counts)),
            )
        else:
            yield labels, _Point(float(getattr(point, point.WhichOneof("value"))))


def _label(attribute: Any) -> tuple[str, str | int]:
    value = attribute.value
    kind = value.WhichOneof("value")
    if kind == "int_value":
        return attribute.key, int(value.int_value)
    return attribute.key, str(getattr(value, kind)) if kind else ""
