"""A server and a client of the official SDK: in one process, over standard streams, or over HTTP."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult

from otelgpu.cli.mcp.inputs import Inputs
from otelgpu.cli.mcp.recordings import Recordings
from otelgpu.cli.mcp.session import Session
from otelgpu.cli.mcp.tools import OBSERVING, READING, Toolbox
from otelgpu.cli.rule_files import known_rules
from tests.rig import ROOT

TOKEN: Final = "a-token-of-the-tests-alone"
_DATA: Final = re.compile(r"<(recorded-data-[0-9a-f]{16})>\n(.*)\n</\1>", re.DOTALL)


installed_rules = cache(known_rules)


def toolbox(folder: Path, *inputs: str | Path, profiles: bool = False) -> Toolbox:
    """The tools on inputs, without the protocol. ``folder``: for what is made."""
    folder.mkdir(exist_ok=True)
    found = Inputs(inputs)
    session = Session(
        inputs=found, recordings=Recordings(found, folder), rules=installed_rules(), folder=folder
    )
    return Toolbox(session, (*READING, *OBSERVING) if profiles else READING)


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "otelgpu", "mcp", *map(str, words)]


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        **more,
    }


@asynccontextmanager
async def over_streams(*words: str | Path, mode: str = "auto") -> AsyncIterator[Client]:
    program, *arguments = command(*words)
    server = StdioServerParameters(command=program, args=arguments, env=environment(), cwd=ROOT)
    async with Client(server, mode=mode, read_timeout_seconds=120) as client:
        yield client


@contextmanager
def listening(*words: str | Path) -> Iterator[str]:
    """A server over HTTP, with :data:`TOKEN`; its address."""
    with subprocess.Popen(
        command(*words, "--http", "127.0.0.1:0"),
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(OTELGPU_MCP_TOKEN=TOKEN),
    ) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()
            server.wait(30)


@asynccontextmanager
async def over_http(address: str, mode: str = "auto") -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(address, http_client=http), mode=mode) as client,
    ):
        yield client


def given(result: CallToolResult) -> Mapping[str, Any]:
    """An answer, by its text, which every revision of the protocol has; where it has a structure, that is the same."""
    assert not result.is_error, result.content
    (block,) = result.content
    assert block.type == "text"
    match = _DATA.search(block.text)
    assert match is not None
    found: Mapping[str, Any] = json.loads(match[2])
    assert result.structured_content in (None, found)
    return found
