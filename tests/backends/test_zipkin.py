"""Zipkin shows each trace as it was sent through a Collector: whose child a span is, when it was, its name and tags."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.backends.sessions import GOLDEN, SESSIONS, send
from tests.backends.zipkin import Zipkin
from tests.rig.browser import dump_dom, missing_browser
from tests.rig.spans import Span


@pytest.mark.parametrize("session", SESSIONS)
def test_zipkin_reports_each_trace_as_it_was_sent(zipkin: Zipkin, session: str, tmp_path: Path) -> None:
    traces: dict[str, list[Span]] = defaultdict(list)
    for span in send(GOLDEN / f"{session}.capture", zipkin.destination, folder=tmp_path):
        traces[span["traceId"]].append(span)
    assert traces
    for trace_id, spans in traces.items():
        reported = {one["id"]: one for one in zipkin.trace(trace_id) or ()}
        assert reported.keys() == {span["spanId"] for span in spans}
        for span in spans:
            one = reported[span["spanId"]]
            assert facts(one) == as_zipkin(span)
            assert {key: one["tags"][key] for key in span["attributes"]} == tags(one, span["attributes"])


def facts(one: dict[str, Any]) -> dict[str, Any]:
    """What Zipkin keeps outside of tags."""
    return {
        "parent": one.get("parentId"),
        "kind": one.get("kind"),
        "name": one["name"],
        "start": one["timestamp"],
        "duration": one.get("duration"),
        "service": one["localEndpoint"]["serviceName"],
    }


def as_zipkin(span: Span) -> dict[str, Any]:
    """The same of a span as it was sent: names in small letters, microseconds, and no duration of none."""
    return {
        "parent": span.get("parentSpanId"),
        "kind": {2: "SERVER", 3: "CLIENT"}.get(span["kind"]),
        "name": span["name"].lower(),
        "start": span["start"] // 1000,
        "duration": (span["end"] - span["start"]) // 1000 or None,
        "service": span["resource"]["service.name"],
    }


def tags(one: dict[str, Any], attributes: dict[str, Any]) -> dict[str, str]:
    """Attributes as text; a number as Zipkin wrote it, when that is the same number."""
    found = {}
    for key, value in attributes.items():
        text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        if isinstance(value, float) and float(one["tags"][key]) == value:
            text = one["tags"][key]
        found[key] = text
    return found


@pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))
def test_zipkin_s_page_shows_a_request_with_its_operations(zipkin: Zipkin, tmp_path: Path) -> None:
    spans = send(GOLDEN / "llm_session.capture", zipkin.destination, folder=tmp_path)
    request = next(span for span in spans if span["name"] == "chat tiny")
    page = dump_dom(zipkin.page(request["traceId"]), budget_ms=20_000)
    names = {span["name"].lower() for span in spans if span["traceId"] == request["traceId"]}
    assert "cudalaunchkernel prefill" in names
    assert {name for name in names if f"llm: {name}" in re.sub("<[^>]*>", "", page)} == names
