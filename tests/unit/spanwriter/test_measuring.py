"""The library fills histograms as numpy does, whatever rows claim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine.operation_metrics import _distribution
from otelgpu.families.gpu.cuda.signals import SIGNALS
from otelgpu.model.operations import OPERATION, Field, Measure, Operations, Seconds, Volume
from otelgpu.spanwriter.library import library
from otelgpu.spanwriter.measuring import RowMeasure, RowMeter
from tests.rig.examples import examples

SPECS = [spec for spec in SIGNALS.metrics if isinstance(spec.value, Measure)]
MOST = (1 << 64) - 1
DURATIONS = st.one_of(
    st.sampled_from([0, 1_000, 2_000, 10_000_000_000, MOST]), st.integers(0, MOST), st.integers(0, 100_000)
)
SIDES = st.one_of(st.integers(0, 17), st.sampled_from([64, 256, 1 << 20, (1 << 32) - 1]))
CALLS = st.lists(st.tuples(DURATIONS, SIDES, SIDES, SIDES, st.sampled_from([0, 1, 2])), max_size=200)


@pytest.fixture(autouse=True, scope="module")
def built() -> None:
    assert library() is not None, "make bpf builds it"


def rows_of(calls: list[tuple[int, int, int, int, int]]) -> Operations:
    rows = np.zeros(len(calls), dtype=OPERATION)
    for row, (duration_ns, x, y, z, returned) in zip(rows, calls, strict=True):
        row["duration_ns"], row["grid"], row["block"], row["returned"] = (
            duration_ns,
            (x, y, z),
            (z, x, 1),
            returned,
        )
    return rows


def as_numbers(found: Any) -> Any:
    return None if found is None else (found.count, found.least, found.most, found.buckets.tolist())


@examples(100)
@given(CALLS)
def test_the_library_measures_as_numpy_does(calls: list[tuple[int, int, int, int, int]]) -> None:
    rows = rows_of(calls)
    meter = RowMeter([RowMeasure(spec.value, spec.metric.buckets, spec.returned) for spec in SPECS])  # type: ignore[arg-type]
    expected = [_distribution(spec, rows) for spec in SPECS]
    found = meter.measure(rows)
    assert list(map(as_numbers, found)) == list(map(as_numbers, expected))
    for spec, one, other in zip(SPECS, found, expected, strict=True):
        if one is not None and other is not None:
            exact = isinstance(spec.value, Seconds)
            assert one.total == (other.total if exact else pytest.approx(other.total, rel=1e-12))


def test_times_add_up_to_the_nanosecond_and_beyond_64_bits() -> None:
    rows = rows_of([(MOST, 1, 1, 1, 1)] * 3 + [(1, 1, 1, 1, 1)])
    (found,) = RowMeter([RowMeasure(Seconds(Field("duration_ns")), ())]).measure(rows)
    assert found is not None
    assert found.total == (3 * MOST + 1) / 10**9 == Seconds(Field("duration_ns")).total(rows)


def test_a_bound_belongs_to_the_bucket_below_it() -> None:
    rows = rows_of([(0, side, 1, 1, 1) for side in (0, 1, 2, 4, 5)])
    (found,) = RowMeter([RowMeasure(Volume(Field("grid")), (1.0, 4.0))]).measure(rows)
    assert found is not None
    assert found.buckets.tolist() == [2, 2, 1]


def test_every_measure_is_of_rows_of_its_own() -> None:
    rows = rows_of([(1000, 2, 2, 2, 1)] * 3)
    whole = np.zeros(6, dtype=OPERATION)
    whole[::2] = rows  # not one after the other
    (found,) = RowMeter([RowMeasure(Volume(Field("grid")), ())]).measure(whole[::2])
    assert found is not None
    assert (found.count, found.total) == (3, 24.0)
