"""Reads events of OTLP/JSON lines: log records that have a name. Pure.

In: lines; those without logs are passed over unread. Out: :class:`~otelgpu.model.events.Event`. What cannot be read is
counted, and nothing is kept of a record without an event name.

Source: opentelemetry/proto/logs/v1/logs.proto; see otelgpu/otlp_json/reader.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from otelgpu.model.events import Event
from otelgpu.model.resource import resource
from otelgpu.otlp_json.messages import AnyValue, Number, Resource
from otelgpu.otlp_json.reader import Reader, Unreadable, attribute_value, attributes, decoded, time_ns

RECORDS: Final = "log_records"
_WARN: Final = 13  # the least SeverityNumber of WARN
_NO_LIST: Final = msgspec.Raw(b"[]")


class _Node(msgspec.Struct, rename="camel"):
    pass


class _Record(_Node):
    time_unix_nano: Number = 0
    severity_number: int = 0
    body: AnyValue = msgspec.field(default_factory=AnyValue)
    attributes: msgspec.Raw = _NO_LIST
    event_name: str = ""


class _ScopeLogs(_Node):
    log_records: list[msgspec.Raw] = []


class _ResourceLogs(_Node):
    resource: Resource = msgspec.field(default_factory=Resource)
    scope_logs: list[_ScopeLogs] = []


_RESOURCE_LOGS: Final = msgspec.json.Decoder(list[_ResourceLogs])
_RECORD: Final = msgspec.json.Decoder(_Record)


def read_events(lines: Iterable[bytes | None], reader: Reader) -> Iterator[Event]:
    """The events of lines; ``reader`` counts what is passed over."""
    for document in reader.documents(lines, containing=b"resourceLogs"):
        try:
            found = decoded(_RESOURCE_LOGS, document.resource_logs)
        except Unreadable as error:
            reader.skip(RECORDS, error)
            continue
        for of_resource in found:
            for raw in (record for scope in of_resource.scope_logs for record in scope.log_records):
                try:
                    record = decoded(_RECORD, raw)
                    if record.event_name:
                        yield _event(record, of_resource.resource)
                except Unreadable as error:
                    reader.skip(RECORDS, error)


def _event(record: _Record, owner: Resource) -> Event:
    return Event(
        name=record.event_name,
        time_unix_ns=time_ns(record.time_unix_nano),
        text=str(attribute_value(record.body)),
        attributes=attributes(record.attributes),
        resource=resource(attributes(owner.attributes)),
        warns=record.severity_number >= _WARN,
    )
