"""``otelgpu topology https://…``: whom it trusts, what it shows of itself and to whom, what it says when refused."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from otelgpu.cli import topology_collector
from otelgpu.cli.collector_access import TOKEN
from otelgpu.cli.commands import cli
from otelgpu.errors import OtelgpuError
from tests.rig.certificates import make_certificate, make_expired_certificate
from tests.unit.test_topology_collector import PAIRS, SERVED, answer, pairs, problem

Answer = Callable[[ssl.SSLSocket], None]
KEY = "a-key-of-the-collector"


class Collector:
    """Serves TLS on localhost, one connection after the other; ``requests``: what came through."""

    def __init__(self, certificate: Path, answers: tuple[bytes | Answer, ...], clients: Path | None) -> None:
        self.requests: list[bytes] = []
        self._answers = answers
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate)
        if clients is not None:
            self._tls.verify_mode = ssl.CERT_REQUIRED
            self._tls.load_verify_locations(clients)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}/metrics"

    def _run(self) -> None:
        while True:
            try:
                plain = self._listener.accept()[0]
            except OSError:
                return
            plain.settimeout(5)
            with plain:
                try:
                    with self._tls.wrap_socket(plain, server_side=True) as connection:
                        self._serve(connection)
                except OSError:  # who asks has gone, or does not trust this
                    continue

    def _serve(self, connection: ssl.SSLSocket) -> None:
        if request := connection.recv(1 << 16):
            self.requests.append(request)
            each = self._answers[min(len(self.requests), len(self._answers)) - 1]
            if not isinstance(each, bytes):
                each(connection)
                return
            connection.sendall(each)
            connection.unwrap()

    def end(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


Serve = Callable[..., Collector]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of localhost, with its key, which it signed itself."""
    return make_certificate(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Likewise, of who asks."""
    return make_certificate(tmp_path_factory.mktemp("client"))


@pytest.fixture
def serve(certificate: Path) -> Iterator[Serve]:
    begun: list[Collector] = []

    def begin(*answers: bytes | Answer, shows: Path = certificate, clients: Path | None = None) -> Collector:
        begun.append(Collector(shows, answers or (answer(SERVED),), clients))
        return begun[-1]

    yield begin
    for each in begun:
        each.end()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (TOKEN, "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


def topology(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["topology", "--json", *map(str, words)])


def hint(result: Result) -> str:
    assert isinstance(result.exception, OtelgpuError)
    return result.exception.hint


def test_calls_come_of_a_collector_whose_authority_is_trusted(serve: Serve, certificate: Path) -> None:
    collector = serve()
    assert pairs(topology(collector.url, "--ca-file", certificate).output) == PAIRS
    (request,) = collector.requests
    assert b"Authorization" not in request


def test_the_systems_authorities_are_openssls(
    serve: Serve, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert pairs(topology(serve().url).output) == PAIRS


def test_one_that_nobody_vouches_for_is_sent_nothing(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, KEY)
    collector = serve()
    result = topology(collector.url)
    assert "cannot be asked: its certificate is refused: self" in problem(result)
    assert "--ca-file" in hint(result)
    assert collector.requests == []


def test_one_with_the_certificate_of_another_host_is_sent_nothing(
    serve: Serve, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, KEY)
    collector = serve()
    said = problem(topology(f"https://127.0.0.1:{collector.port}", "--ca-file", certificate))
    assert "its certificate is refused: IP address mismatch" in said
    assert collector.requests == []


def test_one_whose_certificate_is_too_old_is_refused(serve: Serve, tmp_path: Path) -> None:
    expired = make_expired_certificate(tmp_path)
    said = problem(topology(serve(shows=expired).url, "--ca-file", expired))
    assert "its certificate is refused: certificate has expired" in said


def test_a_client_shows_its_certificate(serve: Serve, certificate: Path, client: Path) -> None:
    collector = serve(clients=client)
    trusted = (collector.url, "--ca-file", certificate)
    assert "it wants a client's certificate" in problem(topology(*trusted))
    shown = ("--client-certificate", client, "--client-key", client)
    assert pairs(topology(*trusted, *shown).output) == PAIRS
    wrong = ("--client-certificate", certificate, "--client-key", certificate)
    assert f"it refuses the certificate {certificate}" in problem(topology(*trusted, *wrong))
    assert len(collector.requests) == 1


def test_a_token_is_that_of_the_variable(
    serve: Serve, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, KEY)
    collector = serve()
    assert pairs(topology(collector.url, "--ca-file", certificate).output) == PAIRS
    assert f"\r\nAuthorization: Bearer {KEY}\r\n".encode() in collector.requests[0]


def test_a_tokens_file_is_read_at_each_look(
    serve: Serve, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "of-another")
    token = tmp_path / "token"
    token.write_text("first\n")

    def changes(connection: ssl.SSLSocket) -> None:
        token.write_text("second\n")
        connection.sendall(answer(SERVED))
        connection.unwrap()

    collector = serve(changes, answer(SERVED))
    options = ("--follow", "--every", "1s", "--duration", "1s", "--token-file", token)
    assert topology(collector.url, "--ca-file", certificate, *options).exit_code == 0
    sent = [line for each in collector.requests for line in each.split(b"\r\n") if line.startswith(b"Auth")]
    assert sent == [b"Authorization: Bearer first", b"Authorization: Bearer second"]


@pytest.mark.parametrize("held", [b"", b"a b", b"a\r\nX: y", b"\xff\xfe", b"x" * 5000])
def test_a_file_without_a_token_is_refused_and_not_shown(
    serve: Serve, certificate: Path, tmp_path: Path, held: bytes
) -> None:
    token = tmp_path / "token"
    token.write_bytes(held)
    collector = serve()
    said = problem(topology(collector.url, "--ca-file", certificate, "--token-file", token))
    assert said.startswith(f"{token} is no token")
    assert collector.requests == []


def test_a_token_goes_to_no_collector_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, KEY)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        requests: list[bytes] = []

        def run() -> None:
            with listener.accept()[0] as connection:
                requests.append(connection.recv(1 << 16))
                connection.sendall(answer(b"", "401 Unauthorized"))

        server = threading.Thread(target=run)
        server.start()
        result = topology(f"http://127.0.0.1:{listener.getsockname()[1]}")
        server.join(10)
    assert "answers 401" in problem(result)
    assert "over https:// alone" in hint(result)
    assert KEY.encode() not in requests[0]


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
def test_who_is_refused_is_told_where_a_token_is_taken_from(
    serve: Serve, certificate: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setenv(TOKEN, KEY)
    result = topology(serve(answer(b"", status)).url, "--ca-file", certificate)
    assert f"answers {status[:3]}" in problem(result)
    assert "--token-file" in hint(result) and TOKEN in hint(result)
    assert KEY not in problem(result) + hint(result)


def test_a_redirection_takes_no_token_elsewhere(
    serve: Serve, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, KEY)
    other = serve()
    first = serve(answer(b"", "307 Temporary Redirect", f"Location: {other.url}\r\n"))
    said = problem(topology(first.url, "--ca-file", certificate))
    assert "answers 307; no redirection is followed" in said
    assert (len(first.requests), other.requests) == (1, [])


def test_one_without_tls_is_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(answer(b"", "400 Bad Request"))

        server = threading.Thread(target=run)
        server.start()
        said = problem(topology(f"https://localhost:{listener.getsockname()[1]}"))
        server.join(10)
    assert "it does not speak TLS" in said


def test_a_handshake_that_does_not_end_is_waited_for_no_longer_than_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topology_collector, "SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # nobody accepts
        began_s = time.monotonic()
        said = problem(topology(f"https://localhost:{listener.getsockname()[1]}"))
    assert "cannot be asked: no answer within 0.3 s" in said
    assert time.monotonic() - began_s < 5  # of a machine that is busy


def test_an_answer_that_breaks_off_without_the_end_of_tls_is_said_to_be_cut(
    serve: Serve, certificate: Path
) -> None:
    """Without a length only TLS itself says where an answer ends: who stands between can close a connection."""

    def breaks_off(connection: ssl.SSLSocket) -> None:
        connection.sendall(answer(SERVED))

    cut = topology(serve(breaks_off).url, "--ca-file", certificate)
    assert "its answer is cut" in cut.output
    whole = topology(serve(answer(SERVED)).url, "--ca-file", certificate)
    assert "is cut" not in whole.output


def test_of_an_answer_that_is_too_long_a_part_is_read(
    serve: Serve, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never_ends(connection: ssl.SSLSocket) -> None:
        connection.sendall(answer(SERVED))
        while True:  # until who asks has gone
            connection.sendall(b"# more\n" * 10_000)

    monkeypatch.setattr(topology_collector, "LARGEST_BYTES", 1 << 20)
    result = topology(serve(never_ends).url, "--ca-file", certificate)
    assert pairs(result.output) == PAIRS
    assert "its answer is cut" in result.output


@pytest.mark.parametrize("option", ["--ca-file", "--client-certificate"])
def test_a_file_that_is_no_certificate_is_named(serve: Serve, tmp_path: Path, option: str) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nx\n")
    more = ("--client-key", broken) if option == "--client-certificate" else ()
    said = problem(topology(serve().url, option, broken, *more))
    assert f"cannot use {broken}" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("http://localhost:1", "--ca-file", "{file}"), "--ca-file needs an INPUT https://"),
        (("http://localhost:1", "--token-file", "{file}"), "--token-file needs an INPUT https://"),
        (("--client-key", "{file}"), "--client-certificate and --client-key need each other"),
        (("https://localhost:1", "--client-certificate", "{file}"), "need each other"),
    ],
)
def test_what_cannot_be_is_a_wrong_usage(certificate: Path, words: tuple[str, ...], said: str) -> None:
    result = topology(*(each.format(file=certificate) for each in words))
    assert (result.exit_code, said in result.output) == (2, True), result.output
