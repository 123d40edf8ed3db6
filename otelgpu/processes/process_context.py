"""What a process says of itself to whoever looks at it from outside: OpenTelemetry OTEP 4719, "Process Context".

In: a process, and where it has published, if that is known. Out: :class:`ProcessContext`: the attributes of the
resource that its own telemetry has, and how its threads publish. What is in the memory is the process' own
affair: it may be anything, change while it is read, or be gone; nothing here raises for it.

The header, 32 bytes in the host's order: signature ``OTEL_CTX``, version (u32), payload bytes (u32), time of
publication (u64, CLOCK_BOOTTIME ns; 0 while it is changed), address of the payload (u64). The payload is the
protobuf message ``opentelemetry.proto.processcontext.v1development.ProcessContext``: ``Resource resource = 1``
and ``repeated KeyValue attributes = 2``.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from otelgpu.model.losses import Reasons
from otelgpu.model.resource import AttributeValue
from otelgpu.processes.memory import OpenMemory, ProcessMemory, session_memory

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

MAX_PAYLOAD_BYTES: Final = 1 << 16
MAX_ATTRIBUTES: Final = 256
MAX_TEXT: Final = 4096
READ_AGAIN_S: Final = 1.0
SCHEMAS: Final = frozenset(("tlsdesc_v1_dev", "tls_v1"))
"""``threadlocal.schema_version`` of publishers whose threads' contexts are read: see thread_context.py."""

_HEADER: Final = struct.Struct("<8sIIQQ")
_SIGNATURE: Final = b"OTEL_CTX"
_VERSION: Final = 2
_ATTEMPTS: Final = 3  # a publisher needs microseconds to change what is there
_MAX_MAPS_BYTES: Final = 64 << 20
_NAMED: Final = re.compile(
    rb"^([0-9a-f]+)-[0-9a-f]+ [^\n]{0,128}? (?:\[anon_shmem:OTEL_CTX\]|\[anon:OTEL_CTX\]|/memfd:OTEL_CTX)",
    re.MULTILINE,
)
_MAX_NAMED: Final = 8

REASONS: Final = Reasons(
    "contexts",
    {
        "process_context_unreadable": "a process context lies in memory that cannot be read",
        "process_context_changing": "a process changed its process context each time it was read",
        "process_context_foreign": "a process context is of another version, or larger than 64 KiB",
        "process_context_damaged": "a process context is no message of OTEP 4719",
        "process_context_schema_unknown": "a process' threads publish contexts in a way that is not read",
    },
)
"""Why what a process published is not known: its memory could not be read; it changed each time; it is of another
version or too large; it is no protobuf message; its threads publish in a way that is not read."""


class ProcessContext(Struct, frozen=True, kw_only=True):
    """``resource``: the attributes of the process' own resource. The rest is about its threads' contexts."""

    resource: Mapping[str, AttributeValue]
    schema_version: str = ""
    attribute_keys: tuple[str, ...] = ()  # threadlocal.attribute_key_map: by the number in a thread's record


class PayloadError(Exception):
    """The bytes are no ProcessContext."""


def parse_process_context(payload: bytes) -> ProcessContext:
    """Read a ProcessContext message. Raises :class:`PayloadError`.

    Of what OpenTelemetry allows as an attribute, bytes, maps, arrays of anything but strings, and numbers that
    are not finite are passed over.
    """
    from google.protobuf.message import DecodeError

    try:
        read = _message_type().FromString(payload)
    except DecodeError as error:
        raise PayloadError(str(error)) from error
    if len(read.attributes) > MAX_ATTRIBUTES:
        raise PayloadError(f"more than {MAX_ATTRIBUTES} attributes")
    resource, attributes = _attributes(read.resource.attributes), _attributes(read.attributes)
    version = attributes.get("threadlocal.schema_version", "")
    keys = attributes.get("threadlocal.attribute_key_map", ())
    return ProcessContext(
        resource=resource,
        schema_version=version if isinstance(version, str) else "",
        attribute_keys=keys if isinstance(keys, tuple) else (),
    )


@cache
def _message_type() -> Any:
    # Most sessions observe nobody who publishes, and these take a while to import.
    from opentelemetry.proto.resource.v1 import resource_pb2

    from otelgpu.protobuf.messages import message_types

    common = "opentelemetry.proto.common.v1.KeyValue"
    resource = resource_pb2.Resource.DESCRIPTOR
    table = {"ProcessContext": (f"{resource.full_name} resource = 1", f"repeated {common} attributes = 2")}
    files = (resource.file.name, resource.file.dependencies[0].name)
    return message_types("processcontext", table, imports=files)["ProcessContext"]


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {}
    for pair in pairs:
        value = _value(pair.value)
        if value is not None and pair.key and len(found) < MAX_ATTRIBUTES:
            found[pair.key[:MAX_TEXT]] = value
    return found


