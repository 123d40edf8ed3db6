"""Histograms of rows: the library's ``measure_rows``. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.model.distributions import Distribution
from otelgpu.model.operations import NS_PER_S, Measure, Operations, Seconds
from otelgpu.spanwriter.library import Measuring, library

_BOUNDS_AT_ONCE: Final = 8


class RowMeasure(Struct, frozen=True):
    """A measure of rows, and a histogram's bounds, ascending. ``returned``: only of rows whose return was seen."""

    value: Measure
    bounds: tuple[float, ...]
    returned: bool = False


class RowMeter:
    """Several measures of the same rows."""

    def __init__(self, measures: Sequence[RowMeasure]) -> None:
        self._measures = measures
        self._bounds = [_filled_up(measure.bounds) for measure in measures]
        self._array = Measuring * len(measures)

    def measure(self, rows: Operations) -> list[Distribution | None]:
        """What each finds; None: nothing."""
        rows = np.ascontiguousarray(rows)
        buckets = [np.zeros(len(measure.bounds) + 1, dtype=np.int64) for measure in self._measures]
        made = self._array(*map(_measuring, self._measures, self._bounds, buckets))
        found: Any = library()
        found.measure_rows(rows.ctypes.data, len(rows), made, len(made))
        return [
            _distribution(each, measure, counts)
            for each, measure, counts in zip(made, self._measures, buckets, strict=True)
        ]


def _filled_up(bounds: Sequence[float]) -> npt.NDArray[np.float64]:
    """With infinities, above which nothing is."""
    filled = np.full(-(-len(bounds) // _BOUNDS_AT_ONCE) * _BOUNDS_AT_ONCE, np.inf)
    filled[: len(bounds)] = bounds
    return filled


def _measuring(
    measure: RowMeasure, bounds: npt.NDArray[np.float64], buckets: npt.NDArray[np.int64]
) -> Measuring:
    return Measuring(
        bounds=bounds.ctypes.data,
        buckets=buckets.ctypes.data,
        least=float("inf"),
        most=float("-inf"),
        bound_count=len(bounds),
        offset=measure.value.field.place[1],
        type=0 if isinstance(measure.value, Seconds) else 1,
        returned=measure.returned,
    )


def _distribution(
    made: Measuring, measure: RowMeasure, buckets: npt.NDArray[np.int64]
) -> Distribution | None:
    if not made.count:
        return None
    exact = isinstance(measure.value, Seconds)
    return Distribution(
        count=made.count,
        total=(made.total_low + (made.total_high << 64)) / NS_PER_S if exact else made.total,
        least=made.least,
        most=made.most,
        buckets=buckets,
    )
