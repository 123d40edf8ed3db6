"""The service by Tornado: ``tornado_server.py PORT``. Its calls are of Tornado's own client, a connection each."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import service
from tornado.httpclient import AsyncHTTPClient
from tornado.iostream import StreamClosedError
from tornado.web import Application, RequestHandler

AsyncHTTPClient.configure(None, max_clients=1024)


async def call(number: str, which: int) -> None:
    await AsyncHTTPClient().fetch(service.call_url(number, which))


async def calls(number: str) -> None:
    await call(number, 0)
    await asyncio.gather(call(number, 1), call(number, 2))


class Chat(RequestHandler):
    async def post(self) -> None:
        began = time.monotonic()
        number, asked = self.request.headers["x-request-id"], json.loads(self.request.body)
        await calls(number)
        if not asked.get("stream"):
            self.write(service.completion(number, asked))
            return
        self.set_header("Content-Type", "text/event-stream")
        try:
            await self.send(service.role_event(number))
            service.report_first_token(number, began)
            await self.send(service.token_event(number))
            await call(number, 3)
            for _ in range(asked["max_tokens"] - 1):
                await asyncio.sleep(service.PAUSE_S)
                await self.send(service.token_event(number))
            await self.send(service.last_events(number, asked))
        except StreamClosedError:
            pass  # the client went

    async def send(self, event: bytes) -> None:
        self.write(event)
        await self.flush()


class Item(RequestHandler):
    async def get(self, number: str) -> None:
        await calls(number)
        self.write({"number": number})


class Fail(RequestHandler):
    async def get(self, number: str) -> None:
        await call(number, 0)
        self.set_status(500)
        self.write({"error": "as asked"})


class Health(RequestHandler):
    async def get(self) -> None:
        self.write({"status": "ok"})


async def main() -> None:
    routes = [
        (r"/v1/chat/completions", Chat),
        (r"/items/(\d+)", Item),
        (r"/fail/(\d+)", Fail),
        (r"/health", Health),
    ]
    Application(routes, log_function=lambda _: None).listen(int(sys.argv[1]), "127.0.0.1")
    await asyncio.Event().wait()


asyncio.run(main())
