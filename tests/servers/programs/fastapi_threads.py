"""The service as a FastAPI application of plain functions, for uvicorn: ``fastapi_threads:app``. It calls by urllib3.

What is no coroutine runs in a thread of AnyIO's: each handler, and each step of a stream, which may be another's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import service
import urllib3
from fastapi import FastAPI, Header
from fastapi.responses import JSONResponse, Response, StreamingResponse

app = FastAPI()
client = urllib3.PoolManager(maxsize=512)


def call(number: str, which: int) -> None:
    answer = client.request("GET", service.call_url(number, which))
    assert answer.status == 200, answer.status


def calls(number: str) -> None:
    call(number, 0)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(call, (number, number), (1, 2)))


@app.post("/v1/chat/completions", response_model=None)
def chat(asked: dict[str, Any], x_request_id: Annotated[str, Header()]) -> Response | dict[str, Any]:
    began = time.monotonic()
    calls(x_request_id)
    if asked.get("stream"):
        return StreamingResponse(events(x_request_id, asked, began), media_type="text/event-stream")
    return service.completion(x_request_id, asked)


def events(number: str, asked: dict[str, Any], began: float) -> Iterator[bytes]:
    yield service.role_event(number)
    service.report_first_token(number, began)
    yield service.token_event(number)
    call(number, 3)
    for _ in range(asked["max_tokens"] - 1):
        time.sleep(service.PAUSE_S)
        yield service.token_event(number)
    yield service.last_events(number, asked)


@app.get("/items/{number}")
def item(number: str) -> dict[str, str]:
    calls(number)
    return {"number": number}


@app.get("/fail/{number}")
def fail(number: str) -> JSONResponse:
    call(number, 0)
    return JSONResponse({"error": "as asked"}, status_code=500)


@app.get("/health")
def health() -> dict[str, str]:
    return {"status": "ok"}
