"""In Jaeger one goes from a request to the steps that served it, and from a step to its launches, by links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.engine_session import REQUESTS, replay
from tests.backends.jaeger import Jaeger, missing_jaeger, running_jaeger
from tests.kernel.observing import Span, read_spans, spans_of

pytestmark = pytest.mark.skipif(missing_jaeger() is not None, reason=str(missing_jaeger()))


@pytest.fixture
def jaeger(tmp_path: Path) -> Iterator[Jaeger]:
    with running_jaeger(tmp_path) as running:
        yield running


def trace(jaeger: Jaeger, trace_id: str) -> list[Span]:
    """All spans of a trace that Jaeger has."""
    found: dict[str, Any] | None = jaeger.trace(trace_id)
    assert found is not None, f"Jaeger has no trace {trace_id}"
    return list(spans_of(found))


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
    told = read_spans(tmp_path / "traces.jsonl")
    chats = [span for span in told if span["name"].startswith("chat")]
    assert len(chats) == REQUESTS
    for chat in chats:
        spans = trace(jaeger, chat["traceId"])
        request = one(spans, chat["spanId"])
        phases = {span["name"] for span in spans if span.get("parentSpanId") == chat["spanId"]}
        assert phases >= {"queue", "prefill", "decode"}
        assert len(request["links"]) == request["attributes"]["otelgpu.steps.count"]
        launches = 0
        for link in request["links"]:
            spans = trace(jaeger, link["traceId"])
            step = one(spans, link["spanId"])
            assert step["name"] == "engine.step"
            assert (chat["traceId"], chat["spanId"]) in {
                (back["traceId"], back["spanId"]) for back in step["links"]
            }
            below = launches_below(spans, step["spanId"])
            mine = [span for span in told if span["traceId"] == link["traceId"]]
            assert below == launches_below(mine, step["spanId"])
            launches += below.total()
        assert launches == request["attributes"]["otelgpu.steps.shared_launches"]
