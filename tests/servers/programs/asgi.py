"""The service as an ASGI application of Starlette's, for uvicorn, hypercorn and what mounts it: ``asgi:app``.

Its calls are httpx's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import service
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

# By default httpx gives up after 5 s, of which a loop with hundreds of requests under way has more in hand.
client = httpx.AsyncClient(
    limits=httpx.Limits(max_connections=None, max_keepalive_connections=None), timeout=None, trust_env=False
)


async def call(number: str, which: int) -> None:
    (await client.get(service.call_url(number, which))).raise_for_status()


async def calls(number: str) -> None:
    await call(number, 0)
    await asyncio.gather(call(number, 1), call(number, 2))


async def chat(request: Request) -> Response:
    began = time.monotonic()
    number, asked = request.headers["x-request-id"], await request.json()
    await calls(number)
    if asked.get("stream"):
        return StreamingResponse(events(number, asked, began), media_type="text/event-stream")
    return JSONResponse(service.completion(number, asked))


async def events(number: str, asked: dict[str, Any], began: float) -> AsyncIterator[bytes]:
    yield service.role_event(number)
    service.report_first_token(number, began)
    yield service.token_event(number)
    await call(number, 3)
    for _ in range(asked["max_tokens"] - 1):
        await asyncio.sleep(service.PAUSE_S)
        yield service.token_event(number)
    yield service.last_events(number, asked)


async def item(request: Request) -> Response:
    number = request.path_params["number"]
    await calls(number)
    return JSONResponse({"number": number})


async def fail(request: Request) -> Response:
    await call(request.path_params["number"], 0)
    return JSONResponse({"error": "as asked"}, status_code=500)


async def health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


app = Starlette(
    routes=[
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/items/{number}", item),
        Route("/fail/{number}", fail),
        Route("/health", health),
    ]
)
