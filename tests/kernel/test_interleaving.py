"""Goroutines: a net/http server's handlers move between threads, and what each does is its own request's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kernel.interleaved import backend, judged, observe

pytestmark = pytest.mark.long

SOURCE = Path(__file__).parent / "data" / "task_server.go"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs the Go toolchain: there is no `go` on PATH")
    program = tmp_path_factory.mktemp("go") / "task_server"
    subprocess.run([go, "build", "-o", str(program), str(SOURCE)], check=True, timeout=300)
    return program


@pytest.mark.parametrize(("how", "clients"), [("raw", 1), ("raw", 32), ("client", 32)])
@pytest.mark.parametrize("beside", [0, 1])
def test_what_a_goroutine_asks_for_is_its_requests_however_many_run(
    server: Path, how: str, clients: int, beside: int, tmp_path: Path
) -> None:
    """``beside``: a goroutine that a handler starts asks once more, and is nobody's."""
    asked = clients * 10
    with backend() as port:
        command = [str(server), str(port), how, *["children"][:beside]]
        _, outbound = judged(observe(command, tmp_path, clients, requests=10))
    assert outbound.wrong == 0
    assert (outbound.right, outbound.none) == (2 * asked, beside * asked)
