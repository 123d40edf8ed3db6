"""TLS connections that no probe sees in clear: the session says how many, and whose."""

from __future__ import annotations

import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.kernel.captured_connections import traffic_program
from tests.kernel.observing import OTELGPU, Watch
from tests.rig.certificates import make_certificate
from tests.rig.go_servers import build_https_server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Go program that serves HTTPS, stripped, whose functions are not found: their table is under another name."""
    program = build_https_server(tmp_path_factory.mktemp("go"))
    subprocess.run(["objcopy", "--rename-section", ".gopclntab=.hidden", program], check=True)
    return program


def ask(port: int, seconds: float) -> int:
    """One connection after another with a request each, for so long: how many."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"https://127.0.0.1:{port}/5", context=context)
        count += 1
    return count


@contextmanager
def serving(*command: object) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A program that prints its port, and ends when its stdin does."""
    with subprocess.Popen(
        list(map(str, command)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())


def test_a_session_says_how_many_tls_connections_of_a_go_program_it_did_not_read(
    server: Path, certificate: Path
) -> None:
    with serving(OTELGPU, "run", "--families=http", "--", server, "serve", certificate) as (process, port):
        count = ask(port, 2)
        _, said = process.communicate(timeout=60)
    assert f"not read {count} TLS connections of Go programs (crypto/tls): " in said
    assert "tls_of_go_unread" not in said  # in words


def test_connections_are_counted_while_the_program_runs(
    server: Path, certificate: Path, watch: Callable[..., Watch]
) -> None:
    watching = watch(families=("http",))
    with serving(server, "serve", certificate) as (process, port):
        watching.observe(process.pid)
        watching.start_anew()
        count = watching.during(lambda: ask(port, 1))
        until = time.monotonic() + 30
        while (
            not (unread := watching.losses().get(("http", "tls_of_go_unread"), 0))
            and time.monotonic() < until
        ):
            watching.pump(0.2)
        assert unread == count
        more = watching.during(lambda: ask(port, 1))
        watching.pump(1)
        assert watching.losses()["http", "tls_of_go_unread"] == count + more
        process.communicate(timeout=60)


def test_what_openssl_encrypts_is_read(certificate: Path) -> None:
    with traffic_program() as started, Watch(families=("http",)) as watching:
        watching.observe(started.pid)
        watching.start_anew()
        watching.during(lambda: started.do("hold_tls", str(certificate)))
        watching.during(lambda: started.do("talk_tls", "", ""))
        watching.pump(7)  # longer than a session may be seen later than its socket
        assert watching.losses() == {("http", "connection_tls"): 2}
