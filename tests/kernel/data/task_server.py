"""An asyncio server whose handlers interleave: /job/N makes cudaMalloc(N), and asks its backend for /called/N.

In: the way of serving, the port of the backend, the path of a libcudart. Out: a line with its port. It serves until
it is killed. The ways:

* `streams`: `asyncio.start_server`, a task for each connection.
* `after`: the same, and the task calls once more after each response, before it waits for the next request.
* `protocol`: callbacks read, and make a task for each request, as ASGI servers do.
* `children`: the same as `protocol`, and half of the work is done by tasks that the handler makes (`gather`).
* `background`: the same as `protocol`, and a call more after the response, in the same task and in one of its own.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys

WAY, BACKEND, LIBRARY = sys.argv[1], int(sys.argv[2]), sys.argv[3]
cudart = ctypes.CDLL(LIBRARY)
cudart.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
cudart.cudaFree.argtypes = [ctypes.c_void_p]
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ndone\n"
background: set[asyncio.Task[None]] = set()


def allocate(size: int) -> None:
    pointer = ctypes.c_void_p()
    assert cudart.cudaMalloc(ctypes.byref(pointer), size) == 0
    assert cudart.cudaFree(pointer) == 0


async def call(number: int) -> None:
    """Ask the backend, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", BACKEND)
    writer.write(f"GET /called/{number} HTTP/1.1\r\nHost: backend\r\nConnection: close\r\n\r\n".encode())
    await reader.read()
    writer.close()


async def work(number: int) -> None:
    allocate(number)
    await asyncio.sleep(0.001 * (number % 7))
    allocate(number)
    await call(number)
    allocate(number)


async def allocate_later(number: int) -> None:
    await asyncio.sleep(0.001 * (number % 5))
    allocate(number)


async def handle(number: int) -> None:
    await work(number)
    if WAY == "children":
        await asyncio.gather(*(allocate_later(number) for _ in range(3)))


def number_of(head: bytes) -> int:
    return int(head.split()[1].rpartition(b"/")[2])


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while head := await reader.readuntil(b"\r\n\r\n"):
        await handle(number_of(head))
        writer.write(RESPONSE)
        await writer.drain()
        if WAY == "after":
            allocate(number_of(head))
            await allocate_later(number_of(head))


async def serve_until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    if (
        task := asyncio.current_task()
    ) is not None:  # before 3.12 nobody else holds it: it could be collected
        background.add(task)
        task.add_done_callback(background.discard)
    try:
        await serve(reader, writer)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


class PerRequest(asyncio.Protocol):
    """Requests of a connection one after the other, each in a task of its own."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.received = b""
        self.waiting: list[int] = []
        self.is_busy = False

    def data_received(self, data: bytes) -> None:
        *heads, self.received = (self.received + data).split(b"\r\n\r\n")
        self.waiting += map(number_of, heads)
        self.begin()

    def begin(self) -> None:
        if self.waiting and not self.is_busy:
            self.is_busy = True
            self.keep(self.answer(self.waiting.pop(0)))

    def keep(self, coroutine: object) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)  # type: ignore[arg-type]
        background.add(task)
        task.add_done_callback(background.discard)

    async def answer(self, number: int) -> None:
        await handle(number)
        self.transport.write(RESPONSE)  # type: ignore[attr-defined]
        self.is_busy = False
        if WAY == "background":
            self.keep(allocate_later(number))
            self.begin()
            await allocate_later(number)
            return
        self.begin()


async def main() -> None:
    if WAY in ("streams", "after"):
        server = await asyncio.start_server(serve_until_closed, "127.0.0.1", 0, backlog=1024)
    else:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(PerRequest, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
