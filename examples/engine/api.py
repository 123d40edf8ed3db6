"""The API process: OpenAI's chat completions over the engine, streamed or not.

In: HTTP requests; W3C trace context headers are handed on to the engine, as vLLM does. Out: JSON or server-sent
events, one for each token.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from engine.client import EngineClient
from engine.messages import EngineCoreRequest, SamplingParams
from engine.truth import TruthFile

MODEL = "tiny-engine"
DEFAULT_MAX_TOKENS = 16
TRACE_HEADERS = ("traceparent", "tracestate")


class Generation:
    """One request: what is asked of the engine, and the truth about it."""

    def __init__(self, body: dict[str, Any], headers: Any) -> None:
        """Raises KeyError, TypeError or ValueError for a body that cannot be served."""
        self.arrival_ns = time.monotonic_ns()
        self.response_id = f"chatcmpl-{headers.get('x-request-id') or uuid.uuid4().hex}"
        self.trace_headers = {name: headers[name] for name in TRACE_HEADERS if name in headers}
        self.stream = bool(body.get("stream", False))
        words = " ".join(message["content"] for message in body["messages"]).split()
        self.request = EngineCoreRequest(
            # As vLLM's assign_request_id: what the client knows, made unique.
            request_id=f"{self.response_id}-{secrets.token_hex(4)}",
            prompt_token_ids=[len(word) * 997 % 32_000 for word in words] or [1],
            mm_features=None,
            sampling_params=SamplingParams(max_tokens=int(body.get("max_tokens", DEFAULT_MAX_TOKENS))),
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
            trace_headers=self.trace_headers or None,
            external_req_id=self.response_id,
        )
        self.token_times_ns: list[int] = []
        self.finished = False

    def chunk(self, delta: dict[str, str], reason: str | None = None) -> bytes:
        """A server-sent event."""
        content = {
            "id": self.response_id,
            "object": "chat.completion.chunk",
            "created": int(self.request.arrival_time),
            "model": MODEL,
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
        }
        return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"

    def answer(self, text: str) -> dict[str, Any]:
        """The whole answer."""
        message = {"role": "assistant", "content": text}
        prompt, tokens = len(self.request.prompt_token_ids or ()), len(self.token_times_ns)
        return {
            "id": self.response_id,
            "object": "chat.completion",
            "created": int(self.request.arrival_time),
            "model": MODEL,
            "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens},
        }

    def truth(self) -> dict[str, Any]:
        """The line about it, once it is over."""
        return {
            "id": self.response_id,
            "engine_request_id": self.request.request_id,
            "pid": os.getpid(),
            "traceparent": self.trace_headers.get("traceparent"),
            "stream": self.stream,
            "finished": self.finished,
            "arrival_ns": self.arrival_ns,
            "prompt_tokens": len(self.request.prompt_token_ids or ()),
            "output_tokens": len(self.token_times_ns),
            "first_token_ns": self.token_times_ns[0] if self.token_times_ns else None,
            "token_times_ns": self.token_times_ns,
        }


def create_app(client: EngineClient, truth: TruthFile, start_engine: Callable[[], int]) -> FastAPI:
    """The application. ``start_engine`` starts the engine's process and gives its process id."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.engine_pid = start_engine()
        await client.ready()
        yield
        await client.close()

    app = FastAPI(lifespan=lifespan)

    async def words(generation: Generation) -> AsyncIterator[str]:
        try:
            async with contextlib.aclosing(client.generate(generation.request)) as outputs:
                async for output in outputs:
                    for token in output.new_token_ids:
                        generation.token_times_ns.append(time.monotonic_ns())
                        yield f" t{token}"
            generation.finished = True
        finally:
            truth.write(generation.truth())

    async def events(generation: Generation) -> AsyncIterator[bytes]:
        yield generation.chunk({"role": "assistant", "content": ""})
        async with contextlib.aclosing(words(generation)) as tokens:
            async for word in tokens:
                yield generation.chunk({"content": word})
        yield generation.chunk({}, "length")
        yield b"data: [DONE]\n\n"

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        try:
            generation = Generation(await request.json(), request.headers)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return JSONResponse({"error": {"message": repr(error), "code": 400}}, status_code=400)
        if generation.stream:
            return StreamingResponse(events(generation), media_type="text/event-stream")
        return JSONResponse(generation.answer("".join([word async for word in words(generation)])))

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "pid": os.getpid(), "engine_pid": app.state.engine_pid}

    return app
