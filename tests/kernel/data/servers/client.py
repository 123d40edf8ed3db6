"""A client of the servers beside this file: ``client.py HOW FIRST TOGETHER EACH URL [FLAGS]``.

EACH requests one after the other on each of TOGETHER connections, numbered from FIRST. HOW: ``http`` (http.client),
``aiohttp``, ``openai`` (chat completions, every second one streamed), ``grpc`` (every second one streamed). FLAGS: of
the ``traceparent`` that ``http`` then sends.

It fails if one is not answered as it should be.
"""

import asyncio
import http.client
import ssl
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

HOW, URL = sys.argv[1], sys.argv[5]
FIRST, TOGETHER, EACH = map(int, sys.argv[2:5])
FLAGS = sys.argv[6] if len(sys.argv) > 6 else ""
trusting = ssl.create_default_context()
trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE


def numbers(connection: int) -> range:
    return range(FIRST + connection * EACH, FIRST + (connection + 1) * EACH)


def above(number: int) -> dict[str, str]:
    return {"traceparent": f"00-{number:032x}-{number:016x}-{FLAGS}"} if FLAGS else {}


def in_threads(ask: Callable[[int], None]) -> None:
    start = threading.Barrier(TOGETHER)

    def begin(connection: int) -> None:
        start.wait()
        ask(connection)

    with ThreadPoolExecutor(TOGETHER) as pool:
        list(pool.map(begin, range(TOGETHER)))


def ask_http(connection: int) -> None:
    parts = urlsplit(URL)
    assert parts.hostname is not None
    if parts.scheme == "https":
        to = http.client.HTTPSConnection(parts.hostname, parts.port, context=trusting)
    else:
        to = http.client.HTTPConnection(parts.hostname, parts.port)
    for number in numbers(connection):
        to.request("GET", f"/job/{number}", headers=above(number))
        assert int(to.getresponse().read()) == number
    to.close()


async def ask_aiohttp() -> None:
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as session:

        async def ask(connection: int) -> None:
            for number in numbers(connection):
                async with session.get(f"{URL}/job/{number}") as response:
                    assert int(await response.text()) == number

        await asyncio.gather(*map(ask, range(TOGETHER)))


def ask_openai(connection: int) -> None:
    import httpx
    from openai import OpenAI

    client = OpenAI(base_url=f"{URL}/v1", api_key="none", http_client=httpx.Client(verify=False))
    for number in numbers(connection):
        asked = client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "report me"}],
            max_tokens=number,
            stream=bool(number % 2),
        )
        ids = {chunk.id for chunk in asked} if number % 2 else {asked.id}
        assert ids == {f"chatcmpl-{number}"}
    client.close()


def ask_grpc(connection: int) -> None:
    import grpc

    option = [("grpc.use_local_subchannel_pool", 1)]  # a connection each
    with grpc.insecure_channel(URL, option) as channel:
        unary, stream = channel.unary_unary("/test.Jobs/Job"), channel.unary_stream("/test.Jobs/Stream")
        for number in numbers(connection):
            asked, more = b"%d" % number, [*above(number).items()]
            said = list(stream(asked, metadata=more)) if number % 2 else [unary(asked, metadata=more)]
            assert set(map(int, said)) == {number}


if HOW == "aiohttp":
    asyncio.run(ask_aiohttp())
else:
    in_threads({"http": ask_http, "openai": ask_openai, "grpc": ask_grpc}[HOW])
