"""Requests of Go's http.Client whose caller was not seen: they are nobody's, and counted."""

from __future__ import annotations

import http.server
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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


def test_a_request_under_way_when_observation_begins_is_counted_as_nobodys(tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs the Go toolchain: there is no `go` on PATH")
    program = tmp_path / "late_upload"
    subprocess.run([go, "build", "-o", str(program), str(SOURCE)], check=True, timeout=300)
    with (
        sink() as port,
        Watch(families=("http",)) as watch,
        subprocess.Popen([program, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as uploading,
    ):

        def order(what: bytes) -> None:
            assert uploading.stdin is not None
            assert uploading.stdout is not None
            uploading.stdin.write(what + b"\n")
            uploading.stdin.flush()
            assert uploading.stdout.readline() == b"done\n"

        order(b"more")
        watch.observe(uploading.pid)
        watch.during(lambda: order(b"ask"))  # only a program that has a client pays
        assert watch.total("http", "go_caller_unknown") == 0
        for number in range(1, 4):
            watch.during(lambda: order(b"more"))
            until = time.monotonic() + WAIT_S
            while watch.total("http", "go_caller_unknown") < number:  # it is written after it was taken
                assert time.monotonic() < until
                watch.pump(PUMP_S)
        uploading.kill()
