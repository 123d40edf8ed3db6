"""The steps of a continuous-batching engine as they are exported: every one is what the engine's own log says.

The engine is a child of the API process, which ``otelgpu run`` starts; its messages, its CUDA calls and its clients'
requests are all that otelgpu has. The truth is in the files that the two processes write themselves.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from examples.llm_server.client import Load, Outcome, run
from tests.kernel.observing import OTELGPU, Session, Span, read_metrics, read_spans, wait_until
from tests.rig import EngineServer, start_engine_server
from tests.rig.clocks import wall_ahead_ns

OPTIONS: Final = ("--max-batch=6", "--max-batched-tokens=64")
LAUNCHES: Final = ("cudaLaunchKernel", "cudaGraphLaunch")
CLOCKS_NS: Final = 200_000
"""The truth is CLOCK_MONOTONIC: how well this test converts it."""

LATENCY_S: Final = 0.002
IDLE_S: Final = 0.3
"""By then an engine that was reported of a client's leaving has done its last step."""

UNAVOIDABLE: Final = {
    ("devices", "library_missing"),  # there is no GPU
    ("symbols", "symbol_missing"),
    ("http", "socket_errors"),  # of the client that leaves
    ("probes", "process_vanished"),
}

UNSEEN: Final = 20
"""Steps between two looks at the log."""

STREAMED: Final = 40
WHOLE: Final = 8


@dataclass(frozen=True)
class Reported:
    """What was exported, and what the processes say."""

    spans: Sequence[Span]
    truth: Sequence[dict[str, Any]]  # a line per step
    requests: Sequence[dict[str, Any]]  # a line per request
    losses: set[tuple[str, str]]
    offset_ns: int

    @cached_property
    def steps(self) -> list[Span]:
        return sorted((s for s in self.spans if s["name"] == "engine.step"), key=lambda s: s["end"])

    @cached_property
    def chats(self) -> dict[str, Span]:
        """Spans of requests, by the id that the client got."""
        answered = [s for s in self.spans if s["kind"] == 2 and s["name"].startswith("chat")]
        return {s["attributes"]["gen_ai.response.id"]: s for s in answered}

    @cached_property
    def names(self) -> dict[tuple[str, str], str]:
        return {identity(span): response_id for response_id, span in self.chats.items()}

    @cached_property
    def launches(self) -> Counter[tuple[str, str]]:
        """Launches under each span."""
        found: Counter[tuple[str, str]] = Counter()
        for span in self.spans:
            if span["name"].split()[0] in LAUNCHES:
                found[span["traceId"], span["parentSpanId"]] += span["attributes"].get("otelgpu.count", 1)
        return found

    def below(self, parent: Span) -> dict[str, Span]:
        """Spans under one, by name."""
        return {
            span["name"]: span
            for span in self.spans
            if span["traceId"] == parent["traceId"] and span.get("parentSpanId") == parent["spanId"]
        }

    def members(self, step: Span) -> dict[str, tuple[int, str]]:
        """What a step's links say: by response id, its tokens and its phase."""
        found = {}
        for link in step.get("links", ()):
            values = {item["key"]: next(iter(item["value"].values())) for item in link["attributes"]}
            given = int(values["otelgpu.step.tokens"]), values["otelgpu.phase"]
            found[self.names[link["traceId"], link["spanId"]]] = given
        assert len(found) == len(step.get("links", ()))
        return found


def identity(span: Span) -> tuple[str, str]:
    return span["traceId"], span["spanId"]


def response_id(engine_request_id: str) -> str:
    return engine_request_id.rpartition("-")[0]


def seconds(start_ns: int, end_ns: int) -> float:
    return (end_ns - start_ns) * 1e-9


def losses_of(traces: Path) -> set[tuple[str, str]]:
    """All that was counted as lost, odd or worth a count: family and reason."""
    points = read_metrics(traces)["otelgpu.losses"]
    return {
        (point["attributes"]["otelgpu.family"], point["attributes"]["otelgpu.reason"]) for point in points
    }


def send(server: EngineServer, requests: int, *, stream: bool = True, concurrency: int = 10) -> list[Outcome]:
    outcomes = run(
        Load(
            url=server.url,
            requests=requests,
            concurrency=concurrency,
            stream=stream,
            max_tokens=12,
            api="chat",
            model="tiny-engine",
            prompt=" ".join(["word"] * 90),  # more than goes through in one step
            traceparent=True,
        )
    )
    assert not any(outcome.error for outcome in outcomes)
    return outcomes


