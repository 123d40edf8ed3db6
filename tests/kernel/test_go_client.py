"""Requests of Go's http.Client: whose caller was not seen are nobody's, and counted; others have theirs."""

from __future__ import annotations

import http.server
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from otelgpu.model.context_sources import ContextSource
from otelgpu.model.inputs import Batch
from tests.kernel.observing import PUMP_S, WAIT_S, Watch

SOURCE = Path(__file__).parent / "data" / "late_upload.go"


class _Sink(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def do_POST(self) -> None:
        while self.rfile.read1(65536):
            pass

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def sink() -> Iterator[int]:
    """The port of a server that reads what is uploaded, for as long as it comes."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Sink) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`late_upload`."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs the Go toolchain: there is no `go` on PATH")
    built = tmp_path_factory.mktemp("go") / "late_upload"
    subprocess.run([go, "build", "-o", str(built), str(SOURCE)], check=True, timeout=300)
    return built


def test_a_request_under_way_when_observation_begins_is_counted_as_nobodys(program: Path) -> None:
    with (
        sink() as port,
        Watch(families=("http",)) as watch,
        subprocess.Popen([program, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as uploading,
    ):
        _order(uploading, b"more")
        watch.observe(uploading.pid)
        watch.during(lambda: _order(uploading, b"ask"))  # only a program that has a client pays
        assert watch.total("http", "go_caller_unknown") == 0
        for number in range(1, 4):
            watch.during(lambda: _order(uploading, b"more"))
            until = time.monotonic() + WAIT_S
            while watch.total("http", "go_caller_unknown") < number:  # it is written after it was taken
                assert time.monotonic() < until
                watch.pump(PUMP_S)
        uploading.kill()


def test_a_program_that_ends_before_anybody_looks_at_it_has_its_callers(program: Path) -> None:
    """Its goroutines are reached by what its file says: here the agent sleeps from its start to its end."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    short = ["sh", "-c", 'read -r _; printf "ask\nask\n" | "$0" "$1"; :', str(program)]
    with (
        sink() as port,
        Watch(families=("http",)) as watch,
        subprocess.Popen([program, str(port)], **pipes) as known,
        subprocess.Popen([*short, str(port)], **pipes) as shell,
    ):
        watch.observe(known.pid)
        watch.during(lambda: _order(known, b"ask"))
        watch.observe(shell.pid)
        out, _ = watch.during(lambda: shell.communicate(b"\n", timeout=WAIT_S), drain=False)
        assert out == b"done\ndone\n"
        theirs = [
            each.heads[each.heads["tgid"] != known.pid] for each in watch.inputs if isinstance(each, Batch)
        ]
        by_task = np.concatenate(theirs)["context_source"] == ContextSource.TASK
        assert by_task.sum() >= 2
        assert watch.total("http", "go_caller_unknown") == 0
        known.kill()


def _order(program: subprocess.Popen[bytes], what: bytes) -> None:
    """Have it do something, until it is done."""
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(what + b"\n")
    program.stdin.flush()
    assert program.stdout.readline() == b"done\n"
