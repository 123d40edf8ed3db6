"""The comparison of tests/servers sees what is not so: each thing is changed alone in spans that are right."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from tests.servers.compare import SERVICE, Answers, Observed, compare, faults, figures
from tests.servers.load import Kind, Outcome

PORT, CLIENT_PORT = 8000, 40_000
CHAT = "/v1/chat/completions"
Spans = list[dict[str, Any]]


def outcome(number: int, kind: Kind, path: str, status: int, **facts: Any) -> Outcome:
    said = {"traceparent": "", "seconds": 0.02, "ttft_s": None, "tokens": 0, "usage": False}
    return Outcome(
        number=number, kind=kind, path=path, port=CLIENT_PORT, sent_ns=number, status=status, **said | facts
    )


STREAM = outcome(1, "stream", CHAT, 200, traceparent=f"00-{1:032x}-{1:016x}-01", ttft_s=0.012, tokens=6)
FAILED = outcome(2, "fail", "/fail/2", 500)
OUTCOMES = [STREAM, FAILED]
CALLS = [(1, 0), (1, 1), (2, 0)]


def right() -> Spans:
    """The spans of both requests and of their calls."""
    served = {"server.port": PORT, "client.port": CLIENT_PORT}
    generation = {
        **{"gen_ai.response.id": "chatcmpl-1", "gen_ai.usage.output_tokens": 6},
        **{"otelgpu.gen_ai.usage.estimated": True, "gen_ai.latency.time_to_first_token": 0.011},
    }
    stream = {"url.path": CHAT, "http.route": CHAT, "http.response.status_code": 200, **served, **generation}
    failed = {"url.path": "/fail/2", "http.route": "/fail/*", "http.response.status_code": 500, **served}
    spans = [
        span("a", 2, stream, start=1, traceId=f"{1:032x}", parentSpanId=f"{1:016x}"),
        span("b", 2, failed, start=2, status={"code": 2}),
        span("phase", 1, {}, start=1, parentSpanId="a"),
    ]
    parents = {(1, 0): "a", (1, 1): "phase", (2, 0): "b"}
    return spans + [
        span(f"call{number}{which}", 3, {"url.path": f"/call/{number}/{which}"}, parentSpanId=parent)
        for (number, which), parent in parents.items()
    ]


def span(name: str, kind: int, attributes: dict[str, Any], **facts: Any) -> dict[str, Any]:
    return {
        "spanId": name,
        "kind": kind,
        "traceId": "f",
        "start": 0,
        "end": 9,
        "attributes": attributes,
    } | facts


def found(spans: Spans, answers: Answers = SERVICE) -> list[str]:
    observed = Observed(outcomes=OUTCOMES, ttft_s={1: 0.010}, calls=CALLS, spans=spans, answers=answers)
    return [fault.partition(":")[0] for fault in faults(compare(observed, PORT))]


def test_nothing_is_wrong_with_what_is_right() -> None:
    observed = Observed(outcomes=OUTCOMES, ttft_s={1: 0.010}, calls=CALLS, spans=right())
    result = compare(observed, PORT)
    assert faults(result) == []
    assert result.links == {"right": 3}
    assert result.ttft_after_server_ms == pytest.approx([1.0])
    assert result.ttft_before_client_ms == pytest.approx([1.0])


def test_what_was_found_is_kept_as_json() -> None:
    observed = Observed(outcomes=OUTCOMES, ttft_s={1: 0.010}, calls=CALLS, spans=right()[:-1])
    kept = json.loads(json.dumps(figures(compare(observed, PORT))))
    assert kept["links"] == {"right": 2}
    assert kept["calls_missing"] == 1


def change(which: int, **attributes: Any) -> Callable[[Spans], object]:
    names = {key.replace("__", "."): value for key, value in attributes.items()}
    return lambda spans: spans[which]["attributes"].update(names)


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda spans: spans.pop(1), "requests without a span"),
        (lambda spans: spans.append(deepcopy(spans[1]) | {"spanId": "c"}), "spans too many"),
        (lambda spans: spans.pop(), "calls without a span"),
        (lambda spans: spans.append(deepcopy(spans[-1]) | {"spanId": "c"}), "spans of calls too many"),
        (lambda spans: spans[-1].update(parentSpanId="a"), "link"),
        (change(0, url__path="/other"), "path"),
        (change(1, http__route="/fail/2"), "route"),
        (change(0, http__response__status_code=500), "status"),
        (lambda spans: spans[0].update(status={"code": 2}), "error"),
        (lambda spans: spans[1].pop("status"), "error"),
        (lambda spans: spans[0].update(traceId="0"), "traceparent"),
        (lambda spans: spans[1].update(parentSpanId="a"), "traceparent"),
        (change(0, **{"gen_ai.response.id": "chatcmpl-2"}), "response id"),
        (change(0, **{"gen_ai.usage.output_tokens": 5}), "tokens"),
        (change(0, **{"otelgpu.gen_ai.usage.estimated": False}), "estimated"),
        (change(0, **{"gen_ai.latency.time_to_first_token": 0.0097}), "ttft"),
        (change(0, **{"gen_ai.latency.time_to_first_token": 0.0123}), "ttft"),
        (lambda spans: spans[0]["attributes"].pop("gen_ai.latency.time_to_first_token"), "ttft"),
    ],
)
def test_each_thing_that_is_wrong_is_found(spoil: Callable[[Spans], object], fault: str) -> None:
    spans = right()
    spoil(spans)
    assert found(spans) == [fault]


def test_ids_of_a_server_s_own_have_no_numbers() -> None:
    spans = right()
    change(0, **{"gen_ai.response.id": "chatcmpl-6aA1"})(spans)
    assert found(spans, Answers(own_ids=True)) == []
    spans[0]["attributes"].pop("gen_ai.response.id")
    assert found(spans, Answers(own_ids=True)) == ["response id"]


def test_usage_that_comes_unasked_is_no_estimate() -> None:
    spans = right()
    assert found(spans, Answers(usage=True)) == ["estimated"]
    change(0, **{"otelgpu.gen_ai.usage.estimated": False})(spans)
    assert found(spans, Answers(usage=True)) == []


def test_events_that_hold_several_tokens_are_not_counted() -> None:
    spans = right()
    assert found(spans, Answers(packed=True)) == ["tokens", "estimated"]
    for key in ("gen_ai.usage.output_tokens", "otelgpu.gen_ai.usage.estimated"):
        spans[0]["attributes"].pop(key)
    assert found(spans, Answers(packed=True)) == []


def test_where_a_server_says_no_time_only_the_client_s_bounds_the_first_token() -> None:
    spans = right()
    change(0, **{"gen_ai.latency.time_to_first_token": 0.009})(spans)
    assert found(spans, Answers(timed=False)) == []
    change(0, **{"gen_ai.latency.time_to_first_token": 0.0123})(spans)
    assert found(spans, Answers(timed=False)) == ["ttft"]


def test_a_call_under_no_request_is_no_fault() -> None:
    spans = right()
    spans[-1].pop("parentSpanId")
    assert found(spans) == []


def test_one_link_that_is_wrong_is_a_fault() -> None:
    spans = right()
    spans[-1]["parentSpanId"] = "a"  # one of three
    assert found(spans) == ["link"]
