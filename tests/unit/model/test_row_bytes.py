"""Rows moved as bytes are those that numpy moves field by field."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.model.row_bytes import copied, joined
from tests.rig.examples import examples

ROW = np.dtype(
    {"names": ["a", "b", "c"], "formats": ["<u4", ("u1", (3,)), "S5"], "offsets": [0, 2, 9], "itemsize": 17}
)
"""With fields that share bytes, and with bytes of none."""


def rows(content: bytes) -> np.ndarray:
    return np.frombuffer(content[: len(content) // ROW.itemsize * ROW.itemsize], ROW)


@examples(200)
@given(st.lists(st.binary(max_size=100).map(rows), min_size=1, max_size=4))
def test_joined_are_the_bytes_of_all_in_order(parts: list[np.ndarray]) -> None:
    found = joined(parts)
    assert found.dtype == ROW
    assert found.tobytes() == b"".join(part.tobytes() for part in parts)


def test_every_other_row_can_be_joined() -> None:
    some = np.zeros(6, dtype=[("a", "<u8"), ("b", "u1")])
    some["a"] = range(6)
    assert joined([some[::2], some[1::2]])["a"].tolist() == [0, 2, 4, 1, 3, 5]


def test_copied_rows_are_ones_own() -> None:
    before = np.frombuffer(bytearray(range(34)), ROW)
    after = copied(before)
    after["a"] = 7
    assert before.tobytes() == bytes(range(34))
    assert after.dtype == ROW and len(after) == 2


def test_of_no_rows_there_are_none() -> None:
    assert len(joined([rows(b""), rows(b"")])) == len(copied(rows(b""))) == 0


def test_rows_of_other_types_are_refused() -> None:
    with pytest.raises(ValueError):
        joined([rows(bytes(17)), np.zeros(1, "<u2")])
