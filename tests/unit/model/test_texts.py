"""Dictionary-coded columns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.model.spans import Text, constant_text
from tests.rig.examples import examples

VALUES = st.lists(st.sampled_from(("", "a", "b", "http", ("a", "b"), ("a",))), max_size=6)


@examples(100)
@given(VALUES, st.integers(0, 40))
def test_a_text_says_of_each_row_what_it_was_made_of(values: list[str | tuple[str, ...]], times: int) -> None:
    values = values + values[-1:] * times
    text = Text.of(values)
    assert [text.table[code] for code in text.codes.tolist()] == values
    assert list(text.table) == list(dict.fromkeys(values))


def test_texts_that_are_the_same_in_every_row_share_one_array_of_codes() -> None:
    a, b, c = Text.of(["http"] * 7), Text.of(["1.1"] * 7), constant_text("cuda", 7)
    assert a.codes is b.codes is c.codes


def test_the_array_that_texts_share_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Text.of(["http"] * 3).codes[1] = 1
