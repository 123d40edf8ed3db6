"""Spans of OTLP JSON, from a file or from a backend's API, as plain mappings: attributes by key, times as integers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Span = dict[str, Any]


def read_spans(path: Path) -> list[Span]:
    """The spans of an OTLP JSON lines file, attributes and the resource's attributes as plain mappings."""
    return list(spans_of_lines(path.read_text()))


def spans_of_lines(text: str) -> Iterator[Span]:
    """The same of such a file's text."""
    for line in text.splitlines():
        yield from spans_of(json.loads(line))


def spans_of(traces: Mapping[str, Any]) -> Iterator[Span]:
    """The same of one message of OTLP JSON."""
    for resource in traces.get("resourceSpans", ()):
        described = attributes_of(resource["resource"])
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                yield span | {
                    "attributes": attributes_of(span),
                    "resource": described,
                    "scope": scope["scope"]["name"],
                    "start": int(span["startTimeUnixNano"]),
                    "end": int(span["endTimeUnixNano"]),
                }


def attributes_of(holder: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a span, event, link, data point or resource."""
    return {item["key"]: _value(item["value"]) for item in holder.get("attributes", ())}


def _value(value: Mapping[str, Any]) -> Any:
    kind, content = next(iter(value.items()))
    if kind == "arrayValue":
        return tuple(_value(item) for item in content.get("values", ()))
    return int(content) if kind == "intValue" else content


def cuda_calls(spans: Iterable[Span]) -> dict[str, int]:
    """CUDA calls by function; a folded span stands for several."""
    calls: Counter[str] = Counter()
    for span in spans:
        name = span["name"].split()[0]
        if name.startswith("cuda"):
            calls[name] += span["attributes"].get("otelgpu.count", 1)
    return dict(calls)


def ns_of(seconds: float) -> int:
    """Nanoseconds of an exported duration: exactly those that were measured, up to 26 days."""
    return round(seconds * 1e9)
