"""Shares of the ring of family http: who fills it leaves room for others, in his container and beside it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np

from tests.kernel.observing import Watch

TALKER = """
import os, socket, sys
sys.stdin.readline()
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0talker" + str(os.getpid()))
listener.listen()
client = socket.socket(socket.AF_UNIX)
client.connect(listener.getsockname())
server, _ = listener.accept()
request = b"GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n" * int(sys.argv[2])
for _ in range(int(sys.argv[1])):
    client.sendall(request)
    server.recv(len(request))
    server.sendall(b"HTTP/1.1 204 No Content\\r\\n\\r\\n")
    client.recv(100)
"""
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"  # of TALKER
ANSWER = ("http_data_256", 27)
RING_BYTES = 1 << 20
ROUNDS = 7


def talker(rounds: int, requests: int) -> subprocess.Popen[bytes]:
    """A client and server, once it is told; ``requests`` in each of its messages."""
    return subprocess.Popen([sys.executable, "-c", TALKER, str(rounds), str(requests)], stdin=subprocess.PIPE)


def talk(*talkers: subprocess.Popen[bytes]) -> None:
    for each in talkers:
        each.communicate(b"\n", timeout=30)
        assert each.returncode == 0


def test_who_fills_the_ring_leaves_room_for_others() -> None:
    with Watch(families=("http",), ring_bytes=RING_BYTES) as watch:
        floods, neighbour = [talker(500, 600) for _ in range(3)], talker(ROUNDS, 1)
        watch.observe(*(each.pid for each in (*floods, neighbour)))
        watch.during(lambda: talk(*floods, neighbour), drain=False)
        tgids = watch.column("http_data_256", "chunk")["head"]["tgid"]
        assert np.count_nonzero(tgids == neighbour.pid) == 4 * ROUNDS
        assert watch.total("http", "ring_share_spent") > 1000
        assert watch.total("http", "ring_full") == 0
        # What was read is nobody's any more.
        watch.start_anew()
        again = talker(ROUNDS, 600)
        watch.observe(again.pid)
        watch.during(lambda: talk(again), drain=False)
        sizes = [len(watch.column(kind, "chunk")) for kind in ("http_data_256", "http_data_16k")]
        assert sum(sizes) == 4 * ROUNDS
        assert watch.total("http", "ring_share_spent") == 0


def test_a_chunk_takes_the_smallest_record_that_holds_it_and_up_to_8_kib_two() -> None:
    records = {
        9: {("http_data_256", 243): 2},
        10: {("http_data_1k", 270): 2},
        37: {("http_data_1k", 999): 2},
        38: {("http_data_4k", 1026): 2},
        151: {("http_data_4k", 4077): 2},
        152: {("http_data_4k", 4096): 2, ("http_data_256", 8): 2},
        303: {("http_data_4k", 4096): 2, ("http_data_4k", 4085): 2},
        304: {("http_data_16k", 8208): 2},
    }
    kinds = ("http_data_256", "http_data_1k", "http_data_4k", "http_data_16k")
    with Watch(families=("http",), ring_bytes=RING_BYTES) as watch:
        talkers = {requests: talker(1, requests) for requests in records}
        watch.observe(*(each.pid for each in talkers.values()))
        watch.during(lambda: talk(*talkers.values()))
        chunks = {kind: watch.column(kind, "chunk") for kind in kinds}
    for requests, program in talkers.items():
        found = Counter(
            (kind, int(captured))
            for kind, each in chunks.items()
            for captured in each["captured"][each["head"]["tgid"] == program.pid]
            if captured
        )
        assert found == {**records[requests], ANSWER: 2}, requests
