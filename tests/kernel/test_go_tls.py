"""HTTPS of a stripped Go program, in clear: bpf/http/go_tls.h. Goroutines' stacks grow, and garbage is collected."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otelgpu.check.inspection import ProcessInspector
from tests.kernel.captured_connections import (
    READ,
    SERVER,
    SOCKET,
    TLS,
    WRITE,
    CapturedConnection,
    captured_connections,
)
from tests.kernel.observing import OTELGPU, WAIT_S, Watch, read_spans, requests
from tests.kernel.test_connection_tables import counted, entries
from tests.rig.certificates import make_certificate
from tests.rig.go_servers import build_https_server

LOADS = (1, 8, 64)  # at once
COUNT = 100
CLIENT = 3  # SpanKind
VERSIONS = ("1.1", "2")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/rig/serve_https.go, stripped, as release builds are."""
    return build_https_server(tmp_path_factory.mktemp("go"))


@contextlib.contextmanager
def serving(*command: object) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A program that prints its port, and ends when its stdin does."""
    process = subprocess.Popen(
        list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.communicate(timeout=60)
    assert process.returncode == 0


def asking(program: Path, port: int, count: int, at_once: int, *how: str) -> subprocess.Popen[str]:
    """So many requests, each of whose answers is checked by who asks."""
    command = [program, "ask", str(port), str(count), str(at_once), *how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def ask(program: Path, port: int, count: int, at_once: int, *how: str) -> None:
    with asking(program, port, count, at_once, *how) as asked:
        wrong, _ = asked.communicate(timeout=100)
    assert (wrong, asked.returncode) == ("0\n", 0)


@pytest.mark.parametrize("tunnelled", [(), ("tunnelled",)], ids=["plain", "tunnelled"])
def test_each_request_is_seen_once_with_its_status(
    program: Path, certificate: Path, tmp_path: Path, tunnelled: tuple[str, ...]
) -> None:
    traces = tmp_path / "traces.jsonl"
    command = (OTELGPU, "run", "--quiet", "--families=http", f"--export=file:{traces}", "--", program)
    with serving(*command, "serve", certificate, *tunnelled) as (_, port):
        for version in VERSIONS:
            for at_once in LOADS:
                ask(program, port, COUNT, at_once, version, *tunnelled)
    seen = [span["attributes"] for span in requests(read_spans(traces))]
    assert Counter(
        (each["network.protocol.version"], int(each["url.path"][1:]), each["http.response.status_code"])
        for each in seen
    ) == {
        (version, number, 200 if number % 5 else 404): len(LOADS)
        for number in range(1, COUNT + 1)
        for version in VERSIONS
    }
    if not tunnelled:  # there is no socket beneath
        assert {each["server.port"] for each in seen} == {port}
        assert all("client.port" in each for each in seen)


def test_a_connection_that_is_closed_while_its_response_is_written_has_the_status(
    program: Path, certificate: Path, tmp_path: Path
) -> None:
    """As HTTP/2 does when its client is gone: what is written is reported when that call returns, after the close."""
    traces = tmp_path / "traces.jsonl"
    command = (OTELGPU, "run", "--quiet", "--families=http", f"--export=file:{traces}", "--", program)
    trusting = ssl.create_default_context(cafile=certificate)
    trusting.check_hostname = False
    with (
        serving(*command, "serve", certificate) as (process, port),
        socket.create_connection(("127.0.0.1", port)) as plain,
        trusting.wrap_socket(plain) as client,
    ):
        client.sendall(b"GET /cut HTTP/1.1\r\nHost: a\r\n\r\n")
        assert client.recv(1) == b"H"  # it is being written
        client.sendall(b"\n")
        assert process.stdout is not None and process.stdout.readline() == "true\n"
    (seen,) = [span["attributes"] for span in requests(read_spans(traces))]
    assert (seen["url.path"], seen.get("http.response.status_code")) == ("/cut", 200)


def test_each_request_of_a_client_is_seen_once_with_its_own_response(
    program: Path, certificate: Path, tmp_path: Path
) -> None:
    """Another goroutine may have read the response before the call that sent the request returns."""
    traces, count = tmp_path / "traces.jsonl", 300
    command = (OTELGPU, "run", "--quiet", "--families=http", f"--export=file:{traces}", "--", program, "ask")
    with serving(program, "serve", certificate) as (_, port):
        subprocess.run([*command, str(port), str(count), "16", "1.1"], check=True, timeout=100)
    seen = [span["attributes"] for span in read_spans(traces) if span["kind"] == CLIENT]
    assert Counter((int(each["url.path"][1:]), each.get("http.response.status_code")) for each in seen) == {
        (number, 200 if number % 5 else 404): 1 for number in range(1, count + 1)
    }
    assert {each["server.port"] for each in seen} == {port}


def end_of(watching: Watch, role: int) -> CapturedConnection:
    ends = captured_connections(watching).values()
    assert SOCKET not in {each.layer for each in ends}  # nothing of what is encrypted
    (found,) = (each for each in ends if each.role == role)
    return found


def test_one_that_runs_already_is_read_from_then_on(
    program: Path, certificate: Path, watch: Callable[..., Watch]
) -> None:
    watching = watch(families=("http",))
    with serving(program, "serve", certificate) as (process, port):
        watching.observe(process.pid)
        watching.start_anew()
        watching.during(lambda: ask(program, port, 20, 1, "1.1"))
        server = end_of(watching, SERVER)
        found = ProcessInspector({}).observe(process.pid)
    assert server.layer == TLS
    assert server.bytes_of(READ).count(b"POST /") == server.bytes_of(WRITE).count(b"HTTP/1.1 ") == 20
    assert server.closed is not None
    assert server.opened is not None and not server.opened["late"]
    assert server.numbers() == list(range(int(server.closed["sequence"])))
    assert found is not None
    assert [(each.name.split()[0], each.probed, each.by_return_probes) for each in found.tls] == [
        ("Go's", True, False)
    ]


def test_what_a_server_that_is_killed_was_doing_is_forgotten(program: Path, certificate: Path) -> None:
    server = subprocess.Popen(
        [program, "serve", certificate], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with server, Watch(families=("http",)) as watching:
        watching.observe(server.pid)
        assert server.stdout is not None
        with asking(program, int(server.stdout.readline()), 1 << 30, 8, "1.1") as asked:
            wait_for(watching, lambda: entries(watching)["go_calls"] > 0)
            server.kill()
            asked.kill()
        wait_for(watching, lambda: not any(entries(watching).values()))
        assert not any(counted(watching).values())


def wait_for(watching: Watch, done: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < until
        watching.pump(0.05)


def test_a_server_under_load_is_not_harmed_by_probes_that_come_and_go(
    program: Path, certificate: Path
) -> None:
    with serving(program, "serve", certificate) as (process, port):
        for version in VERSIONS:
            with asking(program, port, 1500, 16, version) as asked:
                rounds = 0
                while asked.poll() is None:
                    with Watch(families=("http",)) as watching:
                        watching.observe(process.pid)
                        watching.pump(0.1)
                    rounds += 1
                wrong, _ = asked.communicate(timeout=100)
            assert (wrong, asked.returncode) == ("0\n", 0)
            assert rounds and process.poll() is None
