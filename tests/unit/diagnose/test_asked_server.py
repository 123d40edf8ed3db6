"""A server is asked what it serves: on loopback alone, for a second at most, whatever it answers."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.cli import asked_server
from otelgpu.cli.asked_server import LARGEST_BYTES, AskedServer
from otelgpu.cli.job_watch import JobWatch
from otelgpu.cli.model_files import find_model
from otelgpu.diagnose.utilization.model_places import NamedModel
from otelgpu.diagnose.utilization.served_models import served_models
from otelgpu.errors import OtelgpuError
from tests.rig.examples import examples
from tests.unit.diagnose.test_utilization_input import LLAMA_3_8B

VLLM = {
    "object": "list",
    "data": [
        {"id": "sql", "object": "model", "root": "/adapters/sql", "parent": "llama"},
        {"id": "llama", "object": "model", "owned_by": "vllm", "root": "org/m", "parent": None},
    ],
}
Serve = Callable[[socket.socket], None]


def names(content: bytes) -> list[str]:
    return [each.name for each in served_models(content)]


# -- answers -------------------------------------------------------------------------------------------------


def test_the_first_model_that_is_no_adapter_is_named_by_what_was_loaded_first() -> None:
    assert names(json.dumps(VLLM).encode()) == ["org/m", "llama"]
    assert names(b'{"data": [{"id": "m"}]}') == ["m"]
    (only,) = served_models(b'{"data": [{"id": "m", "root": "m"}]}')
    assert only == NamedModel(name="m", by="/v1/models", serves=True)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"null", b"[]", b"{}", b'{"data": null}', b'{"data": []}', b'{"data": [7]}', b"\xff"),
        *(b'{"data": [{"id": 7}]}', b'{"data": [{"id": "a\\u0000b"}]}', b'{"data": [{"id": "a\\nb"}]}'),
        *(b'{"data": [{"id": "\\u202e"}]}', b'{"data": [{"id": ""}]}', b'{"data":' + b"[" * 100_000),
        b'{"data": [{"id": "' + b"x" * 2000 + b'"}]}',
    ],
)
def test_what_names_no_model_names_none(content: bytes) -> None:
    assert names(content) == []


@examples(100)
@given(
    st.binary(max_size=300) | st.recursive(st.text() | st.none(), st.lists).map(json.dumps).map(str.encode)
)
def test_any_answer_names_printable_names_or_none(content: bytes) -> None:
    assert all(name.isprintable() for name in names(content))


# -- addresses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "address", "path"),
    [
        ("http://127.0.0.1:8000", ("127.0.0.1", 8000), "/v1/models"),
        ("http://localhost:8000/", ("127.0.0.1", 8000), "/v1/models"),
        ("http://[::1]:30000/v1", ("::1", 30000), "/v1/models"),
        ("http://127.8.8.8/llm/v1/models", ("127.8.8.8", 80), "/llm/v1/models"),
    ],
)
def test_a_server_on_loopback_is_asked(url: str, address: tuple[str, int], path: str) -> None:
    server = AskedServer(url)
    assert server._address == address
    assert server._request.startswith(f"GET {path} HTTP/1.0\r\nHost: ".encode())


@pytest.mark.parametrize(
    "url",
    [
        *("", "127.0.0.1:8000", "https://127.0.0.1:8000", "file:///etc/passwd", "http://", "http://:80"),
        *(
            "http://10.0.0.1:8000",
            "http://example.org",
            "http://localhost.example.org",
            "http://0.0.0.0:8000",
        ),
        *("http://[::ffff:127.0.0.1]:8000", "http://127.0.0.1:99999", "http://127.0.0.1:x", "http://[::1"),
        *(
            "http://me:key@127.0.0.1:8000",
            "http://127.0.0.1:8000/?a",
            "http://127.0.0.1/a b",
            "http://2130706433",
        ),
        "http://127.0.0.1/" + "x" * 300,
    ],
)
def test_no_other_address_is(url: str) -> None:
    with pytest.raises(ValueError, match=r"loopback|no URL|give it as|other characters"):
        AskedServer(url)


# -- conversations -------------------------------------------------------------------------------------------


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Serve], AskedServer]]:
    """A server of one connection that does as is given, on a machine that may be busy."""
    monkeypatch.setattr(asked_server, "SECONDS", 30.0)
    threads = []

    def begin(answer: Serve) -> AskedServer:
        listener = socket.create_server(("127.0.0.1", 0))

        def run() -> None:
            with listener, listener.accept()[0] as connection:
                connection.settimeout(5)
                assert connection.recv(1 << 16).startswith(b"GET /v1/models HTTP/1.0\r\n")
                try:
                    answer(connection)
                except OSError:
                    return  # the client has gone

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return AskedServer(f"http://127.0.0.1:{listener.getsockname()[1]}")

    yield begin
    for thread in threads:
        thread.join(10)


def answer(body: bytes, status: str = "200 OK", head: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body


def test_an_answer_is_whole_by_its_length_though_the_connection_stays(
    serve: Callable[[Serve], AskedServer],
) -> None:
    released = threading.Event()

    def stays(connection: socket.socket) -> None:
        whole = answer(json.dumps(VLLM).encode())
        connection.sendall(whole[:20])
        time.sleep(0.02)
        connection.sendall(whole[20:])
        released.wait(5)

    server = serve(stays)
    server.ask()
    released.set()
    assert [each.name for each in server.models] == ["org/m", "llama"]


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (b"", "it does not speak HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it does not speak HTTP"),
        (b"\0" * LARGEST_BYTES * 2, "it does not speak HTTP"),
        (
            answer(b"{}", "401 Unauthorized"),
            "/v1/models answers 401: it asks for a key: set OTELGPU_SERVER_KEY",
        ),
        (answer(b"", "302 Found", "Location: http://10.0.0.1/\r\n"), "/v1/models answers 302"),
        (answer(b"{}"), "/v1/models names no model"),
        (answer(b"{}")[:-1], "/v1/models names no model, its answer is cut"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b" " * LARGEST_BYTES, "/v1/models names no model, its answer is cut"),
    ],
)
def test_what_a_server_says_in_place_of_a_model_is_the_problem(
    serve: Callable[[Serve], AskedServer], said: bytes, problem: str
) -> None:
    server = serve(lambda connection: connection.sendall(said))
    server.ask()
    assert (server.models, server.problem) == ((), problem)


SECRET = "sk-made-up"


@pytest.mark.parametrize("status", ["200 OK", "401 Unauthorized", "302 Found"])
def test_a_key_goes_to_the_server_and_is_in_nothing_that_is_said(
    monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setenv(asked_server.KEY, SECRET)
    monkeypatch.setattr(asked_server, "SECONDS", 30.0)
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        elsewhere = f"Location: {url}/elsewhere\r\n" if status.startswith("302") else ""

        def run() -> None:
            with listener.accept()[0] as connection:
                connection.settimeout(5)
                asked.append(connection.recv(1 << 16))
                connection.sendall(answer(json.dumps(VLLM).encode(), status, elsewhere))

        thread = threading.Thread(target=run)
        thread.start()
        context = click.Context(click.Command("made"))
        server = asked_server.asked_server(context, click.Option(["--ask-server"]), url)
        assert server is not None
        server.ask()
        thread.join(10)
    assert f"\r\nAuthorization: Bearer {SECRET}\r\n".encode() in asked[0]
    refused = {"401 Unauthorized": "/v1/models answers 401: it refuses the key"}
    assert refused.get(status, "") in server.problem
    assert SECRET not in f"{server} {server.url} {server.problem} {server.models}"


@pytest.mark.parametrize("wrong", ["a b", "a\r\nX: y", "k\u00e9", "\x7f", "x" * 4097])
def test_what_is_no_key_is_neither_sent_nor_shown(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv(asked_server.KEY, wrong)
    context = click.Context(click.Command("made"))
    with pytest.raises(OtelgpuError, match="OTELGPU_SERVER_KEY is no token") as raised:
        asked_server.asked_server(context, click.Option(["--ask-server"]), "http://127.0.0.1:1")
    assert wrong not in f"{raised.value} {raised.value.hint}"


@pytest.mark.parametrize("drip", [b"", b"H"])
def test_a_server_that_does_not_end_is_waited_for_no_longer_than_said(
    serve: Callable[[Serve], AskedServer], monkeypatch: pytest.MonkeyPatch, drip: bytes
) -> None:
    monkeypatch.setattr(asked_server, "SECONDS", 0.3)
    released = threading.Event()

    def drips(connection: socket.socket) -> None:
        while not released.wait(0.02):
            connection.sendall(drip)

    server = serve(drips)
    began_s = time.monotonic()
    server.ask()
    released.set()
    assert time.monotonic() - began_s < 5  # of a machine that is busy; without an end it would be all
    assert server.problem == "no answer within 0.3 s"


def test_nobody_there_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = AskedServer(f"http://127.0.0.1:{port}")
    server.ask()
    assert server.problem == "Connection refused"


# -- what it is good for -------------------------------------------------------------------------------------


def test_what_is_served_is_looked_for_before_what_the_command_names(tmp_path: Path) -> None:
    for name, layers in (("served", 7), ("named", 9)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({**LLAMA_3_8B, "num_hidden_layers": layers}))
    command = ("vllm", "serve", str(tmp_path / "named"))
    served = [NamedModel(name=str(tmp_path / "none"), by="/v1/models", serves=True)]
    found = find_model(os.getpid(), command, {}, served=served)
    assert found is not None and (found.shape.layers, found.by) == (9, "serve")
    served.append(NamedModel(name=str(tmp_path / "served"), by="/v1/models", serves=True))
    found = find_model(os.getpid(), command, {}, served=served)
    assert found is not None and (found.shape.layers, found.by, found.serves) == (7, "/v1/models", True)


class Slow(AskedServer):
    """Answers when it is asked for the second time."""

    def __init__(self, name: str) -> None:
        super().__init__("http://127.0.0.1:1")
        self.name, self.asked = name, 0

    def ask(self) -> None:
        self.asked += 1
        self.problem = "Connection refused"
        if self.asked == 2:
            self.models = [NamedModel(name=self.name, by="/v1/models", serves=True)]


@pytest.mark.parametrize("has_configuration", [True, False])
def test_a_server_is_asked_until_it_answers_and_then_no_more(tmp_path: Path, has_configuration: bool) -> None:
    if has_configuration:
        (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    server = Slow(str(tmp_path))
    watch = JobWatch(server=server)
    watch.pids.append(os.getpid())
    watch._look()
    watch._look()  # too soon to ask again
    assert (server.asked, watch.model) == (1, None)
    assert watch.server_note() == "http://127.0.0.1:1: Connection refused"
    for _ in range(3):
        watch._asked_s -= 60
        watch._look()
    assert server.asked == 2
    if has_configuration:
        assert watch.model is not None and watch.model.by == "/v1/models" and watch.server_note() == ""
    else:
        assert watch.server_note().endswith(
            f" serves {tmp_path}, and no process of the job has its config.json"
        )