def _value(value: AnyValue) -> AttributeValue | None:
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return value.string_value[:MAX_TEXT]
    if kind == "bool_value":
        return value.bool_value
    if kind == "int_value":
        return value.int_value
    if kind == "double_value":
        return value.double_value if math.isfinite(value.double_value) else None
    if kind == "array_value":
        items = value.array_value.values[:MAX_ATTRIBUTES]
        if all(item.WhichOneof("value") == "string_value" for item in items):
            return tuple(item.string_value[:MAX_TEXT] for item in items)
    return None


class _Published(Struct):
    address: int
    read_s: float
    context: ProcessContext | None


class ProcessContexts:
    """What the processes in scope have published, as last read; at most once in READ_AGAIN_S of each."""

    def __init__(self, *, proc: Path = Path("/proc"), memory: ProcessMemory | None = None) -> None:
        self.counters: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._proc = proc
        self._memory = memory or session_memory()
        self._published: dict[int, _Published] = {}
        self._stale: set[int] = set()

    def of(self, tgid: int) -> ProcessContext | None:
        """What the process said last; None when it never did."""
        found = self._published.get(tgid)
        return found.context if found else None

    def look_at(self, tgid: int, now_s: float) -> bool:
        """Look for it in the process' mappings; whether there is something new."""
        return any(self.published(tgid, address, now_s) for address in self._named(tgid))

    def published(self, tgid: int, address: int, now_s: float) -> bool:
        """The process has published, or published anew, at ``address``; whether there is something new."""
        known = self._published.get(tgid)
        if known is not None and now_s - known.read_s < READ_AGAIN_S:
            known.address = address
            self._stale.add(tgid)
            return False
        self._stale.discard(tgid)
        context = self._read(tgid, address)
        self._published[tgid] = _Published(address, now_s, context or (known.context if known else None))
        if context is None or (known is not None and known.context == context):
            return False
        if context.schema_version and context.schema_version not in SCHEMAS:
            self.counters["process_context_schema_unknown"] += 1
        return True

    def retry(self, now_s: float) -> list[int]:
        """Read those again that were published again meanwhile; the processes that say something new."""
        due = [tgid for tgid in self._stale if now_s - self._published[tgid].read_s >= READ_AGAIN_S]
        return [tgid for tgid in due if self.published(tgid, self._published[tgid].address, now_s)]

    def forget(self, tgid: int) -> None:
        """It has ended, or is another program."""
        self._published.pop(tgid, None)
        self._stale.discard(tgid)

    def _named(self, tgid: int) -> list[int]:
        """Where memory lies that has the name of a process context."""
        try:
            with open(f"{self._proc}/{tgid}/maps", "rb") as file:
                text = file.read(_MAX_MAPS_BYTES)
        except OSError:
            return []
        if _SIGNATURE not in text:
            return []
        return [int(found[1], 16) for found in list(_NAMED.finditer(text))[:_MAX_NAMED]]

    def _read(self, tgid: int, address: int) -> ProcessContext | None:
        """A whole publication, or None with the reason counted."""
        reason = "process_context_changing"
        try:
            with self._memory.open(tgid, proc=self._proc) as memory:
                for _ in range(_ATTEMPTS):
                    (start,) = _bytes_at(memory, (address, _HEADER.size))
                    header = _HEADER.unpack(start)
                    signature, version, size, published_ns, payload_at = header
                    if signature != _SIGNATURE or version != _VERSION or size > MAX_PAYLOAD_BYTES:
                        reason = "process_context_foreign"
                        break
                    if not published_ns:
                        continue
                    payload, still = _bytes_at(memory, (payload_at, size), (address, _HEADER.size))
                    if still == start:
                        return parse_process_context(payload)
        except OSError:
            reason = "process_context_unreadable"
        except PayloadError:
            reason = "process_context_damaged"
        self.counters[reason] += 1
        return None


def _bytes_at(memory: OpenMemory, *ranges: tuple[int, int]) -> tuple[bytes, ...]:
    """In this order. Raises OSError, also when there is less."""
    found = memory.read(*ranges)
    for data, (_, size) in zip(found, ranges, strict=True):
        if len(data) != size:
            raise OSError(f"{len(data)} of {size} bytes")
    return found
