"""ClickHouse's HTTP interface, as far as a reader needs it, in front of the engine in this process.

The engine and what it answers are ClickHouse's own; the transport, users and the status of errors are imitated here,
after https://clickhouse.com/docs/interfaces/http.
"""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from tests.rig.clickhouse import ClickHouse, clickhouse

USER, PASSWORD = "reader", "s3cret word"
_CODE: Final = re.compile(r"Code: (\d+)")


class Server(ThreadingHTTPServer):
    """``questions``: what was asked, with its parameters. ``may_remember``: whether users make temporary tables."""

    daemon_threads = True

    def __init__(self, engine: ClickHouse) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.engine = engine
        self.may_remember = True
        self.questions: list[tuple[str, dict[str, str]]] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def url(self, path: str, options: str = "") -> str:
        return f"clickhouse://{USER}:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{self.port}/{path}{options}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server: Any = self.server
        query = self.rfile.read(int(self.headers["Content-Length"])).decode()
        parameters = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
        server.questions.append((query, parameters))
        given = self.headers.get("X-ClickHouse-User"), self.headers.get("X-ClickHouse-Key")
        if given != (USER, PASSWORD):
            self._answer(403, b"Code: 516. DB::Exception: Authentication failed", "516")
            return
        may = ("SELECT", "WITH", "DESCRIBE", *(("CREATE TEMPORARY",) if server.may_remember else ()))
        if not query.lstrip().startswith(may):
            self._answer(500, b"Code: 164. DB::Exception: Cannot execute query in readonly mode", "164")
            return
        if "session_id" in parameters and query.startswith("CREATE"):
            server.engine.ask("DROP TEMPORARY TABLE IF EXISTS checked_sums")  # chDB has one session for all
        try:
            self._answer(200, server.engine.ask(query, parameters["database"]))
        except RuntimeError as error:
            code = _CODE.search(str(error))
            self._answer(500, str(error).encode(), code[1] if code else "0")

    def _answer(self, status: int, content: bytes, code: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-ClickHouse-Exception-Code", code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(certificate: Path | None = None, key: Path | None = None) -> Iterator[Server]:
    """A server on a port of its own; with a certificate it speaks TLS."""
    server = Server(clickhouse())
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
