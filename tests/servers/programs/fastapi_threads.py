"""The service as a FastAPI application of plain functions, for uvicorn: ``fastapi_threads:app``. It calls by urllib3.

What is no coroutine runs in a thread of AnyIO's: each handler, and each step of a stream, which may be another's.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import blocking
import service
from fastapi import FastAPI, Header
from fastapi.responses import JSONResponse, Response, StreamingResponse

app = FastAPI()


@app.post("/v1/chat/completions", response_model=None)
def chat(asked: dict[str, Any], x_request_id: Annotated[str, Header()]) -> Response | dict[str, Any]:
    began = time.monotonic()
    blocking.calls(x_request_id)
    if asked.get("stream"):
        return StreamingResponse(blocking.events(x_request_id, asked, began), media_type="text/event-stream")
    return service.completion(x_request_id, asked)


@app.get("/items/{number}")
def item(number: str) -> dict[str, str]:
    blocking.calls(number)
    return {"number": number}


@app.get("/fail/{number}")
def fail(number: str) -> JSONResponse:
    blocking.call(number, 0)
    return JSONResponse({"error": "as asked"}, status_code=500)


@app.get("/health")
def health() -> dict[str, str]:
    return {"status": "ok"}
