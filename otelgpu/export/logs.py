"""A session's events to OTLP log records: a protobuf message, for they are few. Pure.

Source: opentelemetry/proto/logs/v1/logs.proto; an event is a log record with ``event_name``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from otelgpu import __version__
from otelgpu.engine.names import SELF_SCOPE
from otelgpu.model.events import Event
from otelgpu.model.resource import AttributeValue, Resource

if TYPE_CHECKING:
    from opentelemetry.proto.logs.v1.logs_pb2 import LogsData


def logs_data(events: Iterable[Event]) -> LogsData:
    """One ``LogsData``, which has the fields of ``ExportLogsServiceRequest``: by resource, in their order."""
    from opentelemetry.proto.logs.v1.logs_pb2 import LogsData, SeverityNumber

    data = LogsData()
    scopes: dict[Resource, Any] = {}
    for event in events:
        scope = scopes.get(event.resource)
        if scope is None:
            owner = data.resource_logs.add()
            _fill(owner.resource.attributes, event.resource.attributes)
            scope = scopes[event.resource] = owner.scope_logs.add()
            scope.scope.name, scope.scope.version = SELF_SCOPE, __version__
        record = scope.log_records.add()
        record.time_unix_nano = record.observed_time_unix_nano = event.time_unix_ns
        level = SeverityNumber.SEVERITY_NUMBER_WARN if event.warns else SeverityNumber.SEVERITY_NUMBER_INFO
        record.severity_number, record.severity_text = level, "WARN" if event.warns else "INFO"
        record.body.string_value, record.event_name = _clean(event.text), event.name
        record.trace_id, record.span_id = event.trace_id, event.span_id
        _fill(record.attributes, list(event.attributes.items()))
    return data


def _fill(attributes: Any, given: Sequence[tuple[str, AttributeValue]]) -> None:
    for key, value in given:
        made = attributes.add()
        made.key = _clean(key)
        _set(made.value, value)


def _set(made: Any, value: AttributeValue) -> None:
    if isinstance(value, bool):
        made.bool_value = value
    elif isinstance(value, int):
        made.int_value = (value + 2**63) % 2**64 - 2**63
    elif isinstance(value, float):
        made.double_value = value
    elif isinstance(value, str):
        made.string_value = _clean(value)
    else:
        made.array_value.SetInParent()
        for each in value:
            _set(made.array_value.values.add(), each)


def _clean(text: str) -> str:
    """Without what UTF-8 cannot carry."""
    return text.encode("utf-8", "replace").decode()
