"""The service by grpc.aio: ``grpc_asyncio.py PORT``. Its calls are aiohttp's. See kserve.py."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import grpc.aio
import kserve
import service


class Service:
    def __init__(self, client: aiohttp.ClientSession) -> None:
        self._client = client

    async def infer(self, request: bytes, context: Any) -> bytes:
        model, number = await self._begin(request, context)
        if model == kserve.PATIENT:
            await asyncio.Event().wait()  # until the call is cancelled, and its task with it
        return kserve.infer_response(model, number, service.WORD * kserve.TOKENS)

    async def stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        began = time.monotonic()
        model, number = await self._begin(await anext(requests), context)
        token = kserve.stream_response(model, number, service.WORD)
        service.report_first_token(number, began)
        yield token
        if model == kserve.PATIENT:
            yield token
            await asyncio.Event().wait()
        await self._call(number, 3)
        for _ in range(kserve.TOKENS - 1):
            await asyncio.sleep(service.PAUSE_S)
            yield token

    async def live(self, _request: bytes, _context: Any) -> bytes:
        return b""

    async def _begin(self, request: bytes, context: Any) -> tuple[str, str]:
        model, number = kserve.asked(request)
        if model == kserve.FAILING:
            await self._call(number, 0)
            await context.abort(grpc.StatusCode.INTERNAL, "as asked")
        if model not in (kserve.TINY, kserve.PATIENT):
            await context.abort(grpc.StatusCode.NOT_FOUND, model)
        await self._call(number, 0)
        await asyncio.gather(self._call(number, 1), self._call(number, 2))
        return model, number

    async def _call(self, number: str, which: int) -> None:
        async with self._client.get(service.call_url(number, which)) as answer:
            answer.raise_for_status()
            await answer.read()


async def main() -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        served = Service(client)
        methods = {
            "ModelInfer": grpc.unary_unary_rpc_method_handler(served.infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(served.stream),
            "ServerLive": grpc.unary_unary_rpc_method_handler(served.live),
        }
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(kserve.SERVICE, methods),))
        server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
        await server.start()
        await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
