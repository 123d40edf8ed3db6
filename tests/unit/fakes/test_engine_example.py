"""The example engine with continuous batching, on the fake libcudart, says the truth of what it did."""

from __future__ import annotations

import http.client
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from examples.llm_server.client import Load, Outcome, run
from tests.rig import EngineServer, start_engine_server

pytestmark = pytest.mark.slow

BATCH, BATCHED_TOKENS = 4, 24
LEAVE_LIMIT_S = 10
PROMPT = " ".join(["word"] * 40)  # two chunks of a step's tokens


@pytest.fixture(scope="module", params=["sync", "async"])
def server(request: pytest.FixtureRequest) -> Iterator[EngineServer]:
    with start_engine_server(
        f"--scheduling={request.param}", f"--max-batch={BATCH}", f"--max-batched-tokens={BATCHED_TOKENS}"
    ) as server:
        yield server


@pytest.fixture(scope="module")
def outcomes(server: EngineServer) -> list[Outcome]:
    load = Load(
        url=server.url,
        requests=20,
        concurrency=8,
        stream=True,
        max_tokens=7,
        api="chat",
        model="tiny-engine",
        prompt=PROMPT,
        traceparent=True,
    )
    return run(load)


def by_request(steps: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What steps did for each request, in order."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for step in steps:
        for item in step["requests"]:
            found[item["id"]].append(item | {"step": step["step"]})
    return found


def test_what_clients_read_the_api_says_and_the_engine_says_is_the_same(
    server: EngineServer, outcomes: list[Outcome]
) -> None:
    requests = {line["id"]: line for line in server.requests(len(outcomes))}
    engine = by_request(server.steps())
    for outcome in outcomes:
        line = requests[outcome.id]
        done = engine[line["engine_request_id"]]
        assert outcome.error == ""
        assert line["traceparent"].split("-")[1] == outcome.trace_id
        assert outcome.output_tokens == line["output_tokens"] == sum(item["new_tokens"] for item in done) == 7
        assert (
            sum(item["tokens"] for item in done if item["kind"] == "prefill") == line["prompt_tokens"] == 40
        )
        assert [item["finished"] for item in done] == [False] * (len(done) - 1) + [True]
        assert line["finished"]
        assert line["arrival_ns"] < line["first_token_ns"] == line["token_times_ns"][0]


def test_steps_keep_to_the_limits_and_mix_prefill_with_decode(
    server: EngineServer, outcomes: list[Outcome]
) -> None:
    steps = server.steps()
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    sizes = [len(step["requests"]) for step in steps]
    assert 1 < max(sizes) <= BATCH
    assert max(sum(item["tokens"] for item in step["requests"]) for step in steps) == BATCHED_TOKENS
    kinds = Counter(frozenset(item["kind"] for item in step["requests"]) for step in steps)
    assert kinds[frozenset(("prefill", "decode"))] > 0
    for step in steps:
        decode_only = all(item["kind"] == "decode" for item in step["requests"])
        assert step["launches"] == (1 if decode_only else 13)
        assert step["running"] >= len(step["requests"])


def test_async_steps_overlap_and_sync_steps_do_not(server: EngineServer, outcomes: list[Outcome]) -> None:
    steps = server.steps()
    asynchronous = b"--scheduling=async" in Path(f"/proc/{server.engine_pid}/cmdline").read_bytes()
    overlapping = sum(after["start_ns"] < before["end_ns"] for before, after in pairwise(steps))
    assert (overlapping > len(steps) / 2) if asynchronous else (overlapping == 0)


def post(server: EngineServer, body: object) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"X-Request-Id": "mine"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def test_an_answer_that_is_not_streamed_is_whole(server: EngineServer) -> None:
    messages = [{"role": "user", "content": "one two"}]
    status, answer = post(server, {"messages": messages, "max_tokens": 3})
    assert status == 200
    assert answer["id"] == "chatcmpl-mine"
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert len(answer["choices"][0]["message"]["content"].split()) == 3


@pytest.mark.parametrize("body", [{}, [], {"messages": [{}]}, {"messages": [{"content": 1}]}])
def test_a_body_that_is_not_valid_is_refused(server: EngineServer, body: object) -> None:
    assert post(server, body)[0] == 400


def test_a_client_that_leaves_ends_its_request_in_the_engine(server: EngineServer) -> None:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    body = {"messages": [{"content": "x"}], "max_tokens": 1_000_000, "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"X-Request-Id": "leaves"})
    connection.getresponse().read(200)
    connection.close()
    until = time.monotonic() + LEAVE_LIMIT_S
    while not (left := [line for line in server.requests(1) if line["id"] == "chatcmpl-leaves"]):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert not left[0]["finished"]
    post(server, {"messages": [{"content": "y"}], "max_tokens": 2})
    assert [item["id"] for item in server.steps()[-1]["requests"]] != [left[0]["engine_request_id"]]
    assert Path(f"/proc/{server.engine_pid}").exists()
