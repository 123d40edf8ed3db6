"""Who reports series without end takes none from others, and not the agent's memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter

import pytest

from otelgpu.engine.metrics import SERIES
from tests.hostile.stage import MOST_RSS_BYTES, Stage, ends_in_time, resident_bytes
from tests.kernel.observing import read_metrics

MODELS = """
import json, os, socket, sys, time
def chunk(event):
    data = b"data: " + event + b"\\n\\n"
    return b"%x\\r\\n%s\\r\\n" % (len(data), data)
HEAD = b"HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n"
processes, models, pause_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
os.write(1, b"begun\\n")
for _ in range(processes - 1):
    if os.fork() == 0:
        break
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0models" + str(os.getpid()))
listener.listen()
client = socket.socket(socket.AF_UNIX)
client.connect(listener.getsockname())
server, _ = listener.accept()
for number in range(models):
    model = "model-%d-%d" % (os.getpid(), number)
    body = json.dumps({"model": model, "stream": True, "messages": []}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: m\\r\\nContent-Type: application/json\\r\\n"
    client.sendall(head + b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
    server.recv(65536)
    event = {"object": "chat.completion.chunk", "model": model, "choices": [{"index": 0, "delta": {"content": "a"}}]}
    server.sendall(HEAD + chunk(json.dumps(event).encode()))
    server.sendall(chunk(json.dumps(event).encode()) + chunk(b"[DONE]") + b"0\\r\\n\\r\\n")
    client.recv(65536)
    time.sleep(pause_s)
os.write(1, b"ended\\n")
time.sleep(60)
"""
PROCESSES, EACH = 10, 1100
VICTIMS = 20
METRICS = ("gen_ai.server.request.duration", "gen_ai.server.time_to_first_token")


@pytest.mark.alone(reason="floods the agent with requests: for seconds nobody else gets a processor")
def test_series_are_left_for_a_process_beside_others_that_report_them_without_end(stage: Stage) -> None:
    with stage.agent("--families=http", "--detail=phases") as agent:
        attacker = stage.attack_with(MODELS, str(PROCESSES), str(EACH), "0.012")
        assert attacker.stdout is not None
        for _ in range(PROCESSES):
            assert attacker.stdout.readline() == "ended\n"
        with subprocess.Popen(
            [*stage.victim, sys.executable, "-c", MODELS, "1", str(VICTIMS), "0.01"],
            stdout=subprocess.PIPE,
            text=True,
        ) as victim:
            assert victim.stdout is not None
            assert [victim.stdout.readline() for _ in range(2)] == ["begun\n", "ended\n"]
            time.sleep(1)
            most = resident_bytes(agent.process.pid, "VmHWM")
            ends_in_time(agent)
            victim.kill()
    metrics = read_metrics(stage.traces)
    of_victim = Counter(
        name
        for name in METRICS
        for point in metrics[name]
        if point["resource"]["process.pid"] == victim.pid and "gen_ai.request.model" in point["attributes"]
    )
    series = sum(map(len, metrics.values()))
    print(f"{series} series, {most / 2**20:.0f} MiB; of the victim: {dict(of_victim)}")
    assert of_victim == dict.fromkeys(METRICS, VICTIMS)
    assert SERIES // 2 < series < SERIES + 1000
    assert most < MOST_RSS_BYTES
