"""Message classes of the ``protobuf`` package from a table of their fields. Pure.

In: for each message its fields as a ``.proto`` file has them. Out: a class for each, which reads and writes as a
generated one does. So a schema of few messages needs no compiler, and works with each release of the package.

Example: ``message_types("example", {"Point": ("int64 x = 1", "repeated string name = 2")})["Point"]``. A type that is
none of the table's is the full name of a message that is imported already: ``opentelemetry.proto.….Resource``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import Default
from google.protobuf.message_factory import GetMessageClass

_SCALARS: Final = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
}


def message_types(
    name: str, messages: Mapping[str, Iterable[str]], *, imports: Iterable[str] = ()
) -> dict[str, Any]:
    """The classes, by message. ``imports``: names of the ``.proto`` files that the messages of others are in.

    ``name`` becomes a package under ``otelgpu``, so that no other library's copy of a schema is in the way. It can
    be given once. Proto3: integers of a repeated field are packed, and read either way.
    """
    package = f"otelgpu.{name}"
    file = FileDescriptorProto(
        name=f"otelgpu/{name}.proto", package=package, syntax="proto3", dependency=imports
    )
    for message, fields in messages.items():
        made = file.message_type.add(name=message)
        for text in fields:
            *repeated, kind, field, _, number = text.split()
            added = made.field.add(name=field, number=int(number))
            added.label = (
                FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
            )
            if kind in _SCALARS:
                added.type = _SCALARS[kind]
            else:
                added.type = FieldDescriptorProto.TYPE_MESSAGE
                added.type_name = f".{package}.{kind}" if kind in messages else f".{kind}"
    pool = Default()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        message: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{message}")) for message in messages
    }
