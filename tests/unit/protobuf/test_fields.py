"""Fields of messages without a schema: each is found, and what is no message is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue

from otelgpu.protobuf.fields import ProtobufError, fields, integer, messages
from tests.rig.examples import examples


def test_fields_of_every_wire_type() -> None:
    data = b"\x08\x96\x01\x11" + bytes((1, 0, 0, 0, 0, 0, 0, 2)) + b"\x1a\x02hi\x25" + bytes((3, 1, 0, 0))
    data += b"\x28" + b"\xff" * 9 + b"\x01"
    assert list(fields(data)) == [(1, 150), (2, 1 + (2 << 56)), (3, b"hi"), (4, 259), (5, (1 << 64) - 1)]


@pytest.mark.parametrize(
    "data",
    [b"\x08", b"\x0a\x05hi", b"\x0b", b"\x0c", b"\x08" + b"\xff" * 11, b"\x09\x00", b"\x0d", b"\x00\x01"],
)
def test_broken_fields_are_refused(data: bytes) -> None:
    with pytest.raises(ProtobufError):
        list(fields(data))


@given(st.text(max_size=300), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
@examples(40)
def test_what_protobuf_writes_is_found(key: str, numbers: list[int]) -> None:
    values = [AnyValue(int_value=number) for number in numbers]
    message = KeyValue(key=key, value=AnyValue(array_value=ArrayValue(values=values)))
    data = message.SerializeToString()
    assert b"".join(messages(data, 1)) == key.encode()
    (array,) = messages(next(messages(data, 2)), 5)
    found = [integer(each, 3) for each in messages(array, 1)]
    assert found == [number % 2**64 for number in numbers]


def test_a_field_of_another_wire_type_is_refused() -> None:
    with pytest.raises(ProtobufError):
        list(messages(b"\x08\x05", 1))
    with pytest.raises(ProtobufError):
        integer(b"\x0a\x02hi", 1)
    assert (list(messages(b"\x08\x05", 2)), integer(b"\x0a\x02hi", 2)) == ([], 0)


@given(st.binary(max_size=80))
@examples(100)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        size = sum(len(value) if isinstance(value, bytes) else 1 for _, value in fields(data))
    except ProtobufError:
        return
    assert size <= len(data)
