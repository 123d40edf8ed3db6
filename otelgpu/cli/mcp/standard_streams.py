"""A server on standard input and output: messages are lines, and a line that has no end takes no more memory.

The SDK's own reader waits in a thread, which Ctrl-C does not end, for a line of any length; this one does neither.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import anyio
import anyio.lowlevel
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

LONGEST_LINE: Final = 1 << 20
"""Bytes of a message. One that is longer is passed over, which is logged: an answer to it never comes."""
_log = logging.getLogger("otelgpu.cli")
_PIECE: Final = 1 << 16


class Lines:
    """Lines of a file descriptor as text, until it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._can_wait = not stat.S_ISREG(os.fstat(descriptor).st_mode)

    def __aiter__(self) -> AsyncIterator[str]:
        return self._lines()

    async def _lines(self) -> AsyncIterator[str]:
        rest, is_cut = b"", False
        while piece := await self._read():
            *ended, begun = (rest + piece).split(b"\n")
            for line in ended:
                if is_cut or len(line) > LONGEST_LINE:
                    _pass_over()
                elif line.strip():
                    yield line.decode("utf-8", "replace")
                is_cut = False
            rest = begun
            if len(rest) > LONGEST_LINE:
                rest, is_cut = b"", True
        if is_cut:
            _pass_over()
        elif rest.strip():
            yield rest.decode("utf-8", "replace")

    async def _read(self) -> bytes:
        if self._can_wait:
            await anyio.wait_readable(self._descriptor)
        else:
            await anyio.lowlevel.checkpoint()
        return os.read(self._descriptor, _PIECE)


def _pass_over() -> None:
    _log.warning("a message of more than %d bytes was passed over", LONGEST_LINE)


async def serve_standard_streams(server: Server[Any]) -> None:
    """Until standard input ends. What is printed meanwhile, by whomever, goes to standard error."""
    lines = cast("anyio.AsyncFile[str]", Lines(sys.stdin.fileno()))
    async with stdio_server(stdin=lines) as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
