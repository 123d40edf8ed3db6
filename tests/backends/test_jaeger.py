"""Jaeger reports each trace as it was sent; by links one goes from a request to its steps, and on to their launches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.backends.engine_session import REQUESTS, replay
from tests.backends.jaeger import Jaeger
from tests.backends.sessions import GOLDEN, SESSIONS, send
from tests.rig.spans import Span, read_spans


@pytest.mark.parametrize("session", SESSIONS)
def test_jaeger_reports_each_trace_as_it_was_sent(jaeger: Jaeger, session: str, tmp_path: Path) -> None:
    spans = send(GOLDEN / f"{session}.capture", jaeger.destination, folder=tmp_path)
    traces = {span["traceId"] for span in spans}
    reported = {one["spanId"]: one for trace_id in traces for one in jaeger.trace(trace_id)}
    assert reported.keys() == {span["spanId"] for span in spans}
    for span in spans:
        one = reported[span["spanId"]]
        one["attributes"].pop("@jaeger@warnings", None)  # of clocks and parents
        assert {key: one.get(key) for key in span} == as_jaeger(span)
    assert jaeger.services() == sorted({span["resource"]["service.name"] for span in spans})


def as_jaeger(span: Span) -> Span:
    """It gives a nanosecond to what has no duration."""
    if span["end"] > span["start"]:
        return span
    return span | {"end": span["start"] + 1, "endTimeUnixNano": str(span["start"] + 1)}


def one(spans: list[Span], span_id: str) -> Span:
    (found,) = (span for span in spans if span["spanId"] == span_id)
    return found


def launches_below(spans: list[Span], parent: str) -> Counter[str]:
    """Launches under a span, by name."""
    return Counter(
        span["name"]
        for span in spans
        if span.get("parentSpanId") == parent
        and span["name"].startswith(("cudaLaunchKernel", "cudaGraphLaunch"))
    )


def test_from_a_request_to_its_steps_and_their_launches_by_links(
    jaeger: Jaeger, engine_capture: Path, tmp_path: Path
) -> None:
    replay(engine_capture, f"file:{tmp_path / 'traces.jsonl'}")
    replay(engine_capture, f"otlp:{jaeger.address}")
    reported = read_spans(tmp_path / "traces.jsonl")
    chats = [span for span in reported if span["name"].startswith("chat")]
    assert len(chats) == REQUESTS
    for chat in chats:
        spans = jaeger.trace(chat["traceId"])
        request = one(spans, chat["spanId"])
        phases = {span["name"] for span in spans if span.get("parentSpanId") == chat["spanId"]}
        assert phases >= {"queue", "prefill", "decode"}
        assert len(request["links"]) == request["attributes"]["otelgpu.steps.count"]
        launches = 0
        for link in request["links"]:
            spans = jaeger.trace(link["traceId"])
            step = one(spans, link["spanId"])
            assert step["name"] == "engine.step"
            assert (chat["traceId"], chat["spanId"]) in {
                (back["traceId"], back["spanId"]) for back in step["links"]
            }
            below = launches_below(spans, step["spanId"])
            mine = [span for span in reported if span["traceId"] == link["traceId"]]
            assert below == launches_below(mine, step["spanId"])
            launches += below.total()
        assert launches == request["attributes"]["otelgpu.steps.shared_launches"]
