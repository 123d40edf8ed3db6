"""Dense codes, against the plain way."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.model.codes import combine, dense, distinct, examples, order_of, values_of


@given(st.lists(st.lists(st.integers(0, 9999), min_size=20, max_size=20), min_size=1, max_size=8))
def test_combine_reports_combinations_apart_however_large_their_product(columns: list[list[int]]) -> None:
    coded = [(np.array(column, dtype=np.intp), 10_000) for column in columns]
    layout, count = combine(coded, 20)
    pairs = {(tuple(row), int(code)) for row, code in zip(zip(*columns, strict=True), layout, strict=True)}
    assert len(pairs) == len({row for row, _ in pairs}) == len({code for _, code in pairs}) == count
    assert set(layout.tolist()) == set(range(count))


@given(st.lists(st.integers(0, 10**6), min_size=1), st.sampled_from([10**6 + 1, 2**40]))
def test_dense_keeps_order(codes: list[int], size: int) -> None:
    renumbered, count = dense(np.array(codes, dtype=np.intp), size)
    assert renumbered.tolist() == [sorted(set(codes)).index(code) for code in codes]
    assert count == len(set(codes))


INTEGERS = st.lists(st.integers(0, 50), max_size=40) | st.lists(st.integers(0, 2**63 - 1), max_size=40)


@given(INTEGERS, st.sampled_from([np.uint64, np.int64]))
def test_distinct_is_numpys_unique(values: list[int], dtype: type) -> None:
    column = np.array(values, dtype=dtype)
    found, codes = distinct(column)
    assert found.tolist() == sorted(set(values))
    assert found[codes].tolist() == values
    assert found.dtype == column.dtype


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1))
def test_distinct_takes_negative_numbers(values: list[int]) -> None:
    found, codes = distinct(np.array(values, dtype=np.int32))
    assert found[codes].tolist() == values


@given(st.lists(st.integers(-(2**15), 2**15 - 1)), st.sampled_from([np.int16, np.int32]))
def test_distinct_takes_a_range_that_the_columns_type_does_not_hold(values: list[int], dtype: type) -> None:
    column = np.array(values, dtype=dtype)
    found, codes = distinct(column)
    assert (found.tolist(), found[codes].tolist()) == (sorted(set(values)), values)
    assert found.dtype == column.dtype


@given(INTEGERS | st.lists(st.integers(-9, 9)), st.sampled_from([np.int64, np.uint64]))
def test_the_values_of_a_column_are_its_distinct_ones(values: list[int], dtype: type) -> None:
    column = np.array([abs(v) if dtype is np.uint64 else v for v in values], dtype=dtype)
    assert values_of(column) == sorted(set(column.tolist()))


@given(st.lists(st.integers(0, 299)), st.sampled_from([300, 2**16, 2**20]))
def test_the_order_of_codes_is_stable(values: list[int], size: int) -> None:
    codes = np.array(values, dtype=np.intp)
    assert order_of(codes, size).tolist() == sorted(range(len(values)), key=values.__getitem__)


@given(st.lists(st.integers(0, 9), min_size=1))
def test_there_is_an_example_of_every_code(values: list[int]) -> None:
    found, codes = distinct(np.array(values))
    rows = examples(codes, len(found))
    assert codes[rows].tolist() == list(range(len(found)))
