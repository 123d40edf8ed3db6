"""Dictionary-coded columns and attributes from rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.model.spans import Text, attributes_of_rows, constant_text, text_of_codes


def read(column: Text) -> list[object]:
    return [column.table[code] for code in column.codes]


@given(st.lists(st.text(max_size=3) | st.lists(st.text(max_size=2), max_size=2).map(tuple)))
def test_text_reads_back_and_stores_each_value_once(values: list[object]) -> None:
    column = Text.of(values)  # type: ignore[arg-type]
    assert read(column) == values
    assert len(set(column.table)) == len(column.table)


@given(st.lists(st.integers(-5, 2**40)))
def test_codes_are_labelled_once_each(codes: list[int]) -> None:
    asked: list[int] = []

    def label(code: int) -> str:
        asked.append(code)
        return f"<{code}>"

    assert read(text_of_codes(np.array(codes, np.int64), label)) == [f"<{code}>" for code in codes]
    assert len(asked) == len(set(codes))


def test_a_constant() -> None:
    assert read(constant_text("x", 3)) == ["x", "x", "x"]


rows = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "text": st.text(max_size=3),
            "list": st.lists(st.text(max_size=2), max_size=2).map(tuple),
            "flag": st.booleans(),
            "count": st.integers(-(2**63), 2**63 - 1),
            "ratio": st.floats(allow_nan=False),
        },
    ),
    max_size=8,
)


@given(rows)
def test_attributes_are_those_of_the_rows(given_rows: list[dict[str, object]]) -> None:
    found: list[dict[str, object]] = [{} for _ in given_rows]
    for attribute in attributes_of_rows(given_rows):
        for i, row in enumerate(found):
            if attribute.present is None or attribute.present[i]:
                values = attribute.values
                row[attribute.key] = read(values)[i] if isinstance(values, Text) else values[i].item()
    assert found == given_rows
