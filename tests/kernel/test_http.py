"""HTTP as the kernel shows it: every pair of system calls, good and bad clients, big bodies, many connections."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from examples.llm_server.client import Load, Outcome, run
from tests.kernel.observing import OTELGPU, Session, Span, read_spans, requests
from tests.rig import ROOT, start_llm_server
from tests.rig.socket_server import BODY, PAIRS

GIBIBYTE = 1 << 30
COMPLETIONS = [(api, stream) for api in ("chat", "text") for stream in (True, False)]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[int, dict[str, int]]]:
    """The socket server: its process id, and its ports by pair of calls."""
    with subprocess.Popen(
        [sys.executable, str(ROOT / "tests/rig/socket_server.py")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.pid, json.loads(process.stdout.readline())
        process.kill()


@pytest.fixture(scope="module")
def session(
    server: tuple[int, dict[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    with Session(
        "attach", f"-p{server[0]}", traces=tmp_path_factory.mktemp("http") / "traces.jsonl"
    ) as found:
        yield found


@pytest.fixture
def ports(server: tuple[int, dict[str, int]], session: Session) -> dict[str, int]:
    return server[1]


def get(port: int, *paths: str, method: str = "GET", body: bytes | None = None) -> None:
    """Requests over one kept-alive connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for path in paths:
        connection.request(method, path, body)
        assert connection.getresponse().read() == BODY
    connection.close()


def spans_under(session: Session, prefix: str, count: int, limit_s: float = 10) -> list[Span]:
    """The requests whose path starts so, once there are `count` of them."""
    return session.spans(
        lambda span: span["attributes"].get("url.path", "").startswith(prefix), count, limit_s
    )


@pytest.mark.parametrize("pair", PAIRS)
def test_requests_are_seen_whichever_calls_move_them(
    session: Session, ports: dict[str, int], pair: str
) -> None:
    paths = [f"/plain/{pair}/1", f"/plain/{pair}/2", f"/slow/{pair}/3"]
    get(ports[pair], *paths)
    get(ports[pair], f"/plain/{pair}/4", method="POST", body=b"x" * 50_000)
    get(ports[pair], f"/close/{pair}/5")
    for kind, numbers in (("plain", "124"), ("slow", "3"), ("close", "5")):
        spans = spans_under(session, f"/{kind}/{pair}/", len(numbers))
        assert [span["attributes"]["url.path"][-1] for span in spans] == list(numbers)
        for span in spans:
            assert span["attributes"]["http.response.status_code"] == 200
            assert span["attributes"]["http.response.size"] > len(BODY)
            assert span["attributes"]["server.port"] == ports[pair]
            assert "error.type" not in span["attributes"], span
            assert span["end"] > span["start"]
        if kind == "slow":
            assert spans[0]["end"] - spans[0]["start"] > 40_000_000
    upload = spans_under(session, f"/plain/{pair}/4", 1)[0]
    assert upload["attributes"]["http.request.method"] == "POST"
    assert upload["attributes"]["http.request.size"] > 50_000


def test_more_parts_in_one_call_than_are_followed_are_counted_and_reported(
    session: Session, ports: dict[str, int]
) -> None:
    """128 are (VECTORS in capture.h). Where a chunked response ends is unknown then."""
    get(ports["recvmsg_into-many"], "/chunked/many/1")
    (span,) = spans_under(session, "/chunked/many/", 1)
    assert span["attributes"]["otelgpu.incomplete"] == "capture_gap"
    assert "error.type" not in span["attributes"]


@pytest.mark.parametrize("pair", sorted(PAIRS.keys() - {"recvmsg_into-many"}))
def test_chunked_responses_end_where_they_end(session: Session, ports: dict[str, int], pair: str) -> None:
    get(ports[pair], f"/chunked/{pair}/1", f"/plain/chunked-{pair}/2")
    (chunked,) = spans_under(session, f"/chunked/{pair}/", 1)
    (plain,) = spans_under(session, f"/plain/chunked-{pair}/", 1)
    assert chunked["end"] <= plain["start"]
    assert {s["attributes"]["http.response.status_code"] for s in (chunked, plain)} == {200}
    assert not any("error.type" in s["attributes"] for s in (chunked, plain))


def receive(connection: socket.socket, count: int) -> bytes:
    """The bytes of `count` responses."""
    data = b""
    while data.count(BODY) < count:
        chunk = connection.recv(65_536)
        assert chunk
        data += chunk
    return data


