"""A server that shuts its side down and drains what the client had sent, as cpp-httplib does: no ghosts of requests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kernel.observing import read_spans, run_otelgpu

CONNECTIONS = 23
SERVER = """
import socket, sys, threading, time
how, connections = getattr(socket, sys.argv[1]), int(sys.argv[2])
ASKED = b"GET /answered HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n"
DRAINED = b"GET /drained HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n"
listener = socket.create_server(("127.0.0.1", 0))
def ask():
    for _ in range(connections):
        with socket.create_connection(listener.getsockname()) as client:
            client.sendall(ASKED)
            client.sendall(DRAINED * 2)
            while client.recv(4096):
                pass
asking = threading.Thread(target=ask)
asking.start()
drained = 0
for _ in range(connections):
    server, _ = listener.accept()
    with server:
        assert server.recv(len(ASKED)) == ASKED
        while len(server.recv(4096, socket.MSG_PEEK)) < 2 * len(DRAINED):
            time.sleep(0.001)
        server.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
        server.shutdown(how)
        while data := server.recv(4096):
            drained += len(data)
asking.join()
assert drained == connections * 2 * len(DRAINED), drained
"""


@pytest.mark.parametrize("how", ["SHUT_WR", "SHUT_RDWR"])
def test_what_a_server_drains_is_no_request(how: str, tmp_path: Path) -> None:
    out = tmp_path / "traces.jsonl"
    command = (sys.executable, "-c", SERVER, how, str(CONNECTIONS))
    done = run_otelgpu("run", "--families=http", f"--export=file:{out}", "--", *command)
    assert done.returncode == 0, done.stderr
    served = [span["attributes"] for span in read_spans(out) if span["kind"] == 2]
    assert [each["url.path"] for each in served] == ["/answered"] * CONNECTIONS
    assert {each.get("error.type") for each in served} == {None}
    assert {each["http.response.status_code"] for each in served} == {200}