def leave_early(server: EngineServer) -> None:
    """A client that hangs up after its first tokens: the engine is reported to stop."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    body = {"model": "tiny-engine", "stream": True, "max_tokens": 5000, "messages": [{"content": "a b"}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    answer = connection.getresponse()
    for _ in range(8):
        assert answer.readline()
    connection.close()


def in_the_log(step: Span, truth: Sequence[dict[str, Any]], offset_ns: int) -> dict[str, Any]:
    """The line about a step: the one within whose times it is."""
    place = bisect_left([line["end_ns"] for line in truth], step["end"] - offset_ns - CLOCKS_NS)
    assert truth[place]["start_ns"] - CLOCKS_NS <= step["start"] - offset_ns
    assert step["end"] - offset_ns <= truth[place]["end_ns"] + CLOCKS_NS
    return truth[place]


@pytest.fixture(scope="module", params=["sync", "async"])
def reported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """A whole session: many clients at once, some that wait for the whole answer, one that leaves."""
    traces = tmp_path_factory.mktemp("engine") / "traces.jsonl"
    observed = (OTELGPU, "run", "--detail=all", f"--export=file:{traces}", "--")
    with start_engine_server(*OPTIONS, f"--scheduling={request.param}", prefix=observed) as server:
        send(server, STREAMED)
        leave_early(server)
        send(server, WHOLE, stream=False, concurrency=4)
        requests = server.requests(STREAMED + WHOLE + 1)
        offset_ns = wall_ahead_ns()
        time.sleep(IDLE_S)
        truth = server.steps()
    return Reported(read_spans(traces), truth, requests, losses_of(traces), offset_ns)


def test_every_step_is_where_the_engine_says(reported: Reported) -> None:
    assert len(reported.truth) > 100
    assert len(reported.steps) == len(reported.truth)
    for step, truth in zip(reported.steps, reported.truth, strict=True):
        assert step["attributes"]["otelgpu.step.number"] == truth["step"]
        assert step["attributes"]["thread.id"] == truth["thread_id"]
        assert truth["start_ns"] + reported.offset_ns - CLOCKS_NS <= step["start"]
        assert step["start"] < step["end"] <= truth["end_ns"] + reported.offset_ns + CLOCKS_NS


def test_every_step_served_whom_the_engine_says(reported: Reported) -> None:
    """Exactly: who, how many tokens each, and who of them got the first one."""
    seen: set[str] = set()
    for step, truth in zip(reported.steps, reported.truth, strict=True):
        given = [item for item in truth["requests"] if item["new_tokens"]]
        expected = {
            response_id(item["id"]): (item["new_tokens"], "decode" if item["id"] in seen else "prefill")
            for item in given
        }
        seen |= {item["id"] for item in given}
        assert reported.members(step) == expected, truth["step"]
        said = step["attributes"]
        # A step of which no output reports is one for a part of a prompt, and says that it does not know.
        assert said["otelgpu.step.membership"] == ("known" if given else "unreported"), truth["step"]
        if given:
            phases = Counter(phase for _, phase in expected.values())
            assert said["otelgpu.step.batch_size"] == len(given)
            assert said["otelgpu.step.tokens"] == sum(item["new_tokens"] for item in given)
            assert said["otelgpu.step.prefills"] == phases["prefill"]
            assert said["otelgpu.step.decodes"] == phases["decode"]
    assert reported.losses <= UNAVOIDABLE


def test_every_launch_is_under_the_step_that_made_it(reported: Reported) -> None:
    assert [reported.launches[identity(step)] for step in reported.steps] == [
        truth["launches"] for truth in reported.truth
    ]


def test_only_what_the_engine_did_before_its_first_step_is_of_nobody(reported: Reported) -> None:
    for span in reported.spans:
        if span["attributes"].get("otelgpu.unattributed.reason"):
            assert span["end"] < reported.steps[0]["start"]


def test_requests_link_back_to_their_steps_and_continue_their_clients_traces(reported: Reported) -> None:
    by_request: dict[str, set[tuple[str, str]]] = {}
    for step in reported.steps:
        for request in reported.members(step):
            by_request.setdefault(request, set()).add(identity(step))
    for truth in reported.requests:
        span = reported.chats[truth["id"]]
        steps = by_request[truth["id"]]
        links = {(link["traceId"], link["spanId"]) for link in span["links"]}
        assert span["attributes"]["otelgpu.steps.count"] == len(steps)
        assert links <= steps
        assert len(links) + span.get("droppedLinksCount", 0) == len(steps)
        assert span["attributes"]["otelgpu.steps.source"] == "message"
        if truth["traceparent"]:
            assert truth["traceparent"].split("-")[1:3] == [span["traceId"], span["parentSpanId"]]


def test_the_phases_of_a_request_are_those_of_its_steps(reported: Reported) -> None:
    off = 0
    for truth in reported.requests:
        span = reported.chats[truth["id"]]
        mine = [
            (step, item["new_tokens"])
            for step in reported.truth
            for item in step["requests"]
            if item["id"] == truth["engine_request_id"]
        ]
        scheduled = mine[0][0]
        gave = [step for step, tokens in mine if tokens]
        first, last = gave[0], gave[-1]
        took = {
            name: span["attributes"][f"gen_ai.latency.time_in_{name}"]
            for name in ("queue", "model_prefill", "model_decode", "model_inference")
        }
        # It was handed over after it arrived and before the first step that worked on it.
        assert took["queue"] <= seconds(truth["arrival_ns"], first["end_ns"])
        assert took["queue"] >= seconds(scheduled["start_ns"], first["start_ns"])
        assert took["model_decode"] == pytest.approx(seconds(first["end_ns"], last["end_ns"]), abs=LATENCY_S)
        begun_s = seconds(first["start_ns"], first["end_ns"]) - took["model_prefill"]
        late_s = took["queue"] - seconds(truth["arrival_ns"], first["start_ns"])
        off += abs(begun_s) > LATENCY_S or late_s > LATENCY_S
        assert took["model_inference"] == pytest.approx(took["model_prefill"] + took["model_decode"])
        phases = reported.below(span)
        for name, latency in (("queue", "queue"), ("prefill", "model_prefill"), ("decode", "model_decode")):
            assert seconds(phases[name]["start"], phases[name]["end"]) == pytest.approx(took[latency])
            assert phases[name]["resource"]["process.pid"] != span["resource"]["process.pid"]
    # The engine notes that a step begins before its first launch, and may be held up in between.
    assert off <= len(reported.requests) // 20


@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_the_steps_of_a_busy_engine_are_known_from_then_on(tmp_path: Path, scheduling: str) -> None:
    """otelgpu comes while the engine is at work, with more requests at a time than fit into a short message."""
    options = ("--max-batch=16", f"--scheduling={scheduling}", "--steps-per-second=150")
    traces = tmp_path / "traces.jsonl"
    with start_engine_server(*options) as server:
        load = threading.Thread(target=lambda: send(server, 120, concurrency=16))
        load.start()
        wait_until(lambda: len(server.steps()) > 30, "30 steps")
        attach = ("attach", "-p", str(server.pid), "-p", str(server.engine_pid), "--detail=phases")
        with Session(*attach, traces=traces):
            first = len(server.steps())
            load.join()
            offset_ns = wall_ahead_ns()
            time.sleep(IDLE_S)
        truth = server.steps()
    spans = read_spans(traces)
    names = {identity(s): s["attributes"].get("gen_ai.response.id") for s in spans if s["kind"] == 2}
    steps = [span for span in spans if span["name"] == "engine.step"]
    assert len(truth) - first - UNSEEN <= len(steps) <= len(truth)
    unknown = 0
    for step in steps:
        line = in_the_log(step, truth, offset_ns)
        given = {response_id(item["id"]) for item in line["requests"] if item["new_tokens"]}
        # Requests that were under way before otelgpu came have no spans.
        assert {names[link["traceId"], link["spanId"]] for link in step.get("links", ())} <= given
        if step["attributes"]["otelgpu.step.membership"] == "known":
            assert step["attributes"]["otelgpu.step.batch_size"] == len(given)
        else:
            unknown += bool(given)
    assert unknown <= len(steps) // 10
