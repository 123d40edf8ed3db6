"""Protobuf messages of OTLP as the objects of its JSON. Pure.

In: any message of opentelemetry-proto, which has neither maps nor floats. Out: what protobuf's ``MessageToDict`` makes
of it with enums as numbers, but for ids, which are hex. What is done with a field is decided once for each type of
message: this writes all series of a process at once, some 10,000 points of 10 messages each, while others wait.

Source: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding and
https://protobuf.dev/programming-guides/json/.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

Json = dict[str, Any]

_IDS: Final = frozenset({"trace_id", "span_id", "parent_span_id", "profile_id"})


def json_message(message: Message) -> Json:
    """A message; of its fields those that are set."""
    fields = _fields(message.DESCRIPTOR)
    found = {}
    for field, value in message.ListFields():
        key, convert = fields[field.number]
        found[key] = convert(value)
    return found


def json_double(value: float) -> float | str:
    """A number, or what stands for one that JSON lacks."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _json_doubles(values: Iterable[float]) -> Sequence[float | str]:
    numbers = list(values)
    return numbers if math.isfinite(sum(numbers)) else list(map(json_double, numbers))


@cache
def _fields(descriptor: Descriptor) -> dict[int, tuple[str, Callable[[Any], Any]]]:
    """Of each field, by number, its key and what makes its value."""
    return {field.number: (field.json_name, _conversion(field)) for field in descriptor.fields}


def _conversion(field: FieldDescriptor) -> Callable[[Any], Any]:
    convert = _conversion_of_one(field)
    if not isinstance(
        field.default_value, list
    ):  # the only way in which protobuf 5 and 7 say that it is not repeated
        return convert
    if convert is json_double:
        return _json_doubles
    return lambda values: list(map(convert, values))


def _conversion_of_one(field: FieldDescriptor) -> Callable[[Any], Any]:
    match field.cpp_type:
        case field.CPPTYPE_MESSAGE:
            return json_message
        case field.CPPTYPE_INT64 | field.CPPTYPE_UINT64:
            return str
        case field.CPPTYPE_DOUBLE:
            return json_double
        case field.CPPTYPE_STRING if field.type == field.TYPE_BYTES:
            return bytes.hex if field.name in _IDS else _base64
        case _:  # enums as numbers
            return _as_it_is


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _as_it_is(value: Any) -> Any:
    return value
