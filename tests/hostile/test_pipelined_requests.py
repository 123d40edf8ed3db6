"""Who floods his own server with tiny pipelined requests slows nobody's agent, and hides nobody's requests."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.hostile.stage import MOST_RSS_BYTES, Stage, ends_in_time, resident_bytes
from tests.kernel.observing import read_metrics, read_spans

FLOOD = """
import contextlib, os, socket
REQUESTS = b"GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n" * 606
ANSWERS = b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n" * 303
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0flood" + str(os.getpid()))
listener.listen(64)
client = os.fork() == 0
if not client:
    print("begun", flush=True)
while True:
    if client:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(listener.getsockname())
    else:
        connection, _ = listener.accept()
    with connection, contextlib.suppress(OSError):
        for _ in range(4000):
            if client:
                connection.sendall(REQUESTS)
                connection.recv(65536)
            else:
                connection.recv(16384)
                connection.sendall(ANSWERS)
                connection.sendall(ANSWERS)
"""
VICTIM = """
import socket, sys, threading, time
listener = socket.create_server(("127.0.0.1", 0))
def serve():
    connection, _ = listener.accept()
    while connection.recv(4096):
        connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
threading.Thread(target=serve, daemon=True).start()
connection = socket.create_connection(listener.getsockname())
for number in range(int(sys.argv[1])):
    connection.sendall(b"GET /victim/%d HTTP/1.1\\r\\nHost: v\\r\\n\\r\\n" % number)
    assert connection.recv(4096)
    time.sleep(0.05)
"""
REQUESTS = 120
MOST_LAG_S = 2.0
"""On two processors that attackers keep busy; half a second of it is for parsing."""


@pytest.mark.alone(reason="floods the agent with requests: for seconds nobody else gets a processor")
def test_requests_are_seen_while_another_container_floods_its_own_server(stage: Stage) -> None:
    with stage.agent("--families=http") as agent:
        for _ in range(2):
            stage.attack_with(FLOOD)
        time.sleep(2)
        victim = [*stage.victim, sys.executable, "-c", VICTIM, str(REQUESTS)]
        subprocess.run(victim, check=True, timeout=60)
        assert resident_bytes(agent.process.pid, "VmHWM") < MOST_RSS_BYTES
        ends_in_time(agent)
    spans = [span for span in read_spans(stage.traces) if span["kind"] == 2]
    seen = [span for span in spans if span["attributes"].get("url.path", "").startswith("/victim/")]
    (lag,) = read_metrics(stage.traces)["otelgpu.loop.lag"]
    print(f"{len(seen)} of {REQUESTS} seen, {len(spans)} in all, lag {lag['asDouble']:.3f} s")
    assert lag["asDouble"] < MOST_LAG_S
    assert {span["attributes"]["url.path"] for span in seen} == {f"/victim/{n}" for n in range(REQUESTS)}
    assert not [span for span in seen if "error.type" in span["attributes"]]
