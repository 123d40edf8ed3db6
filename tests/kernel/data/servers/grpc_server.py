"""grpcio: ``grpc_server.py sync|aio``; a line with its port. A request is its number in text.

Methods of ``test.Jobs``: ``Job`` (unary) and ``Stream`` (a message after each of the request's calls).
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import jobs


class Sync:
    def Job(self, request: bytes, _: Any) -> bytes:
        jobs.work(int(request), time.sleep)
        jobs.report(int(request))
        return request

    def Stream(self, request: bytes, _: Any) -> Iterator[bytes]:
        for _ in range(jobs.CALLS):
            jobs.call(int(request))
            time.sleep(jobs.PAUSE_S)
            yield request
        jobs.report(int(request), stream=True)


class Aio:
    async def Job(self, request: bytes, _: Any) -> bytes:
        await jobs.work_async(int(request), asyncio.sleep)
        jobs.report(int(request))
        return request

    async def Stream(self, request: bytes, _: Any) -> AsyncIterator[bytes]:
        for _ in range(jobs.CALLS):
            jobs.call(int(request))
            await asyncio.sleep(jobs.PAUSE_S)
            yield request
        jobs.report(int(request), stream=True)


def add(server: Any, servicer: Sync | Aio) -> None:
    methods = {
        "Job": grpc.unary_unary_rpc_method_handler(servicer.Job),
        "Stream": grpc.unary_stream_rpc_method_handler(servicer.Stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Jobs", methods),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)


def serve_sync() -> None:
    server = grpc.server(ThreadPoolExecutor(8))
    add(server, Sync())
    server.start()
    server.wait_for_termination()


async def serve_aio() -> None:
    server = grpc.aio.server()
    add(server, Aio())
    await server.start()
    await server.wait_for_termination()


if sys.argv[1] == "aio":
    asyncio.run(serve_aio())
else:
    serve_sync()
