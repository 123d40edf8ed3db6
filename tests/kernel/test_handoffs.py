"""Tier wakeup on live programs: work given to a pool is its request's, and never another's."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kernel.observing import OTELGPU, Span, read_spans
from tests.rig import fake_cudart_path

pytestmark = pytest.mark.long

SERVER = Path(__file__).parent / "data" / "handoff_server.py"


def ask(port: int, first: int, requests: int, pause_s: float) -> None:
    """One after the other on a connection, each for a number of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for number in range(first, first + requests):
        connection.request("GET", f"/job/{number}")
        assert connection.getresponse().read()
        time.sleep(pause_s)
    connection.close()


def observed(
    folder: Path, way: str, workers: int, clients: int, requests: int, pause_s: float = 0.0
) -> tuple[int, int, int]:
    """Allocations whose trace is their request's, another's, and nobody's."""
    traces = folder / "traces.jsonl"
    command = [
        OTELGPU,
        "run",
        "--quiet",
        "--detail=all",
        f"--export=file:{traces}",
        "--",
        sys.executable,
        str(SERVER),
    ]
    with subprocess.Popen(
        [*command, way, str(workers), str(fake_cudart_path())], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        port = int(program.stdout.readline())
        time.sleep(0.5)  # the library was loaded while it ran: it has its probes by now
        with ThreadPoolExecutor(clients) as together:
            asked = [
                together.submit(ask, port, 10_000 * (client + 1), requests, pause_s)
                for client in range(clients)
            ]
            for done in asked:
                done.result()
        time.sleep(0.3)
        program.terminate()
        program.wait(20)
    return judged(read_spans(traces))


def judged(spans: list[Span]) -> tuple[int, int, int]:
    paths = {s["traceId"]: s["attributes"]["url.path"] for s in spans if "url.path" in s["attributes"]}
    right = wrong = nobodys = 0
    for span in spans:
        if span["name"] != "cudaMalloc":
            continue
        path = paths.get(span["traceId"])
        if path is None:
            nobodys += 1
        elif path == f"/job/{span['attributes']['cuda.size']}":
            assert span["attributes"]["otelgpu.context.source"] == "wakeup"
            right += 1
        else:
            wrong += 1
    return right, wrong, nobodys


@pytest.mark.parametrize("way", ["executor", "queue"])
def test_requests_that_come_apart_are_linked(way: str, tmp_path: Path) -> None:
    right, wrong, nobodys = observed(tmp_path, way, workers=4, clients=1, requests=40, pause_s=0.03)
    assert right + wrong + nobodys == 120
    # A pool starts a thread for the first, and a connection's thread wakes the one that started it.
    assert wrong == 0
    assert right >= 105  # and a worker that had not gone idle again is not woken


CALLS = {"nested": 6, "several": 9}
"""Allocations for a request, where they are not three."""


@pytest.mark.parametrize(
    ("way", "workers", "pause_s", "least"),
    [
        ("executor", 1, 0, 0.5),
        ("executor", 3, 0.2, 0.5),
        ("queue", 2, 0, 0.5),
        ("locks", 3, 0, 0.5),
        ("nested", 4, 0, 0.5),
        # What a thread waits for may be no result, or results come unreported: next to nothing is linked.
        ("shares", 8, 0, 0),
        ("between", 3, 0, 0),
        ("several", 4, 0, 0),
    ],
)
def test_however_many_at_once_none_is_linked_to_another(
    way: str, workers: int, pause_s: float, least: float, tmp_path: Path
) -> None:
    requests = 20 if pause_s else 60
    right, wrong, nobodys = observed(tmp_path, way, workers, clients=8, requests=requests, pause_s=pause_s)
    print(
        f"{way}, {workers} workers, {pause_s} s apart: {right} linked, {nobodys} unattributed, {wrong} wrong"
    )
    assert right + wrong + nobodys == 8 * requests * CALLS.get(way, 3)
    assert wrong == 0
    assert right >= least * (right + nobodys)


def test_what_is_done_for_several_at_once_is_nobodys(tmp_path: Path) -> None:
    right, wrong, nobodys = observed(tmp_path, "batch", workers=1, clients=8, requests=60)
    print(f"batches: {right} linked to one, {nobodys} unattributed, {wrong} wrong")
    assert wrong == 0
    assert right <= 0.1 * nobodys
