"""Who holds tens of thousands of idle connections hides nobody's requests."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.hostile.stage import MOST_RSS_BYTES, Stage, ends_in_time, resident_bytes
from tests.kernel.observing import read_metrics, read_spans

IDLE = """
import os, resource, signal, socket, sys
wanted = int(sys.argv[1])
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
each = min((most - 50) // 2, 10_000)
pipes = []
while wanted > 0:
    here, wanted = min(wanted, each), wanted - each
    ready, done = os.pipe()
    pipes.append(ready)
    if os.fork():
        os.close(done)
        continue
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\\0idle" + str(os.getpid()))
    listener.listen(64)
    held = []
    for _ in range(here):
        client = socket.socket(socket.AF_UNIX)
        client.connect(listener.getsockname())
        held += [client, listener.accept()[0]]
    os.write(done, b"x")
    signal.pause()
for ready in pipes:
    assert os.read(ready, 1)
os.write(1, b"begun\\n")
signal.pause()
"""
IDLE_CONNECTIONS = 72_000
"""Two entries each: more than the table has."""
VICTIM = """
import socket, sys, threading, time
listener = socket.create_server(("127.0.0.1", 0))
def answer(connection):
    with connection:
        while connection.recv(4096):
            connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
def serve():
    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],)).start()
threading.Thread(target=serve, daemon=True).start()
for number in range(int(sys.argv[1])):
    with socket.create_connection(listener.getsockname()) as connection:
        connection.sendall(b"GET /victim/%d HTTP/1.1\\r\\nHost: v\\r\\n\\r\\n" % number)
        assert connection.recv(4096)
    time.sleep(0.01)
"""
REQUESTS = 240
MOST_LAG_S = 1.0


@pytest.mark.alone(reason="holds a hundred thousand sockets, which take seconds to make")
def test_requests_are_seen_while_another_container_holds_idle_connections(stage: Stage) -> None:
    victim = [*stage.victim, sys.executable, "-c", VICTIM, str(REQUESTS)]
    with stage.agent("--families=http") as agent:
        stage.attack_with(IDLE, str(IDLE_CONNECTIONS))
        subprocess.run(victim, check=True, timeout=60)
        stage.end_attacks()  # what it held is taken out again
        time.sleep(3)
        assert resident_bytes(agent.process.pid, "VmHWM") < MOST_RSS_BYTES
        ends_in_time(agent)
    spans = [span for span in read_spans(stage.traces) if span["kind"] == 2]
    seen = {span["attributes"]["url.path"] for span in spans}
    metrics = read_metrics(stage.traces)
    (lag,) = metrics["otelgpu.loop.lag"]
    refused = sum(
        int(point["asInt"])
        for point in metrics["otelgpu.losses"]
        if "connection_share_spent" in point["attributes"].values()
    )
    print(f"{len(seen)} of {REQUESTS} seen, {refused} refused, lag {lag['asDouble']:.3f} s")
    assert seen == {f"/victim/{n}" for n in range(REQUESTS)}
    assert refused > 0
    assert lag["asDouble"] < MOST_LAG_S
