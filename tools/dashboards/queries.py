"""PromQL that panels have in common. ``$job`` is what the reader chose, ``$__rate_interval`` Grafana's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tools.dashboards.grafana import Query

_JOB: Final = 'job=~"$job"'
_QUANTILES: Final = (0.5, 0.95, 0.99)


def select(series: str, *matchers: str) -> str:
    """Series of the chosen services."""
    return f"{series}{{{','.join((_JOB, *matchers))}}}"


def rate(series: str, *matchers: str) -> str:
    """What each of them gains in a second."""
    return f"rate({select(series, *matchers)}[$__rate_interval])"


def total(series: str, *by: str) -> Query:
    """What is counted each second, by labels."""
    return Query(f"sum by ({', '.join(by)}) ({rate(series)})", _legend(by))


def level(series: str, by: Sequence[str], *matchers: str) -> Query:
    """What stands, by labels."""
    return Query(f"sum by ({', '.join(by)}) ({select(series, *matchers)})", _legend(by))


def _legend(labels: Sequence[str]) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in labels)


def quantiles(histogram: str, *by: str) -> list[Query]:
    """Of a histogram: the median, and what one in twenty and one in a hundred exceeds."""
    grouped = f"sum by ({', '.join((*by, 'le'))}) ({rate(histogram + '_bucket')})"
    return [
        Query(f"histogram_quantile({quantile}, {grouped})", f"p{quantile * 100:.0f} {_legend(by)}".strip())
        for quantile in _QUANTILES
    ]


def mean(histogram: str, *by: str) -> Query:
    """Of a histogram: the average, by labels."""
    labels = ", ".join(by)
    sums, counts = rate(f"{histogram}_sum"), rate(f"{histogram}_count")
    return Query(f"sum by ({labels}) ({sums}) / sum by ({labels}) ({counts})", _legend(by))
