"""The process context (OTEP 4719): which resource this process's telemetry has, as a protobuf message.

The environment or a TracerProvider comes in; the bytes of ``opentelemetry.proto.processcontext.v1development``
``ProcessContext`` go to the native part. At start the environment is what is known; the provider's resource takes
its place at the first active span. The encoder is this small because the observed process shall not import one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from struct import pack
from urllib.parse import unquote

from . import _publisher

# OTEP 4947: how to read the thread contexts of this process; no attributes besides the ids.
SCHEMA_VERSION = "tlsdesc_v1_dev"
MAX_PAYLOAD = 64 * 1024
"""What opentelemetry-ebpf-profiler reads (processcontext.go); attributes that would not fit are dropped and counted."""

_published = b""


def publish_environment() -> None:
    """Publish what OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME say."""
    _publish(environment_resource(os.environ))


def publish_provider(span: object) -> bool:
    """Publish the resource of ``span``, else of the global TracerProvider; False when neither has one yet."""
    resource = getattr(span, "resource", None)
    if resource is None:
        # Not get_tracer_provider(): that would choose a provider for the service.
        provider = getattr(sys.modules.get("opentelemetry.trace"), "_TRACER_PROVIDER", None)
        resource = getattr(provider, "resource", None)
    attributes = getattr(resource, "attributes", None)
    if not isinstance(attributes, Mapping):
        return False
    _publish(attributes)
    return True


def publish_again() -> None:
    """In a child of fork(): publish what the parent published."""
    _publisher.publish_process(_published)


def _publish(attributes: Mapping[str, object]) -> None:
    global _published
    _published = encode(attributes)
    _publisher.publish_process(_published)


def environment_resource(environment: Mapping[str, str]) -> dict[str, object]:
    """The attributes of the two variables, as the SDK's ``OTELResourceDetector`` reads them.

    ``OTEL_RESOURCE_ATTRIBUTES="a=1,b=x%20y"`` → ``{"a": "1", "b": "x y"}``
    """
    attributes: dict[str, object] = {}
    for item in environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        key, separator, value = item.partition("=")
        if separator:
            attributes[key.strip()] = unquote(value.strip())
    if service_name := environment.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = service_name
    return attributes


def encode(attributes: Mapping[str, object]) -> bytes:
    """A ProcessContext: ``resource`` (1) and ``attributes`` (2), at most MAX_PAYLOAD bytes."""
    threads = _field(2, _key_value("threadlocal.schema_version", SCHEMA_VERSION))
    threads += _field(2, _key_value("threadlocal.attribute_key_map", ()))
    room = MAX_PAYLOAD - len(threads) - 32  # tags, lengths, and the count of what was dropped
    kept, size, dropped = [], 0, 0
    for key, value in attributes.items():
        encoded = _field(1, _key_value(key, value))
        if size + len(encoded) <= room:
            kept.append(encoded)
            size += len(encoded)
        else:
            dropped += 1
    resource = b"".join(kept) + (b"\x10" + _varint(dropped) if dropped else b"")
    return _field(1, resource) + threads


def _key_value(key: str, value: object) -> bytes:
    return _field(1, str(key).encode("utf-8", "replace")) + _field(2, _any_value(value))


def _any_value(value: object) -> bytes:
    """An AnyValue (opentelemetry/proto/common/v1/common.proto); what it has no type for goes as a string."""
    if isinstance(value, bool):
        return b"\x10" + _varint(value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return b"\x18" + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(value, float):
        return b"\x21" + pack("<d", value)
    if isinstance(value, bytes):
        return _field(7, value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _field(5, b"".join(_field(1, _any_value(each)) for each in value))
    return _field(1, str(value).encode("utf-8", "replace"))


def _field(number: int, data: bytes) -> bytes:
    """A length-delimited field: https://protobuf.dev/programming-guides/encoding/."""
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
