"""An event of a session: something that happened once and is to be read as it is, not summed. Low in rate."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from otelgpu.model.resource import AttributeValue, Resource


class Event(Struct, frozen=True, kw_only=True):
    """One OpenTelemetry event: a log record that has a name.

    ``text``: one sentence or more for a person. ``warns``: it is of severity WARN, else INFO. ``trace_id`` and
    ``span_id``: of the span that the thread worked in; empty where there is none.
    """

    name: str
    time_unix_ns: int
    text: str
    attributes: Mapping[str, AttributeValue]
    resource: Resource
    warns: bool = True
    trace_id: bytes = b""
    span_id: bytes = b""
