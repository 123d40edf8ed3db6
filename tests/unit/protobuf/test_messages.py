"""Classes made from a table read and write what generated ones do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue, KeyValueList

from otelgpu.protobuf.messages import message_types
from tests.rig.examples import examples

_VALUE = AnyValue.DESCRIPTOR
# As KeyValueList and KeyValue have them.
TYPES = message_types(
    "test_messages",
    {
        "List": ("repeated Pair values = 1",),
        "Pair": ("bytes key = 1", f"{_VALUE.full_name} value = 2"),
        "Numbers": ("repeated int64 signed = 1", "uint64 unsigned = 2", "bool is_so = 3"),
    },
    imports=[_VALUE.file.name],
)


@given(st.dictionaries(st.text(max_size=5), st.integers(-(2**63), 2**63 - 1), max_size=5))
@examples(40)
def test_a_message_is_that_of_the_generated_class(given_values: dict[str, int]) -> None:
    pairs = [KeyValue(key=key, value=AnyValue(int_value=value)) for key, value in given_values.items()]
    data = KeyValueList(values=pairs).SerializeToString()
    read = TYPES["List"].FromString(data)
    assert {each.key.decode(): each.value.int_value for each in read.values} == given_values
    assert read.SerializeToString() == data


def test_numbers_are_of_their_type() -> None:
    numbers = TYPES["Numbers"](signed=[-1, 5], unsigned=2**64 - 1, is_so=True)
    assert TYPES["Numbers"].FromString(numbers.SerializeToString()) == numbers
    assert numbers.SerializeToString()[:2] == b"\x0a\x0b"  # packed: ten bytes and one
    with pytest.raises(ValueError, match="range"):
        TYPES["Numbers"](unsigned=-1)
