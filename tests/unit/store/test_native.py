"""ClickHouse's format ``Native``, as it may come over a network."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.store.clickhouse.native import Malformed, decoded

# SELECT number AS n, toString(n) AS t, toLowCardinality(t) AS c, n / 4 AS x FROM numbers(2)
ANSWER = (
    b"\x04\x02\x01n\x06UInt64" + bytes([0] * 8 + [1] + [0] * 7) + b"\x01t\x06String\x010\x011"
    b"\x01c\x16LowCardinality(String)" + b"".join(n.to_bytes(8, "little") for n in (1, 0x600, 3))
    + b"\x00\x010\x011" + (2).to_bytes(8, "little") + b"\x01\x02"
    b"\x01x\x07Float64" + bytes(8) + bytes([0] * 6) + b"\xd0\x3f"
)  # fmt: skip


def test_columns_are_read_by_their_types() -> None:
    found = {name: values.tolist() for name, values in decoded(ANSWER).items()}
    assert found == {"n": [0, 1], "t": ["0", "1"], "c": ["0", "1"], "x": [0.0, 0.25]}


def test_blocks_are_one_answer() -> None:
    assert decoded(ANSWER + ANSWER)["x"].tolist() == [0.0, 0.25, 0.0, 0.25]
    assert decoded(b"") == {}


@pytest.mark.parametrize("end", range(1, len(ANSWER)))
def test_an_answer_that_was_cut_is_no_answer(end: int) -> None:
    with pytest.raises(Malformed):
        decoded(ANSWER[:end])


@given(st.binary(max_size=64), st.integers(0, len(ANSWER)))
def test_whatever_comes_is_read_or_refused(noise: bytes, at: int) -> None:
    for content in (noise, ANSWER[:at] + noise + ANSWER[at + len(noise) :]):
        try:
            decoded(content)
        except Malformed:
            pass


def test_a_length_that_is_claimed_takes_no_memory() -> None:
    for claim in (
        b"\x01\xff\xff\xff\xff\xff\xff\x7f\x01n\x06String",
        b"\x01\x01\x01n\x06String\xff\xff\xff\xff\x7f",
    ):
        with pytest.raises(Malformed):
            decoded(claim)
    with pytest.raises(Malformed, match="which is not read here"):
        decoded(b"\x01\x01\x01n\x04UUID" + bytes(16))
