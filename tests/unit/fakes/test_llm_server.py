"""The example server and its load client, on the fake libcudart, report the truth of what they did."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig import ROOT, LlmServer, read_ledger, start_llm_server
from tests.unit.fakes.fake import BAD_FUNCTION

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlmServer]:
    with start_llm_server(threads=4, env={"LLM_TRUTH_CALLS": "1"}) as server:
        yield server


def post(server: LlmServer, path: str, body: bytes | dict[str, Any]) -> tuple[int, str, str]:
    """Send a request; status, X-Request-Id and body of the answer."""
    connection = server.connect()
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, content, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, response.headers.get("X-Request-Id", ""), text


def events(text: str) -> list[dict[str, Any]]:
    assert text.endswith("data: [DONE]\n\n")
    return [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n")[:-2]]


def truth_of(server: LlmServer, key: str, value: str) -> dict[str, Any]:
    """The truth file's line with this value; it comes just after the response."""
    deadline = time.monotonic() + 5
    while True:
        for line in server.truth(0):
            if line[key] == value:
                return line
        assert time.monotonic() < deadline, f"{value} is not in the truth file"
        time.sleep(0.01)


CHAT = {"model": "tiny-llm", "messages": [{"role": "user", "content": "why so slow"}], "max_tokens": 3}
TEXT = {"model": "tiny-llm", "prompt": "why so slow", "max_tokens": 3}


class TestLlmServer:
    def test_streams_a_chat_completion(self, server: LlmServer) -> None:
        body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
        status, request_id, text = post(server, "/v1/chat/completions", body)
        chunks = events(text)
        assert status == 200 and request_id
        assert len({chunk["id"] for chunk in chunks}) == 1 and chunks[0]["id"].startswith("chatcmpl-")
        assert [choice["delta"] for chunk in chunks for choice in chunk["choices"]] == [
            {"role": "assistant", "content": ""},
            {"content": "the"},
            {"content": " kernel"},
            {"content": " reads"},
            {},
        ]
        assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-2:] == [
            None,
            "length",
        ]
        assert chunks[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}

    def test_streams_a_completion_without_usage(self, server: LlmServer) -> None:
        _, _, text = post(server, "/v1/completions", {**TEXT, "stream": True})
        chunks = events(text)
        assert [chunk["choices"][0]["text"] for chunk in chunks] == ["the", " kernel", " reads", ""]
        assert not any("usage" in chunk for chunk in chunks)

    @pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
    def test_answers_at_once(self, server: LlmServer, path: str, body: dict[str, Any]) -> None:
        status, _, text = post(server, path, body)
        answer = json.loads(text)
        choice = answer["choices"][0]
        content = choice["message"]["content"] if "message" in choice else choice["text"]
        assert (status, content, choice["finish_reason"]) == (200, "the kernel reads", "length")
        assert answer["usage"]["completion_tokens"] == 3

    @pytest.mark.parametrize(
        "body", [b"{", b"[]", b'{"messages": []}', b'{"messages": [{"content": "a"}], "max_tokens": 0}']
    )
    def test_refuses_a_bad_body(self, server: LlmServer, body: bytes) -> None:
        status, _, text = post(server, "/v1/chat/completions", body)
        assert status == 400
        assert json.loads(text)["error"]["type"] == "invalid_request_error"

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_failing_gpu_call_is_a_500(self, server: LlmServer, stream: bool) -> None:
        status, request_id, text = post(
            server, "/v1/chat/completions", {**CHAT, "model": "broken", "stream": stream}
        )
        assert status == 500
        assert json.loads(text)["error"]["message"] == "cudaMalloc: cudaErrorMemoryAllocation (2)"
        line = truth_of(server, "x_request_id", request_id)
        assert (line["status"], line["cuda_calls"]) == (500, {"cudaMalloc": 1, "cudaGetErrorName": 1})

    def test_reports_the_truth_of_a_request(self, server: LlmServer) -> None:
        start_ns = time.monotonic_ns()
        _, request_id, text = post(server, "/v1/chat/completions", {**CHAT, "stream": True})
        line = truth_of(server, "id", events(text)[0]["id"])
        assert line["x_request_id"] == request_id and line["pid"] == server.worker_pid
        assert Path(f"/proc/{line['pid']}/task/{line['thread_id']}").exists()
        times = [
            start_ns,
            *(line[f"{moment}_ns"] for moment in ("start", "first_token", "last_token", "end")),
        ]
        assert times == sorted(times) and line["finished"]
        assert line["ttft_s"] == (line["first_token_ns"] - line["start_ns"]) / 1e9
        assert line["tpot_s"] == pytest.approx((line["end_ns"] - line["first_token_ns"]) / 2 / 1e9)
        assert line["cuda_calls"] == {
            "cudaMalloc": 1,
            "cudaStreamCreate": 1,
            "cudaMemcpyAsync": 4,
            "cudaLaunchKernel": 16 + 3 * 9,
            "cudaStreamSynchronize": 4,
            "cudaFree": 1,
            "cudaStreamDestroy": 1,
        }
        assert Counter(function for function, _ in line["cuda_call_times"]) == line["cuda_calls"]
        assert all(line["start_ns"] < call_ns < line["end_ns"] for _, call_ns in line["cuda_call_times"])

    def test_a_client_that_leaves_early_gives_the_device_back(self, server: LlmServer) -> None:
        connection = server.connect()
        connection.request(
            "POST", "/v1/completions", json.dumps({**TEXT, "max_tokens": 4096, "stream": True})
        )
        response = connection.getresponse()
        first = json.loads(response.readline().removeprefix(b"data: "))
        response.close()
        connection.close()
        line = truth_of(server, "id", first["id"])
        assert not line["finished"] and line["output_tokens"] < 4096
        assert (line["cuda_calls"]["cudaFree"], line["cuda_calls"]["cudaStreamDestroy"]) == (1, 1)

    def test_lists_its_models(self, server: LlmServer) -> None:
        connection = server.connect()
        connection.request("GET", "/v1/models")
        models = json.loads(connection.getresponse().read())["data"]
        connection.close()
        assert [model["id"] for model in models] == ["tiny-llm", "broken"]


