"""The web application: OpenAI's chat completions and completions over an `Engine`, streamed or not.

In: HTTP requests. Out: JSON, or server-sent events as OpenAI's API sends them. One thread serves one request
from its first byte to its last.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from flask import Flask, Response, jsonify, request

from llm_server.cudart import CudaError
from llm_server.engine import Engine, Sequence
from llm_server.truth import ENVIRON_KEY, RequestTruth, TruthMiddleware, WsgiApplication

MODELS = ("tiny-llm", "broken")
DEFAULT_MAX_TOKENS = 16
MAX_TOKENS = 4096


class BadRequestError(ValueError):
    """The request cannot be served as it is; the message is for the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A request, checked."""

    chat: bool
    response_id: str
    model: str
    prompt: str
    max_tokens: int
    stream: bool
    include_usage: bool

    @property
    def object_name(self) -> str:
        """The `object` of the responses."""
        if not self.chat:
            return "text_completion"
        return "chat.completion.chunk" if self.stream else "chat.completion"


def parse_completion(body: object, *, chat: bool) -> Completion:
    """Check a request's decoded body. Raises `BadRequestError`."""
    if not isinstance(body, dict):
        raise BadRequestError("the body must be a JSON object")
    model = body.get("model", MODELS[0])
    if not isinstance(model, str):
        raise BadRequestError("model must be a string")
    limit = body.get("max_completion_tokens", body.get("max_tokens", DEFAULT_MAX_TOKENS))
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_TOKENS:
        raise BadRequestError(f"max_tokens must be a whole number from 1 to {MAX_TOKENS}")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequestError("stream_options must be an object")
    return Completion(
        chat=chat,
        response_id=("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex,
        model=model,
        prompt=_chat_prompt(body) if chat else _text_prompt(body),
        max_tokens=limit,
        stream=bool(body.get("stream", False)),
        include_usage=bool(options.get("include_usage", False)),
    )


def _chat_prompt(body: dict[str, Any]) -> str:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("messages must be a list with at least one message")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise BadRequestError("each message must be an object with a content string")
    return "\n".join(message["content"] for message in messages)


def _text_prompt(body: dict[str, Any]) -> str:
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise BadRequestError("prompt must be a string")
    return prompt


def _error(status: int, kind: str, message: str) -> tuple[Response, int]:
    return jsonify(error={"message": message, "type": kind, "code": status}), status


def _usage(sequence: Sequence) -> dict[str, int]:
    return {
        "prompt_tokens": sequence.prompt_tokens,
        "completion_tokens": sequence.output_tokens,
        "total_tokens": sequence.prompt_tokens + sequence.output_tokens,
    }


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


def _stream(completion: Completion, sequence: Sequence, truth: RequestTruth) -> Iterator[bytes]:
    """The events of a streamed answer. Each is written to the socket before the next is made."""
    head = {
        "id": completion.response_id,
        "object": completion.object_name,
        "created": int(time.time()),
        "model": completion.model,
    }

    def chunk(choice: dict[str, Any], reason: str | None = None) -> bytes:
        return _event({**head, "choices": [{"index": 0, **choice, "finish_reason": reason}]})

    try:
        if completion.chat:
            yield chunk({"delta": {"role": "assistant", "content": ""}})
        for _ in range(completion.max_tokens):
            token = sequence.decode()
            event = chunk({"delta": {"content": token}} if completion.chat else {"text": token})
            truth.note_token()
            yield event
        yield chunk({"delta": {}} if completion.chat else {"text": ""}, "length")
    except CudaError as error:
        # The status line is long gone: OpenAI-compatible servers then send an error event.
        yield _event({"error": {"message": str(error), "type": "server_error", "code": 500}})
    finally:
        sequence.close()
    if completion.include_usage:
        yield _event({**head, "choices": [], "usage": _usage(sequence)})
    yield b"data: [DONE]\n\n"


def _answer(completion: Completion, sequence: Sequence, truth: RequestTruth) -> dict[str, Any]:
    """The whole answer at once. Raises `CudaError`."""
    words = []
    try:
        for _ in range(completion.max_tokens):
            words.append(sequence.decode())
            truth.note_token()
    finally:
        sequence.close()
    text = "".join(words)
    content = {"message": {"role": "assistant", "content": text}} if completion.chat else {"text": text}
    return {
        "id": completion.response_id,
        "object": completion.object_name,
        "created": int(time.time()),
        "model": completion.model,
        "choices": [{"index": 0, **content, "finish_reason": "length"}],
        "usage": _usage(sequence),
    }


def create_app(engine: Engine) -> Flask:
    """The application around one engine, with the truth file that LLM_TRUTH and LLM_TRUTH_CALLS ask for."""
    app = Flask("llm_server")

    def serve(*, chat: bool) -> Response | tuple[Response, int]:
        truth: RequestTruth = request.environ[ENVIRON_KEY]
        truth.path = request.path
        truth.request_id = request.headers.get("X-Request-Id") or uuid.uuid4().hex
        try:
            completion = parse_completion(request.get_json(silent=True, force=True), chat=chat)
        except BadRequestError as error:
            return _error(400, "invalid_request_error", str(error))
        truth.response_id, truth.model, truth.stream = (
            completion.response_id,
            completion.model,
            completion.stream,
        )
        try:
            sequence = engine.start(completion.model, completion.prompt, completion.max_tokens, truth.calls)
            if completion.stream:
                response = Response(_stream(completion, sequence, truth), mimetype="text/event-stream")
                response.headers["Cache-Control"] = "no-cache"
            else:
                response = jsonify(_answer(completion, sequence, truth))
        except CudaError as error:
            return _error(500, "server_error", str(error))
        return response

    @app.after_request
    def identify(response: Response) -> Response:
        truth: RequestTruth = request.environ[ENVIRON_KEY]
        if truth.request_id:
            response.headers["X-Request-Id"] = truth.request_id
        return response

    @app.post("/v1/chat/completions")
    def chat_completions() -> Response | tuple[Response, int]:
        return serve(chat=True)

    @app.post("/v1/completions")
    def completions() -> Response | tuple[Response, int]:
        return serve(chat=False)

    @app.get("/v1/models")
    def models() -> Response:
        return jsonify(object="list", data=[{"id": model, "object": "model"} for model in MODELS])

    @app.get("/health")
    def health() -> Response:
        return jsonify(status="ok", pid=os.getpid(), parent_pid=os.getppid(), cudart=engine.cuda.path)

    app.wsgi_app = TruthMiddleware(  # type: ignore[method-assign]
        cast(WsgiApplication, app.wsgi_app),
        os.environ.get("LLM_TRUTH"),
        keep_times=os.environ.get("LLM_TRUTH_CALLS") == "1",
    )
    return app
