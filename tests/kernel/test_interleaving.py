"""Goroutines: a net/http server's handlers move between threads, and what each does is its own request's.

Each server has a session of its own: where one has seen a thousand connections, its maps forget some of the next ones.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.kernel.interleaved import Scene, ask_at_once, backend, judged, observe
from tests.rig.certificates import make_certificate

pytestmark = pytest.mark.long

SOURCE = Path(__file__).parent / "data" / "task_server.go"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs the Go toolchain: there is no `go` on PATH")
    program = tmp_path_factory.mktemp("go") / "task_server"
    subprocess.run([go, "build", "-ldflags=-s -w", "-o", str(program), str(SOURCE)], check=True, timeout=300)
    return program


@pytest.mark.parametrize(("how", "tls"), [("raw", False), ("client", True), ("context", False)])
def test_what_a_goroutine_asks_for_is_its_streams(server: Path, how: str, tls: bool, tmp_path: Path) -> None:
    """Of HTTP/2: all of a connection's at once, whose frames other goroutines write. A worker asks beside them."""
    with backend() as port:
        scene = Scene(
            command=(str(server), str(port), how, "pool"),
            clients=4,
            requests=20,
            asking=partial(ask_at_once, tls=tls),
            environment={"TASK_SERVER_PEM": str(make_certificate(tmp_path))} if tls else {},
        )
        _, outbound = judged(observe(scene, tmp_path))
    none = 0 if how == "context" else 80
    assert outbound.wrong == 0
    assert (outbound.right, outbound.none) == (240 - none, none)


@pytest.mark.parametrize(
    ("how", "clients", "beside"),
    [("raw", 1, 1), ("raw", 32, 0), ("raw", 32, 1), ("client", 32, 1), ("context", 32, 1)],
)
def test_what_a_goroutine_asks_for_is_its_requests_however_many_run(
    server: Path, how: str, clients: int, beside: int, tmp_path: Path
) -> None:
    """``beside``: a goroutine that some handler started asks too, and is nobody's but by the request's context."""
    asked = clients * 10
    with backend() as port:
        command = (str(server), str(port), how, *["pool"][:beside])
        scene = Scene(command=command, clients=clients, requests=10)
        _, outbound = judged(observe(scene, tmp_path))
    none = 0 if how == "context" else beside * asked
    assert outbound.wrong == 0
    assert (outbound.right, outbound.none) == ((2 + beside) * asked - none, none)
