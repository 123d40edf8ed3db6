"""``otelgpu mcp`` by the SDK's own client: over standard streams and HTTP, in the oldest and the newest revision."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest
from click.testing import CliRunner

pytest.importorskip("mcp", reason="needs the MCP SDK: pip install 'otelgpu[mcp]'")

import httpx2
from mcp import Client, MCPError
from mcp.client import session as client_session
from mcp.types import LATEST_PROTOCOL_VERSION

from otelgpu.cli.commands import cli
from otelgpu.cli.mcp import command as mcp_command
from otelgpu.cli.mcp.server import make_server
from otelgpu.cli.mcp.standard_streams import LONGEST_LINE, Lines
from otelgpu.errors import OtelgpuError
from tests.rig import ROOT
from tests.unit.mcp.served import (
    TOKEN,
    command,
    environment,
    given,
    listening,
    over_http,
    over_streams,
    toolbox,
)
from tests.unit.view.otlp_lines import span, traces

OLDEST = "2024-11-05"

pytestmark = pytest.mark.slow  # each starts a server


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "x.jsonl"
    path.write_bytes(traces(span(1, "GET /slow", kind=2, ns=9_000_000), span(2, "GET /fast", kind=2)))
    return path


@pytest.fixture(scope="module")
def address(lines: Path) -> Iterator[str]:
    """Of one server over HTTP: to import the SDK takes more than a second."""
    with listening(lines) as found:
        yield found


@pytest.fixture
def oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client offers no newer revision."""
    monkeypatch.setattr(client_session, "LATEST_HANDSHAKE_VERSION", OLDEST)


async def look_through(client: Client, path: Path) -> None:
    """As every client can."""
    tools = (await client.list_tools()).tools
    assert tools[0].name == "list_inputs"
    assert "profile" not in {tool.name for tool in tools}  # without --allow-profile
    found = given(await client.call_tool("list_inputs", {}))
    assert [each["name"] for each in found["result"]["inputs"]] == [str(path)]
    requests = given(await client.call_tool("list_requests", {"input": str(path)}))["result"]
    assert [each["name"] for each in requests["requests"]] == ["GET /slow", "GET /fast"]
    wrong = await client.call_tool("list_requests", {"input": "/etc/passwd"})
    assert wrong.is_error and "there is no input" in wrong.content[0].text  # type: ignore[union-attr]
    for name, arguments in (("delete_everything", {}), ("profile", {"pid": os.getpid()})):
        with pytest.raises(MCPError, match="there is no tool"):
            await client.call_tool(name, arguments)


@pytest.mark.parametrize("transport", ["streams", "http"])
@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_newest_revisions_over(transport: str, mode: str, lines: Path, address: str) -> None:
    async def run() -> None:
        opened = over_http(address, mode) if transport == "http" else over_streams(lines, mode=mode)
        async with opened as client:
            assert client.protocol_version == (LATEST_PROTOCOL_VERSION if mode == "auto" else "2025-11-25")
            assert client.server_info is not None and client.server_info.name == "otelgpu"
            await look_through(client, lines)

    anyio.run(run)


@pytest.mark.parametrize("transport", ["streams", "http"])
def test_the_oldest_revision_over(transport: str, lines: Path, address: str, oldest: None) -> None:
    async def run() -> None:
        opened = over_http(address, "legacy") if transport == "http" else over_streams(lines, mode="legacy")
        async with opened as client:
            assert client.protocol_version == OLDEST
            await look_through(client, lines)

    anyio.run(run)


def test_tools_declare_types_and_that_they_only_read(tmp_path: Path, lines: Path) -> None:
    async def run() -> None:
        async with Client(make_server(toolbox(tmp_path / "t", lines, profiles=True))) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            for tool in tools.values():
                for schema in (tool.input_schema, tool.output_schema):
                    assert schema is not None and schema["type"] == "object"
                    jsonschema.Draft202012Validator.check_schema(schema)
                assert tool.input_schema["additionalProperties"] is False
                assert tool.annotations is not None and tool.annotations.destructive_hint is False
                assert tool.annotations.open_world_hint is False
            reads = {
                name for name, tool in tools.items() if tool.annotations and tool.annotations.read_only_hint
            }
            assert set(tools) - reads == {"profile"}

    anyio.run(run)


def post(address: str, **headers: str) -> httpx2.Response:
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}}
    accepted = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    return httpx2.post(address, json=message, headers={**accepted, **headers}, timeout=30)


BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"Authorization": f"Bearer {TOKEN}x"}, 401),
        ({"Authorization": f"Bearer {TOKEN}", "Host": "evil.example"}, 421),
        ({"Authorization": f"Bearer {TOKEN}", "Host": "127.0.0.1:1"}, 421),
        ({"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"}, 403),
        ({"Authorization": f"Bearer {TOKEN}", "Origin": "null"}, 403),
        ({"Authorization": f"Bearer {TOKEN}", "Content-Type": "text/plain"}, 400),
    ],
    ids=str,
)
def test_who_has_no_token_or_comes_from_elsewhere_gets_nothing(
    address: str, headers: dict[str, str], status: int
) -> None:
    answer = post(address, **headers)
    assert answer.status_code == status, answer.text
    assert "otelgpu" not in answer.text and "jsonl" not in answer.text


def test_our_own_origin_is_let_in_and_a_large_request_is_not(address: str) -> None:
    assert post(address, **BEARER, Origin=address.removesuffix("/mcp")).status_code < 401
    large = httpx2.post(address, content=b" " * (2 << 20), headers=BEARER, timeout=30)
    assert large.status_code == 413
    assert httpx2.get(address.removesuffix("/mcp"), headers=BEARER).status_code == 404


def test_a_token_is_made_where_none_is_given_and_it_listens_on_loopback(lines: Path) -> None:
    plain = {key: value for key, value in environment().items() if key != "OTELGPU_MCP_TOKEN"}
    server = subprocess.Popen(
        command(lines, "--http", "127.0.0.1:0"), stdout=subprocess.PIPE, text=True, cwd=ROOT, env=plain
    )
    with server:
        assert server.stdout is not None
        url, header = server.stdout.readline().strip(), server.stdout.readline().strip()
        name, _, value = header.partition(": ")
        assert url.startswith("http://127.0.0.1:") and len(value) > 30
        assert post(url).status_code == 401
        assert post(url, **{name: value}).status_code != 401
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_standard_streams_end_by_a_signal(number: signal.Signals, lines: Path) -> None:
    """That they end with their input, the test of what is no message shows."""
    server = subprocess.Popen(
        command(lines), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment()
    )
    with server:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(_message("ping"))
        server.stdin.flush()
        assert json.loads(server.stdout.readline())["id"] == 1
        server.send_signal(number)
        assert server.wait(30) == 0


def test_what_is_no_message_is_answered_or_passed_over_and_the_next_one_is_served(lines: Path) -> None:
    hostile = [
        b"not json",
        b"[]",
        b"\xff\xfe\x00",
        b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": 5}}',
        b"[" * 100_000,
        b" " * 10,
        b"x" * (LONGEST_LINE + 100),
        json.dumps({"jsonrpc": "2.0", "id": 8, "method": "x" * 10_000}).encode(),
    ]
    server = subprocess.Popen(
        command(lines),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment(),
    )
    with server:
        assert server.stdin is not None and server.stdout is not None and server.stderr is not None
        server.stdin.write(b"\n".join([*hostile, _message("ping")]))
        server.stdin.flush()
        answers = [json.loads(server.stdout.readline())]
        while answers[-1].get("id") != 1:
            answers.append(json.loads(server.stdout.readline()))
        server.stdin.close()
        assert server.wait(30) == 0 and b"Traceback" not in server.stderr.read()
    assert "result" in answers[-1]
    assert all("error" in each for each in answers[:-1])


def _message(method: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}).encode() + b"\n"


@pytest.mark.parametrize(
    ("end", "read"), [(b"\n\n  \nlast, without an end", ["first", "last, without an end"]), (b"", ["first"])]
)
@pytest.mark.parametrize("length", [LONGEST_LINE + 1, 3 * LONGEST_LINE])
def test_a_line_that_is_too_long_is_passed_over_whole_and_logged(
    end: bytes, read: list[str], length: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in").write_bytes(b"first\n" + b"x" * length + end)

    async def run() -> list[str]:
        with (tmp_path / "in").open("rb") as file:
            return [line async for line in Lines(file.fileno())]

    assert anyio.run(run) == read
    assert caplog.messages == [f"a message of more than {LONGEST_LINE} bytes was passed over"]


def test_without_the_sdk_it_says_how_to_get_it(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_command, "find_spec", lambda name: None)
    done = CliRunner().invoke(cli, ["mcp", str(lines)])
    assert isinstance(done.exception, OtelgpuError)
    assert done.exception.hint == "pip install 'otelgpu[mcp]'"


def test_a_token_that_is_easily_guessed_is_refused(lines: Path) -> None:
    for wrong in ("short", "with spaces in it, and long", "schön-schön-schön"):
        done: Any = CliRunner().invoke(
            cli, ["mcp", str(lines), "--http", "0"], env={"OTELGPU_MCP_TOKEN": wrong}
        )
        assert isinstance(done.exception, OtelgpuError) and "is no token" in str(done.exception)
