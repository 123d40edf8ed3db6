"""Any message of OTLP becomes what protobuf's own JSON mapping makes of it, but for ids."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from otelgpu.otlp_json.protobuf_messages import json_message

DEPTH = 7
SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_ENUM: st.integers(0, 5),
    FieldDescriptor.CPPTYPE_STRING: st.text(max_size=3),
}


def fill(message: Message, draw: st.DrawFn, depth: int = DEPTH) -> None:
    """Give some of its fields values, and messages that it holds likewise."""
    descriptor: Descriptor = message.DESCRIPTOR
    for field in descriptor.fields:
        if not draw(st.booleans()):
            continue
        repeated = isinstance(field.default_value, list)
        if field.cpp_type == field.CPPTYPE_MESSAGE:
            for _ in range(draw(st.integers(1, 2)) if repeated and depth else 0):
                fill(getattr(message, field.name).add(), draw, depth - 1)
            if not repeated and depth:
                getattr(message, field.name).SetInParent()
                fill(getattr(message, field.name), draw, depth - 1)
            continue
        is_bytes = field.type == field.TYPE_BYTES
        values = st.binary(max_size=16) if is_bytes else SCALARS[field.cpp_type]
        if repeated:
            getattr(message, field.name).extend(draw(st.lists(values, max_size=3)))
        else:
            setattr(message, field.name, draw(values))


def with_hex_ids(node: Any) -> Any:
    """Ids of what MessageToDict returned from base64 to hex."""
    if isinstance(node, list):
        return [with_hex_ids(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    ids = ("traceId", "spanId", "parentSpanId", "profileId")
    return {
        key: base64.b64decode(value).hex() if key in ids else with_hex_ids(value)
        for key, value in node.items()
    }


@pytest.mark.parametrize("kind", [MetricsData, ProfilesData, TracesData, LogsData])
@given(data=st.data())
def test_it_is_what_protobuf_makes_of_it(kind: type[Message], data: st.DataObject) -> None:
    message = kind()
    fill(message, data.draw)
    expected = with_hex_ids(MessageToDict(message, use_integers_for_enums=True))
    assert json_message(message) == expected
