"""A streamed completion of a Go program whose client leaves: Go ends the response in due form, and it is no success."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.kernel.observing import Session
from tests.rig import ROOT

GO: Final = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
BODY: Final = json.dumps(
    {"model": "m", "stream": True, "messages": [{"role": "user", "content": "?"}]}
).encode()
REQUEST: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Its process id and port."""
    if GO is None:
        pytest.skip("needs go, which is not on PATH")
    program = tmp_path_factory.mktemp("go") / "stream"
    subprocess.run([GO, "build", "-o", program, ROOT / "tests/kernel/data/servers/go_stream.go"], check=True)
    with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.kill()


@pytest.mark.parametrize(
    ("leaving", "error", "tokens"),
    [
        ("stays", None, 20),
        ("ends its side", "connection_closed", None),
        ("closes", "connection_closed", None),
    ],
)
def test_a_response_that_go_ends_because_its_client_left_failed(
    server: tuple[int, int], tmp_path: Path, leaving: str, error: str | None, tokens: int | None
) -> None:
    pid, port = server
    with (
        Session("attach", f"-p{pid}", traces=tmp_path / "traces.jsonl") as session,
        socket.create_connection(("127.0.0.1", port), timeout=30) as client,
    ):
        client.sendall(REQUEST)
        received = b""
        while received.count(b"data:") < 3:
            received += client.recv(65536)
        if leaving == "ends its side":
            client.shutdown(socket.SHUT_WR)
        if leaving == "closes":
            client.close()
        else:
            while not received.endswith(b"\r\n0\r\n\r\n"):
                received += client.recv(65536)
        (span,) = session.spans(lambda span: "http.request.method" in span["attributes"], 1)
    reported = span["attributes"]
    assert reported["http.response.status_code"] == 200
    assert reported.get("error.type") == error
    if tokens is None:
        assert reported["gen_ai.usage.output_tokens"] < 20
        assert "gen_ai.response.finish_reasons" not in reported
    else:
        assert reported["gen_ai.usage.output_tokens"] == tokens
        assert reported["gen_ai.response.finish_reasons"] == ("stop",)
