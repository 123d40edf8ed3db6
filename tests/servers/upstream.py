"""What the servers ask while they serve: ``upstream.py FILE`` prints its port; each call's path goes to the file.

It answers every request after some milliseconds, on connections that are kept.
"""

from __future__ import annotations

import asyncio
import random
import sys
from functools import partial
from pathlib import Path
from typing import Final, TextIO

_PAUSES_S: Final = (0.003, 0.006)
_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


async def answer(calls: TextIO, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve a connection until its client closes it."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            path = head.split(b" ", 2)[1].decode()
            await asyncio.sleep(random.uniform(*_PAUSES_S))
            print(path, file=calls, flush=True)
            writer.write(_ANSWER)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    """Serve until killed."""
    with Path(sys.argv[1]).open("a") as calls:
        serve = partial(answer, calls)
        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
