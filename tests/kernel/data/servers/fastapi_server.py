"""FastAPI under uvicorn: ``fastapi_server.py PROTOCOL LOOP HANDLERS``; a line with its port.

PROTOCOL: h11 or httptools. LOOP: asyncio or uvloop. HANDLERS: of /job: ``async`` (on the event loop), ``sync`` (in
Starlette's pool), ``background`` (on the event loop, a while after the answer), or ``traced`` (async, under a SERVER
span of opentelemetry-sdk that continues the caller's trace; FastAPI adds spans of its own below that).
/v1/chat/completions is always async.
"""

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import jobs
import uvicorn
from fastapi import BackgroundTasks, FastAPI, Request
from fastapi.responses import StreamingResponse

PROTOCOL, LOOP, HANDLERS = sys.argv[1:4]
app = FastAPI()

if HANDLERS == "sync":

    @app.get("/job/{number}")
    def job(number: int) -> int:
        jobs.work(number, time.sleep)
        jobs.report(number)
        return number

elif HANDLERS == "async":

    @app.get("/job/{number}")
    async def job(number: int) -> int:
        await jobs.work_async(number, asyncio.sleep)
        jobs.report(number)
        return number

elif HANDLERS == "background":

    async def work_on(number: int) -> None:
        await asyncio.sleep(jobs.PAUSE_S)
        await jobs.work_async(number, asyncio.sleep)
        jobs.report(number)

    @app.get("/job/{number}")
    async def job(number: int, after: BackgroundTasks) -> int:
        await asyncio.sleep(jobs.CALLS * jobs.PAUSE_S)
        after.add_task(work_on, number)
        return number

else:
    from opentelemetry import trace
    from opentelemetry.propagate import extract
    from opentelemetry.sdk.trace import TracerProvider

    trace.set_tracer_provider(TracerProvider())
    tracer = trace.get_tracer("fastapi_server")

    @app.middleware("http")
    async def instrument(request: Request, answer: Any) -> Any:
        above = extract(request.headers)
        with tracer.start_as_current_span(request.url.path, context=above, kind=trace.SpanKind.SERVER):
            return await answer(request)

    @app.get("/job/{number}")
    async def job(number: int) -> int:
        with tracer.start_as_current_span("work") as span:
            ids = span.get_span_context()
            await jobs.work_async(number, asyncio.sleep)
        jobs.report(number, trace=f"{ids.trace_id:032x}", span=f"{ids.span_id:016x}")
        return number


@app.post("/v1/chat/completions")
async def chat(request: dict[str, Any]) -> Any:
    number = request["max_tokens"]
    if not request.get("stream"):
        await jobs.work_async(number, asyncio.sleep)
        jobs.report(number, stream=False)
        return jobs.completion(number)

    async def body() -> AsyncIterator[str]:
        for event in jobs.events(number):
            yield event
            await asyncio.sleep(jobs.PAUSE_S)

    return StreamingResponse(body(), media_type="text/event-stream")


listening = socket.create_server(("127.0.0.1", 0), backlog=128)
print(listening.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, http=PROTOCOL, loop=LOOP, log_level="warning")).run([listening])
