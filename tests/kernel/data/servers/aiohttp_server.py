"""aiohttp.web: ``aiohttp_server.py [CERTIFICATE]``; a line with its port. With a certificate it speaks TLS."""

import asyncio
import socket
import ssl
import sys

import jobs
from aiohttp import web

routes = web.RouteTableDef()


@routes.get("/job/{number}")
async def job(request: web.Request) -> web.Response:
    number = int(request.match_info["number"])
    await jobs.work_async(number, asyncio.sleep)
    jobs.report(number)
    return web.Response(text=str(number))


@routes.post("/v1/chat/completions")
async def chat(request: web.Request) -> web.StreamResponse:
    asked = await request.json()
    number = asked["max_tokens"]
    if not asked.get("stream"):
        await jobs.work_async(number, asyncio.sleep)
        jobs.report(number, stream=False)
        return web.json_response(jobs.completion(number))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in jobs.events(number):
        await response.write(event.encode())
        await asyncio.sleep(jobs.PAUSE_S)
    await response.write_eof()
    return response


application = web.Application()
application.add_routes(routes)
tls = None
if len(sys.argv) > 1:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(sys.argv[1])
listening = socket.create_server(("127.0.0.1", 0), backlog=128)
print(listening.getsockname()[1], flush=True)
web.run_app(application, sock=listening, ssl_context=tls, print=lambda *_: None)
