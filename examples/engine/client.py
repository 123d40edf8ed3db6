"""The API process' end of the sockets: requests to the engine, each step's outputs to whoever waits for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import zmq
import zmq.asyncio

from engine.core import IDENTITY
from engine.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, RequestType


class EngineClient:
    """One engine. Used by one event loop."""

    def __init__(self, input_address: str, output_address: str) -> None:
        context = zmq.asyncio.Context()
        self._input = context.socket(zmq.ROUTER)
        self._input.bind(input_address)
        self._output = context.socket(zmq.PULL)
        self._output.bind(output_address)
        self._waiting: dict[str, asyncio.Queue[EngineCoreOutput]] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._reader: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Wait for the engine's first word."""
        await self._input.recv_multipart()
        self._reader = asyncio.create_task(self._read())

    async def generate(self, request: EngineCoreRequest) -> AsyncIterator[EngineCoreOutput]:
        """Send a request and yield its outputs; a caller that leaves early aborts it."""
        outputs = self._waiting[request.request_id] = asyncio.Queue()
        finished = False
        try:
            await self._send(RequestType.ADD, self._encoder.encode(request))
            while not finished:
                output = await outputs.get()
                finished = output.finish_reason is not None
                yield output
        finally:
            del self._waiting[request.request_id]
            if not finished:
                await self._send(RequestType.ABORT, self._encoder.encode([request.request_id]))

    async def close(self) -> None:
        """Let go of the sockets."""
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
        self._input.close(0)
        self._output.close(0)

    async def _send(self, kind: RequestType, payload: bytes) -> None:
        await self._input.send_multipart((IDENTITY, kind.value, payload), copy=False)

    async def _read(self) -> None:
        decoder = msgspec.msgpack.Decoder(EngineCoreOutputs)
        while True:
            step = decoder.decode(await self._output.recv())
            for output in step.outputs:
                if (outputs := self._waiting.get(output.request_id)) is not None:
                    outputs.put_nowait(output)
