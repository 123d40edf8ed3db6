"""The health endpoint: what probes and scrapes get, and that no peer keeps others from it."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from otelgpu.export import health
from otelgpu.export.health import AddressError, HealthServer, parse_address

GET = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Patient:
    def __init__(self) -> None:
        self.ails: list[str] = []
        self.idles: list[str] = []
        self.has: list[str] = []

    def not_live(self) -> list[str]:
        return self.ails

    def not_ready(self) -> list[str]:
        return self.idles

    def conditions(self) -> list[str]:
        return self.has


@pytest.fixture
def patient() -> Patient:
    return Patient()


@pytest.fixture
def server(patient: Patient) -> Iterator[HealthServer]:
    found = HealthServer("0", patient, lambda data: ("text/test", b"x" * len(data.resource_metrics)))
    found.start()
    yield found
    found.close()


def connect(server: HealthServer) -> socket.socket:
    return socket.create_connection(server.address, timeout=2)


def read_all(sock: socket.socket) -> bytes:
    parts = []
    while part := sock.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def ask(server: HealthServer, request: bytes) -> tuple[int, dict[str, str], bytes]:
    with connect(server) as sock:
        sock.sendall(request)
        head, _, body = read_all(sock).partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    return int(line.split()[1]), dict(field.split(": ", 1) for field in fields), body


@pytest.mark.parametrize("path", [b"/healthz", b"/readyz", b"/healthz?verbose", b"http://a:1/healthz"])
def test_a_healthy_program_says_ok(server: HealthServer, path: bytes) -> None:
    status, fields, body = ask(server, GET % path)
    assert (status, body, fields["Content-Length"], fields["Connection"]) == (200, b"ok", "2", "close")


def test_what_is_to_be_known_of_a_healthy_program_is_said(server: HealthServer, patient: Patient) -> None:
    patient.has += ["memory is short", "and more"]
    assert ask(server, GET % b"/healthz")[::2] == (200, b"ok\nmemory is short\nand more")


@pytest.mark.parametrize(("path", "healthy"), [(b"/healthz", b"/readyz"), (b"/readyz", b"/healthz")])
def test_an_ailing_one_says_why_as_json(
    server: HealthServer, patient: Patient, path: bytes, healthy: bytes
) -> None:
    (patient.ails if path == b"/healthz" else patient.idles).append('the "loop" stands')
    status, fields, body = ask(server, GET % path)
    assert (status, fields["Content-Type"]) == (503, "application/json")
    assert json.loads(body) == {"status": "unavailable", "reasons": ['the "loop" stands']}
    assert ask(server, GET % healthy)[0] == 200


def test_head_has_the_head_alone(server: HealthServer) -> None:
    status, fields, body = ask(server, (GET % b"/healthz").replace(b"GET", b"HEAD"))
    assert (status, fields["Content-Length"], body) == (200, "2", b"")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (GET % b"/", 404),
        (GET % b"/healthz/", 404),
        (GET % b"/../../etc/passwd", 404),
        ((GET % b"/healthz").replace(b"GET", b"POST"), 405),
        ((GET % b"/healthz").replace(b"GET", b"BREW"), 405),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthz HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 9000, 431),
        (b"a" * 9000, 431),
    ],
)
def test_each_request_has_its_status(server: HealthServer, request_bytes: bytes, status: int) -> None:
    assert ask(server, request_bytes)[0] == status


def test_other_methods_are_reported_which_there_are(server: HealthServer) -> None:
    assert ask(server, (GET % b"/metrics").replace(b"GET", b"DELETE"))[1]["Allow"] == "GET, HEAD"


def test_a_request_may_come_byte_by_byte(server: HealthServer) -> None:
    with connect(server) as sock:
        for position in range(len(GET % b"/healthz")):
            sock.sendall((GET % b"/healthz")[position : position + 1])
        assert read_all(sock).endswith(b"\r\n\r\nok")


def test_what_comes_after_the_request_does_not_take_the_answer_away(server: HealthServer) -> None:
    with connect(server) as sock:
        sock.sendall((GET % b"/healthz") + b"b" * 4000)
        assert read_all(sock).endswith(b"\r\n\r\nok")


# -- Metrics ---------------------------------------------------------------------------------------------


def metrics(resources: int) -> MetricsData:
    data = MetricsData()
    for _ in range(resources):
        data.resource_metrics.add()
    return data


def answering(server: HealthServer, make: Callable[[], MetricsData]) -> threading.Thread:
    """A loop that answers the next question."""

    def run() -> None:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            if server.is_asked():
                server.answer(make())
                return
            time.sleep(0.002)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_scrape_is_answered_by_the_loop(server: HealthServer) -> None:
    loop = answering(server, lambda: metrics(3))
    assert ask(server, GET % b"/metrics")[::2] == (200, b"xxx")
    loop.join()


def test_who_asks_again_at_once_gets_the_same_without_the_loop(server: HealthServer) -> None:
    loop = answering(server, lambda: metrics(2))
    ask(server, GET % b"/metrics")
    loop.join()
    assert ask(server, GET % b"/metrics")[2] == b"xx"
    assert not server.is_asked()


def test_old_metrics_are_not_given_for_new_ones(
    server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(health, "ANSWER_SECONDS", 0.05)
    server.answer(metrics(1))
    assert ask(server, GET % b"/metrics")[0] == 503  # nobody answers


def test_probes_are_answered_while_a_scrape_waits(server: HealthServer) -> None:
    with connect(server) as scrape:
        scrape.sendall(GET % b"/metrics")
        assert ask(server, GET % b"/healthz")[0] == 200
        server.answer(metrics(1))
        assert read_all(scrape).endswith(b"x")


# -- Hostile peers ---------------------------------------------------------------------------------------


def test_two_hundred_silent_connections_keep_nobody_away(server: HealthServer) -> None:
    silent = [connect(server) for _ in range(200)]
    try:
        assert ask(server, GET % b"/healthz")[0] == 200
        deadline = time.monotonic() + 2
        while len(server._peers) > health.MAX_CONNECTIONS and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(server._peers) <= health.MAX_CONNECTIONS
    finally:
        for sock in silent:
            sock.close()


def test_a_slow_peer_is_cut_off(server: HealthServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CONNECTION_SECONDS", 0.1)
    with connect(server) as sock:
        sock.sendall(b"GET /heal")
        assert b" 408 " in read_all(sock)


def test_a_silent_peer_is_cut_off_without_a_word(
    server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CONNECTION_SECONDS", 0.05)
    with connect(server) as sock:
        assert read_all(sock) == b""


def test_a_peer_that_does_not_read_is_cut_off(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CONNECTION_SECONDS", 0.1)
    server = HealthServer("0", patient, lambda data: ("text/test", b"x" * (32 << 20)))
    server.start()
    try:
        server.answer(metrics(1))
        with connect(server) as sock:
            sock.sendall(GET % b"/metrics")
            deadline = time.monotonic() + 2
            while not server._peers and time.monotonic() < deadline:
                time.sleep(0.005)
            while server._peers and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not server._peers
    finally:
        server.close()


def test_a_peer_that_floods_after_its_request_is_cut_off(server: HealthServer) -> None:
    with connect(server) as sock, pytest.raises(OSError):
        sock.sendall(GET % b"/metrics")
        for _ in range(2000):
            sock.sendall(b"f" * 8192)


# -- Addresses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("13134", ("127.0.0.1", 13134)),
        (":13134", ("127.0.0.1", 13134)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("localhost:80", ("localhost", 80)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_without_a_host_an_address_is_loopback(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", ":65536", ":-1", "::1:80", ":٣", "1.2.3.4"])
def test_what_is_no_address_is_an_error(text: str) -> None:
    with pytest.raises(AddressError, match="health_address"):
        parse_address(text)


def test_an_address_in_use_is_reported(server: HealthServer, patient: Patient) -> None:
    with pytest.raises(AddressError, match="Address already in use"):
        HealthServer(f":{server.address[1]}", patient, lambda data: ("", b""))


def test_nothing_stays_open(patient: Patient) -> None:
    before = len(os.listdir("/proc/self/fd"))
    server = HealthServer("0", patient, lambda data: ("", b""))
    server.start()
    with connect(server):
        server.close()
        server.close()
    assert len(os.listdir("/proc/self/fd")) == before