def test_chunked_uploads_are_read(session: Session, ports: dict[str, int]) -> None:
    with socket.create_connection(("127.0.0.1", ports["recv-send"])) as connection:
        connection.sendall(b"PUT /upload/chunked HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        for size in (1, 10, 1000, 70_000):
            connection.sendall(b"%x\r\n%s\r\n" % (size, b"y" * size))
        connection.sendall(b"0\r\n\r\n")
        receive(connection, 1)
    (span,) = spans_under(session, "/upload/chunked", 1)
    assert span["attributes"]["http.request.size"] > 71_000


def test_pipelined_requests_are_reported_apart(session: Session, ports: dict[str, int]) -> None:
    requests_sent = b"".join(b"GET /pipelined/%d HTTP/1.1\r\nHost: h\r\n\r\n" % n for n in range(7))
    with socket.create_connection(("127.0.0.1", ports["recv-send"])) as connection:
        connection.sendall(requests_sent)
        receive(connection, 7)
    spans = spans_under(session, "/pipelined/", 7)
    assert [span["attributes"]["url.path"][-1] for span in spans] == list("0123456")
    assert all(span["attributes"]["http.response.status_code"] == 200 for span in spans)


def test_a_request_in_single_bytes_is_one_request(session: Session, ports: dict[str, int]) -> None:
    with socket.create_connection(("127.0.0.1", ports["read-write"])) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET /bytes/1 HTTP/1.1\r\nHost: h\r\n\r\n":
            connection.sendall(bytes([byte]))
            time.sleep(0.0005)
        receive(connection, 1)
    (span,) = spans_under(session, "/bytes/1", 1)
    assert span["attributes"]["http.response.status_code"] == 200


def test_a_half_closed_connection_is_answered(session: Session, ports: dict[str, int]) -> None:
    with socket.create_connection(("127.0.0.1", ports["recv-send"])) as connection:
        connection.sendall(b"GET /half/closed HTTP/1.1\r\nHost: h\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        receive(connection, 1)
    (span,) = spans_under(session, "/half/closed", 1)
    assert span["attributes"]["http.response.status_code"] == 200


def test_a_request_that_is_broken_off_is_an_error(session: Session, ports: dict[str, int]) -> None:
    with socket.create_connection(("127.0.0.1", ports["recv-send"])) as connection:
        connection.sendall(b"POST /broken/off HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\nonly this")
        time.sleep(0.05)
    (span,) = spans_under(session, "/broken/off", 1)
    assert span["attributes"]["error.type"]
    assert span["status"]["code"] == 2


def test_what_is_not_http_is_left_alone(session: Session, ports: dict[str, int]) -> None:
    for garbage in (
        b"\x16\x03\x01\x02\x00\x01" + bytes(range(256)),
        bytes(range(256)) * 300,
        b"\n\n\n\n" * 1000,
        b"GARBAGE garbage GARBAGE " * 3000,
        b"GET\x00/ HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", ports["recv-send"])) as connection:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass
    get(ports["recv-send"], "/after/garbage")
    (span,) = spans_under(session, "/after/garbage", 1)
    assert span["attributes"]["http.response.status_code"] == 200


def test_a_gibibyte_passes(session: Session, ports: dict[str, int], tmp_path: Path) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(GIBIBYTE)
    began = time.monotonic()
    with (
        sparse.open("rb") as file,
        socket.create_connection(("127.0.0.1", ports["recv-send"])) as connection,
    ):
        connection.sendall(b"POST /big/upload HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % GIBIBYTE)
        sent = 0
        while sent < GIBIBYTE:
            sent += os.sendfile(connection.fileno(), file.fileno(), sent, min(GIBIBYTE - sent, 1 << 24))
        receive(connection, 1)
        connection.sendall(b"GET /big/after HTTP/1.1\r\nHost: h\r\n\r\n")  # the framing is still known
        receive(connection, 1)
    (upload,) = spans_under(session, "/big/upload", 1)
    (after,) = spans_under(session, "/big/after", 1)
    assert upload["attributes"]["http.request.size"] > GIBIBYTE
    assert {s["attributes"]["http.response.status_code"] for s in (upload, after)} == {200}
    assert time.monotonic() - began < 20


def test_five_hundred_connections_at_once(session: Session, ports: dict[str, int]) -> None:
    """While the agent gets no processor: what is captured of them fits into one process's share of the ring."""
    os.kill(session.process.pid, signal.SIGSTOP)
    try:
        connections = [socket.create_connection(("127.0.0.1", ports["recv-send"])) for _ in range(500)]
        for number, connection in enumerate(connections):
            connection.sendall(b"GET /many/%d HTTP/1.1\r\nHost: h\r\n\r\n" % number)
        for connection in connections:
            receive(connection, 1)
        for connection in connections:
            connection.close()
    finally:
        os.kill(session.process.pid, signal.SIGCONT)
    spans = spans_under(session, "/many/", 500, limit_s=20)
    paths = Counter(span["attributes"]["url.path"] for span in spans)
    assert paths == {f"/many/{number}": 1 for number in range(500)}
    assert {span["attributes"]["http.response.status_code"] for span in spans} == {200}


def test_a_connection_from_before_is_followed_from_its_next_request(
    server: tuple[int, dict[str, int]], tmp_path: Path
) -> None:
    pid, ports = server
    with socket.create_connection(("127.0.0.1", ports["recv-send"])) as connection:
        connection.sendall(b"GET /unseen/0 HTTP/1.1\r\nHost: h\r\n\r\n")
        receive(connection, 1)
        with Session("attach", f"-p{pid}", traces=tmp_path / "late.jsonl") as late:
            for number in (1, 2, 3):
                connection.sendall(b"GET /late/%d HTTP/1.1\r\nHost: h\r\n\r\n" % number)
                receive(connection, 1)
            spans = spans_under(late, "/late/", 3)
            address = connection.getsockname()
    assert [span["attributes"]["url.path"][-1] for span in spans] == list("123")
    for span in spans:
        assert span["attributes"]["http.response.status_code"] == 200
        assert span["attributes"]["client.port"] == address[1]
        assert span["attributes"]["server.port"] == ports["recv-send"]
    assert len(requests(read_spans(tmp_path / "late.jsonl"))) == 3


def test_a_connection_taken_in_the_middle_of_a_request_finds_its_feet(
    server: tuple[int, dict[str, int]], tmp_path: Path
) -> None:
    pid, ports = server
    with socket.create_connection(("127.0.0.1", ports["recv-send"])) as connection:
        connection.sendall(
            b"POST /middle/0 HTTP/1.1\r\nHost: h\r\nContent-Length: 20000\r\n\r\n" + b"z" * 10_000
        )
        time.sleep(0.1)
        with Session("attach", f"-p{pid}", traces=tmp_path / "middle.jsonl") as late:
            connection.sendall(b"z" * 10_000)
            receive(connection, 1)
            for number in (1, 2, 3):
                connection.sendall(b"GET /middle/%d HTTP/1.1\r\nHost: h\r\n\r\n" % number)
                receive(connection, 1)
            spans = spans_under(late, "/middle/3", 1)
    assert spans[0]["attributes"]["http.response.status_code"] == 200


def test_a_slow_client_does_not_stretch_other_requests(session: Session, ports: dict[str, int]) -> None:
    done = threading.Event()

    def dawdle() -> None:
        with socket.create_connection(("127.0.0.1", ports["recv-send"])) as connection:
            connection.sendall(b"GET /dawdling/1 HTTP/1.1\r\n")
            done.wait(10)
            connection.sendall(b"Host: h\r\n\r\n")
            receive(connection, 1)

    thread = threading.Thread(target=dawdle)
    thread.start()
    time.sleep(0.05)
    get(ports["recv-send"], "/quick/1")
    time.sleep(0.2)
    done.set()
    thread.join()
    (slow,) = spans_under(session, "/dawdling/1", 1)
    (quick,) = spans_under(session, "/quick/1", 1)
    assert quick["end"] < slow["end"]
    assert slow["end"] - slow["start"] > 200_000_000


# -- The example server --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Completed:
    """What clients got of each load, by API and whether it is streamed; and the spans of all, of one session."""

    outcomes: dict[tuple[str, bool], list[Outcome]]
    truth: set[str]
    spans: list[Span]


@pytest.fixture(scope="module")
def completed(tmp_path_factory: pytest.TempPathFactory) -> Completed:
    traces = tmp_path_factory.mktemp("completions") / "traces.jsonl"
    outcomes = {}
    with start_llm_server(prefix=(OTELGPU, "run", f"--export=file:{traces}", "--")) as server:
        for api, stream in COMPLETIONS:
            load = Load(
                url=server.url,
                requests=20,
                concurrency=2,  # over kept-alive connections
                stream=stream,
                max_tokens=5,
                api=api,
                model="example-7b",
                prompt="Hello, observer.",
                traceparent=True,
            )
            outcomes[api, stream] = run(load)
            run(replace(load, requests=2, model="broken", traceparent=False))
        lines = server.truth(20 * len(COMPLETIONS))
        truth = {line["id"] for line in lines if line["model"] == "example-7b"}
    return Completed(outcomes=outcomes, truth=truth, spans=requests(read_spans(traces)))


@pytest.mark.parametrize(("api", "stream"), COMPLETIONS)
def test_completions_report_model_tokens_and_reason(completed: Completed, api: str, stream: bool) -> None:
    operation = "chat" if api == "chat" else "text_completion"
    mine = [
        (span, span["attributes"])
        for span in completed.spans
        if span["attributes"].get("gen_ai.operation.name") == operation
        and span["attributes"]["gen_ai.request.stream"] == stream
    ]
    spans = {
        reported["gen_ai.response.id"]: span for span, reported in mine if "gen_ai.response.id" in reported
    }
    outcomes = completed.outcomes[api, stream]
    assert len(outcomes) == 20
    assert spans.keys() == {outcome.id for outcome in outcomes} <= completed.truth
    for outcome in outcomes:
        span = spans[outcome.id]
        reported = span["attributes"]
        assert span["name"] == f"{operation} example-7b"
        assert span["traceId"] == outcome.trace_id
        assert span["parentSpanId"]
        assert reported["gen_ai.request.model"] == reported["gen_ai.response.model"] == "example-7b"
        assert reported["gen_ai.usage.output_tokens"] == 5
        assert reported["gen_ai.usage.input_tokens"] > 0
        assert reported["gen_ai.response.finish_reasons"] == ("length",)
        assert reported["http.response.status_code"] == 200
        assert ("gen_ai.latency.time_to_first_token" in reported) == stream
    failed = [(span, reported) for span, reported in mine if reported["gen_ai.request.model"] == "broken"]
    assert [reported["http.response.status_code"] for _, reported in failed] == [500, 500]
    assert {span["status"]["code"] for span, _ in failed} == {2}
