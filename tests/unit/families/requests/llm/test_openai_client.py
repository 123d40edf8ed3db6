"""What otelgpu reads of an exchange is what the ``openai`` library, unmodified, makes of the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.model.exchange import Generation
from tests.unit.families.requests.llm.exchanges import answer, ask
from tests.unit.families.requests.llm.transcripts import TRANSCRIPTS, Transcript


class Server(ThreadingHTTPServer):
    """Answers every request with the transcript's response, and keeps the request as it came."""

    def __init__(self, transcript: Transcript) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.transcript = transcript
        self.requests: list[tuple[str, bytes]] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.requests.append((self.path, body))
        transcript = self.server.transcript
        self.send_response(200)
        self.send_header("content-type", transcript.content_type.decode())
        self.end_headers()
        for write in transcript.writes:
            self.wfile.write(write)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    named = {transcript.name: transcript for transcript in TRANSCRIPTS}
    with Server(named[request.param]) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def client(server: Server) -> Any:
    """Imports the library where it is needed: it takes a second."""
    httpx, openai = pytest.importorskip("httpx"), pytest.importorskip("openai")
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    quick = httpx.Client(verify=False, trust_env=False)  # certificates are slow to load, and not asked for
    return openai.OpenAI(api_key="k", base_url=url, max_retries=0, http_client=quick)


def read(server: Server) -> Generation:
    """What otelgpu makes of the bytes that went both ways."""
    path, body = server.requests[0]
    done = answer(
        ask(path, body, ParserOutput(1 << 20)), server.transcript.writes, server.transcript.content_type
    )
    assert done.counts == {}
    return done.reported


def reported_usage(reported: Generation) -> tuple[int | None, ...]:
    return reported.input_tokens, reported.output_tokens, reported.cached_tokens, reported.reasoning_tokens


@pytest.mark.parametrize(
    "server", ["openai chat stream", "vllm chat stream with continuous usage"], indirect=True
)
def test_a_chat_stream(server: Server) -> None:
    messages = [{"role": "user", "content": "x"}]
    chunks = list(
        client(server).chat.completions.create(model="asked", messages=messages, stream=True, max_tokens=9)
    )
    reported = read(server)
    content = [
        choice
        for chunk in chunks
        for choice in chunk.choices
        if choice.delta.content or getattr(choice.delta, "reasoning", None)
    ]
    usage = [chunk.usage for chunk in chunks if chunk.usage][-1]
    reasons = tuple(
        choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason
    )
    assert (reported.content_deltas, reported.finish_reasons) == (len(content), reasons)
    assert (reported.input_tokens, reported.output_tokens) == (usage.prompt_tokens, usage.completion_tokens)
    assert (reported.response_id, reported.response_model) == (chunks[0].id, chunks[0].model)
    assert (reported.request_model, reported.stream, reported.max_tokens) == ("asked", True, 9)


@pytest.mark.parametrize("server", ["sglang chat"], indirect=True)
def test_a_chat(server: Server) -> None:
    completion = client(server).chat.completions.create(
        model="asked", messages=[{"role": "user", "content": "x"}]
    )
    reported = read(server)
    assert reported.finish_reasons == tuple(choice.finish_reason for choice in completion.choices)
    assert reported_usage(reported)[:2] == (
        completion.usage.prompt_tokens,
        completion.usage.completion_tokens,
    )
    assert (reported.response_id, reported.stream) == (completion.id, False)


@pytest.mark.parametrize("server", ["openai responses stream"], indirect=True)
def test_a_response_stream(server: Server) -> None:
    events = list(client(server).responses.create(model="asked", input="x", stream=True))
    reported = read(server)
    last = events[-1].response
    assert reported.content_deltas == sum(event.type.endswith(".delta") for event in events)
    assert reported_usage(reported) == (
        last.usage.input_tokens,
        last.usage.output_tokens,
        last.usage.input_tokens_details.cached_tokens,
        last.usage.output_tokens_details.reasoning_tokens,
    )
    assert (reported.response_id, reported.finish_reasons) == (last.id, (last.status,))


@pytest.mark.parametrize("server", ["openai embeddings"], indirect=True)
def test_embeddings(server: Server) -> None:
    made = client(server).embeddings.create(model="asked", input="x")
    reported = read(server)
    assert json.loads(server.requests[0][1])["model"] == reported.request_model
    assert (reported.operation, reported.input_tokens) == ("embeddings", made.usage.prompt_tokens)
