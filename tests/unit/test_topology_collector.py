"""A live Collector as the input of ``otelgpu topology``: what it counted, and what is said where it answers badly."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from otelgpu.cli import topology_collector
from otelgpu.cli.commands import cli
from tests.rig.cluster import Cluster
from tests.unit.topology.test_exposition import DATA

SERVED = (DATA / "servicegraph.txt").read_bytes()
PAIRS = [("front", "router", 7, 0), ("router", 'model "x"\\y', 7, 1), ("user", "front", 7, 0)]
Serve = Callable[[socket.socket], None]
Begin = Callable[..., str]


def topology(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["topology", *map(str, words)])


def answer(body: bytes, status: str = "200 OK", head: str = "") -> bytes:
    return f"HTTP/1.0 {status}\r\n{head}\r\n".encode() + body


def problem(result: Result) -> str:
    assert result.exit_code == 1
    return str(result.exception)


def pairs(document: str) -> list[tuple[str, str, int, int]]:
    calls = json.loads(document)["calls"]
    return [(each["client"], each["server"], each["calls"], each["errors"]) for each in calls]


@pytest.fixture
def serve() -> Iterator[Begin]:
    """A server that gives each connection one of the answers, the last one to all that follow; its address."""
    ends, threads = [], []

    def begin(*answers: bytes | Serve, path: bytes = b"/metrics") -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        ends.append(listener)

        def run() -> None:
            for number in range(100):
                try:
                    connection = listener.accept()[0]
                except OSError:
                    return
                with connection:
                    connection.settimeout(5)
                    assert connection.recv(1 << 16).startswith(
                        b"GET " + path + b" HTTP/1.0\r\nHost: 127.0.0.1:"
                    )
                    each = answers[min(number, len(answers) - 1)]
                    try:
                        connection.sendall(each) if isinstance(each, bytes) else each(connection)
                    except OSError:
                        continue  # the client has gone

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield begin
    for listener in ends:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join(10)


def test_calls_are_those_that_the_collector_counted(serve: Begin) -> None:
    url = serve(answer(SERVED))
    document = topology(url, "--json")
    assert (pairs(document.output), document.exit_code) == (PAIRS, 0)
    shown = topology(f"{url}/metrics").output
    assert shown.startswith("4 services\n")
    assert 'router → model "x"\\y: 7 requests, 1 failed, 8.0 ms on average' in shown
    assert "limit:" not in shown


def test_an_address_with_a_path_is_asked_there(serve: Begin) -> None:
    url = serve(answer(SERVED), path=b"/federate?match[]=x")
    assert pairs(topology(f"{url}/federate?match[]=x", "--json").output) == PAIRS


def test_what_several_collectors_counted_is_added(serve: Begin) -> None:
    document = topology(serve(answer(SERVED)), serve(answer(SERVED)), "--json").output
    assert pairs(document) == [
        (client, server, 2 * calls, 2 * errors) for client, server, calls, errors in PAIRS
    ]


def test_nodes_are_of_files_beside_it(serve: Begin, tmp_path: Path) -> None:
    lines = Cluster(nodes=2, gpus=1).write(tmp_path / "cluster.jsonl")
    document = topology(lines, serve(answer(SERVED)), "--json").output
    assert len(json.loads(document)["nodes"]) == 2
    spans = [
        ("front", "router", 20, 0),
        ("router", "model", 20, 1),
    ]  # where a pair is in both, its spans count
    assert sorted(pairs(document)) == sorted([*spans, *PAIRS[1:]])


def test_a_page_without_nodes_has_the_services(serve: Begin, tmp_path: Path) -> None:
    url = serve(answer(SERVED))
    assert topology(url, "-o", tmp_path / "page.html").exit_code == 0
    assert url.encode() in (tmp_path / "page.html").read_bytes()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"", "cannot be asked: it does not speak HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "cannot be asked: it does not speak HTTP"),
        (
            answer(b"", "302 Found", "Location: http://10.0.0.1/\r\n"),
            "answers 302; no redirection is followed",
        ),
        (answer(b"", "404 Not Found"), "answers 404"),
        (answer(b"<!DOCTYPE html>"), "answers with something else than Prometheus' text"),
        (answer(b"# TYPE up gauge\nup 1\n"), "the input names no host; http"),
        (answer(b""), "has no metrics of a service graph or of devices yet: collector-config/gateway.yaml"),
    ],
)
def test_what_it_says_in_place_of_calls_is_the_problem(serve: Begin, said: bytes, words: str) -> None:
    assert words in problem(topology(serve(said)))


@pytest.mark.parametrize("drip", [b"", b"#"])
def test_one_that_does_not_end_is_waited_for_no_longer_than_said(
    serve: Begin, monkeypatch: pytest.MonkeyPatch, drip: bytes
) -> None:
    monkeypatch.setattr(topology_collector, "SECONDS", 0.3)
    released = threading.Event()

    def drips(connection: socket.socket) -> None:
        while not released.wait(0.02):
            connection.sendall(drip)

    began_s = time.monotonic()
    result = topology(serve(drips))
    released.set()
    assert time.monotonic() - began_s < 5  # of a machine that is busy; without an end it would be all
    assert "cannot be asked: no answer within 0.3 s" in problem(result)


def test_of_an_answer_that_is_too_long_what_is_read_counts_and_that_is_said(
    serve: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = answer(SERVED)
    at = whole.index(b"} 7\n", whole.index(b"traces_service_graph_request_total{")) + 3
    monkeypatch.setattr(topology_collector, "LARGEST_BYTES", at + 100)
    document = json.loads(topology(serve(whole), "--json").output)
    assert [each["calls"] for each in document["calls"]] == [7]
    assert "its answer is cut" in document["limits"][0]
    assert document["rejected"] == {}  # the last line, of which there is a part


def test_nobody_there_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert "cannot be asked: Connection refused" in problem(topology(f"http://127.0.0.1:{port}"))


@pytest.mark.parametrize(
    "url",
    [
        *("https://", "http://", "http://:80", "http://127.0.0.1:99999", "http://127.0.0.1:x"),
        *(
            "http://[::1",
            "http://me:key@127.0.0.1",
            "http://127.0.0.1/a b",
            "http://127.0.0.1/#a",
            "http://a..b",
        ),
        *(
            "http://127.0.0.1/\r\nX: y",
            "http://b\u00fccher.example",
            f"http://{'x' * 64}",
            f"http://a/{'x' * 2048}",
        ),
    ],
)
def test_what_is_no_address_is_refused_and_no_secret_is_shown(url: str) -> None:
    said = problem(topology(url))
    assert "write http://HOST:PORT/metrics or https://" in said
    assert "key" not in said


def test_following_says_which_services_begin_to_call_and_waits_for_one_that_is_not_there_yet(
    serve: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = b"\n".join(line for line in SERVED.splitlines() if b'client="user"' in line)
    url = serve(answer(b"", "503 Service Unavailable"), answer(first), answer(SERVED))
    result = topology(url, "--follow", "--every", "1s", "--duration", "2s", "--json")
    assert result.exit_code == 0
    changes = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["state"], each["call"]["client"]) for each in changes] == [
        ("began", "user"),
        ("began", "front"),
        ("began", "router"),
    ]
    assert "waiting: " in result.stderr and "answers 503" in result.stderr