def test_load_client_server_and_library_agree(tmp_path: Path) -> None:
    ledger, output = tmp_path / "ledger.jsonl", tmp_path / "client.jsonl"
    with start_llm_server(workers=2, threads=4, env={"FAKE_CUDART_LEDGER": str(ledger)}) as server:
        client = subprocess.run(
            [
                sys.executable,
                str(ROOT / "examples" / "llm_server" / "client.py"),
                f"--url={server.url}",
                "--requests=23",
                "--concurrency=7",
                "--traceparent",
                f"--output={output}",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        truth = {line["id"]: line for line in server.truth(23)}
    seen = [json.loads(line) for line in output.read_text().splitlines()]
    assert client.stdout.startswith("23 requests, 0 failed, 368 tokens")
    assert {line["id"] for line in seen} == truth.keys() and len(truth) == 23
    assert {line["x_request_id"] for line in seen} == {line["x_request_id"] for line in truth.values()}
    assert all(line["ttft_s"] > truth[line["id"]]["ttft_s"] for line in seen)
    assert all(re.fullmatch(r"[0-9a-f]{32}", line["trace_id"]) for line in seen)
    made: Counter[str] = Counter()
    for line in truth.values():
        made.update(line["cuda_calls"])
    called = read_ledger(ledger)
    del called["cudaGetDeviceCount"]  # each worker's own, at its start
    assert called == made


@pytest.mark.parametrize(("tolerate", "status"), [("0", 500), ("1", 200)])
def test_launches_without_device_code_are_tolerated_when_asked(tolerate: str, status: int) -> None:
    env = {"FAKE_CUDART_FAIL": f"cudaLaunchKernel:2:{BAD_FUNCTION}", "LLM_TOLERATE_LAUNCH_ERRORS": tolerate}
    with start_llm_server(env=env) as server:
        assert post(server, "/v1/chat/completions", CHAT)[0] == status


def test_a_server_without_a_library_says_so() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "llm_server", "--port=0"],
        env={**os.environ, "LLM_CUDART": "/nonexistent/libcudart.so.12"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode != 0
    assert "no CUDA runtime: /nonexistent/libcudart.so.12" in done.stderr
    assert "Traceback" not in done.stderr
