"""OTLP/JSON as tests give it to the viewer."""

from __future__ import annotations

import json
from typing import Any

START = 1_700_000_000_000_000_000
MS = 1_000_000


def value(plain: Any) -> dict[str, Any]:
    """An AnyValue."""
    if isinstance(plain, bool):
        return {"boolValue": plain}
    if isinstance(plain, int):
        return {"intValue": str(plain)}
    if isinstance(plain, float):
        return {"doubleValue": plain}
    if isinstance(plain, str):
        return {"stringValue": plain}
    return {"arrayValue": {"values": [value(each) for each in plain]}}


def attributes(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value(plain)} for key, plain in given.items()]


def span(
    number: int, name: str = "GET /", *, trace: int = 1, at: int = 0, ns: int = MS, **fields: Any
) -> dict[str, Any]:
    """A span: ids of numbers, times after START; ``given`` are its attributes, the rest its other fields."""
    given = fields.pop("given", {})
    parent = fields.pop("parent", None)
    return {
        "traceId": f"{trace:032x}",
        "spanId": f"{number:016x}",
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(START + at),
        "endTimeUnixNano": str(START + at + ns),
        "attributes": attributes(given),
        **({"parentSpanId": f"{parent:016x}"} if parent is not None else {}),
        **fields,
    }


def traces(*spans: dict[str, Any], scope: str = "otelgpu.http", **resource: Any) -> bytes:
    """A line."""
    of_scope = {"scope": {"name": scope}, "spans": list(spans)}
    described = {"attributes": attributes(resource or {"service.name": "llm"})}
    return json.dumps({"resourceSpans": [{"resource": described, "scopeSpans": [of_scope]}]}).encode() + b"\n"


def metrics(*given: dict[str, Any], scope: str = "otelgpu") -> bytes:
    """A line."""
    of_scope = {"scope": {"name": scope}, "metrics": list(given)}
    return json.dumps({"resourceMetrics": [{"resource": {}, "scopeMetrics": [of_scope]}]}).encode() + b"\n"
