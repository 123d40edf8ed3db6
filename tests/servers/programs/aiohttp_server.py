"""The service by aiohttp.web: ``aiohttp_server.py PORT``. Its calls are aiohttp's too."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator

import aiohttp
import service
from aiohttp import web

CLIENT = web.AppKey("client", aiohttp.ClientSession)


async def client(app: web.Application) -> AsyncIterator[None]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as app[CLIENT]:
        yield


async def call(request: web.Request, number: str, which: int) -> None:
    async with request.app[CLIENT].get(service.call_url(number, which)) as answer:
        answer.raise_for_status()
        await answer.read()


async def calls(request: web.Request, number: str) -> None:
    await call(request, number, 0)
    await asyncio.gather(call(request, number, 1), call(request, number, 2))


async def chat(request: web.Request) -> web.StreamResponse:
    began = time.monotonic()
    number, asked = request.headers["x-request-id"], await request.json()
    await calls(request, number)
    if not asked.get("stream"):
        return web.json_response(service.completion(number, asked))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(service.role_event(number))
    service.report_first_token(number, began)
    await response.write(service.token_event(number))
    await call(request, number, 3)
    for _ in range(asked["max_tokens"] - 1):
        await asyncio.sleep(service.PAUSE_S)
        await response.write(service.token_event(number))
    await response.write(service.last_events(number, asked))
    await response.write_eof()
    return response


async def item(request: web.Request) -> web.Response:
    number = request.match_info["number"]
    await calls(request, number)
    return web.json_response({"number": number})


async def fail(request: web.Request) -> web.Response:
    await call(request, request.match_info["number"], 0)
    return web.json_response({"error": "as asked"}, status=500)


async def health(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


app = web.Application()
app.cleanup_ctx.append(client)
app.router.add_post("/v1/chat/completions", chat)
app.router.add_get("/items/{number}", item)
app.router.add_get("/fail/{number}", fail)
app.router.add_get("/health", health)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)
