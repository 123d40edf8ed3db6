"""Services that call each other, each a process: ``front`` asks ``router`` for each request, ``router`` asks ``model``.

``python -P service_chain.py REQUESTS`` starts them, is their client, and ends them. What they do is known beforehand.
Every fourth request fails in ``model``, and so in those before it.
"""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Final

CHAIN: Final = ("model", "router", "front")
FAILS_EACH: Final = 4


def truth(requests: int) -> list[tuple[str, str, int, int]]:
    """Who calls whom, how often, and how many of it failed."""
    failed = requests // FAILS_EACH
    return [("front", "router", requests, failed), ("router", "model", requests, failed)]


def ask(url: str) -> int:
    """The status of the answer."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def serve(below: str) -> None:
    """Until it is ended; prints its address first. ``below``: whom it asks, or nobody."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status = ask(below + self.path) if below else 500 if self.path == "/fails" else 200
            self.send_response(status)
            self.send_header("Content-Length", "3")
            self.end_headers()
            self.wfile.write(b"ok\n")

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


def main(requests: int) -> None:
    url, services = "", []
    try:
        for name in CHAIN:
            command = [sys.executable, "-P", __file__, "serve", url]  # the modules beside it are not meant
            environ = os.environ | {"OTEL_SERVICE_NAME": name}
            service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
            services.append(service)
            assert service.stdout is not None
            url = service.stdout.readline().strip()
        for number in range(1, requests + 1):
            ask(url + ("/fails" if number % FAILS_EACH == 0 else "/"))
    finally:
        for service in services:
            service.terminate()
            service.wait()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        main(int(sys.argv[1]))
