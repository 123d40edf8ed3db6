"""The service by Sanic: ``sanic_server.py PORT``. Its calls are httpx's; its loop is uvloop."""

from __future__ import annotations

import asyncio
import sys
import time

import httpx
import service
from sanic import HTTPResponse, Request, Sanic, json

app = Sanic("service", configure_logging=False)


@app.before_server_start
async def start(app: Sanic) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    app.ctx.client = httpx.AsyncClient(limits=limits, timeout=None, trust_env=False)  # as in asgi.py


async def call(number: str, which: int) -> None:
    (await app.ctx.client.get(service.call_url(number, which))).raise_for_status()


async def calls(number: str) -> None:
    await call(number, 0)
    await asyncio.gather(call(number, 1), call(number, 2))


@app.post("/v1/chat/completions")
async def chat(request: Request) -> HTTPResponse | None:
    began = time.monotonic()
    number, asked = request.headers["x-request-id"], request.json
    await calls(number)
    if not asked.get("stream"):
        return json(service.completion(number, asked))
    response = await request.respond(content_type="text/event-stream")
    await response.send(service.role_event(number))
    service.report_first_token(number, began)
    await response.send(service.token_event(number))
    await call(number, 3)
    for _ in range(asked["max_tokens"] - 1):
        await asyncio.sleep(service.PAUSE_S)
        await response.send(service.token_event(number))
    await response.send(service.last_events(number, asked))
    await response.eof()
    return None


@app.get("/items/<number>")
async def item(request: Request, number: str) -> HTTPResponse:
    await calls(number)
    return json({"number": number})


@app.get("/fail/<number>")
async def fail(request: Request, number: str) -> HTTPResponse:
    await call(number, 0)
    return json({"error": "as asked"}, status=500)


@app.get("/health")
async def health(request: Request) -> HTTPResponse:
    return json({"status": "ok"})


if __name__ == "__main__":
    app.run(host="127.0.0.1", port=int(sys.argv[1]), single_process=True, access_log=False, motd=False)
