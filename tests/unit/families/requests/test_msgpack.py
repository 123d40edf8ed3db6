"""Every form of a MessagePack value has its kind, and values cut off are none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.requests.engines import msgpack

encode = msgspec.msgpack.encode
KINDS: dict[str, list[Any]] = {
    "n": [None],
    "b": [False, True],
    "i": [0, 127, 128, 1 << 8, 1 << 16, 1 << 32, (1 << 64) - 1, -1, -32, -33, -200, -40_000, -(1 << 40)],
    "f": [0.0, float("inf")],
    "s": ["", "a" * 31, "a" * 32, "a" * 300, "a" * 70_000],
    "y": [b"", b"a" * 300, b"a" * 70_000],
    "a": [[], [1] * 15, [1] * 16, [1] * 70_000],
    "m": [{}, {str(n): n for n in range(15)}, {str(n): n for n in range(70_000)}],
    "x": [msgspec.msgpack.Ext(1, b"a" * size) for size in (1, 2, 3, 4, 8, 16, 300, 70_000)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_has_the_kind_of_its_form(kind: str) -> None:
    for value in KINDS[kind]:
        values = msgpack.elements(encode([value, 1]))
        assert values is not None
        assert msgpack.kinds(values) == kind + "i"


@pytest.mark.parametrize("number", range(4))
def test_arrays_and_strings_are_read_where_they_begin(number: int) -> None:
    text, array = KINDS["s"][number], KINDS["a"][number]
    data = b"..." + encode(text)
    assert msgpack.string_at(data, 3) == (text, len(data))
    assert msgpack.string_at(data[:-1], 3) is None
    assert msgpack.array_at(data, 3) is None
    data = b"..." + encode(array)
    assert msgpack.array_at(data, 3) == (len(array), len(data) - len(array))
    assert msgpack.string_at(data, 3) is None


@given(st.binary(max_size=40), st.integers(0, 50), st.integers(0, 70))
def test_no_bytes_make_it_raise(data: bytes, at: int, count: int) -> None:
    for read in (msgpack.array_at, msgpack.string_at):
        read(data, at)
    for values in (msgpack.elements(data), msgpack.some_elements(data, count)):
        assert values is None or len(msgpack.kinds(values)) == len(values)
