"""A fake of the Kubernetes API server: pods of one node, listed and watched over TLS, for the Collector.

As the real one, it answers a list with a version, sends a watch what changed since that version, and asks for a bearer
token. A watch may also begin with what there is (``sendInitialEvents``). Format: Kubernetes API concepts, "Efficient
detection of changes" and "Streaming lists".
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.rig.certificates import make_certificate

NODE = "node-1"
Json = dict[str, Any]


@dataclass(frozen=True)
class Access:
    """Where the server is, and the folder with the certificate and the token that a pod's service account has."""

    host: str
    port: int
    account: Path


def pod_object(
    name: str,
    uid: str,
    *,
    namespace: str = "training",
    container_id: str = "",
    container: str = "app",
    image: str = "registry:5000/team/llm:1.2",
    **metadata: Any,
) -> Json:
    """A Pod as the API server writes it."""
    status = {
        "name": container,
        "containerID": f"containerd://{container_id}" if container_id else "",
        "imageID": f"registry:5000/team/llm@sha256:{'ab' * 32}" if container_id else "",
        "restartCount": 0,
    }
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "managedFields": [{}], **metadata},
        "spec": {"nodeName": NODE, "containers": [{"name": container, "image": image, "env": []}]},
        "status": {"phase": "Running", "containerStatuses": [status]},
    }


class ApiServer:
    """:meth:`put` changes what is there. ``asked``: every request's path and query."""

    def __init__(self, folder: Path) -> None:
        self.token = "first"
        self.asked: list[tuple[str, dict[str, str]]] = []
        self._pods: dict[str, Json] = {}
        self._events: list[tuple[int, Json]] = []
        self._version = 1
        self._changed = threading.Condition()
        self._ended = False
        self.certificate = make_certificate(folder)
        self.account = folder / "account"
        self.account.mkdir()
        (self.account / "ca.crt").write_bytes(self.certificate.with_name("certificate.pem").read_bytes())
        (self.account / "token").write_text(self.token + "\n")

    def put(self, pod: Json) -> None:
        """A pod is made or changed."""
        with self._changed:
            uid = pod["metadata"]["uid"]
            self._version += 1
            pod["metadata"]["resourceVersion"] = str(self._version)
            kind = "MODIFIED" if uid in self._pods else "ADDED"
            self._events.append((self._version, {"type": kind, "object": pod}))
            self._pods[uid] = pod
            self._changed.notify_all()

    def end(self) -> None:
        """End every watch."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _has_news(self, since: int) -> bool:
        return self._ended or any(at > since for at, _ in self._events)

    # -- Answers --------------------------------------------------------------------------------------

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.asked.append((url.path, query))
        if request.headers.get("Authorization", "").removeprefix("Bearer ") != self.token:
            _refuse(request, 401)
        elif not url.path.startswith("/api/v1/") or "/pods" not in url.path:
            _refuse(request, 404)
        elif "watch" in query:
            self._watch(request, query)
        else:
            self._list(request)

    def _list(self, request: BaseHTTPRequestHandler) -> None:
        with self._changed:
            pods, version = list(self._pods.values()), self._version
        metadata = {"resourceVersion": str(version)}
        _say(request, {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": pods})

    def _initial_events(self) -> tuple[int, list[Json]]:
        """What there is, the mark behind it, and as of which version."""
        with self._changed:
            pods, version = list(self._pods.values()), self._version
        end = {"resourceVersion": str(version), "annotations": {"k8s.io/initial-events-end": "true"}}
        mark = {"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1", "metadata": end}}
        return version, [*({"type": "ADDED", "object": pod} for pod in pods), mark]

    def _watch(self, request: BaseHTTPRequestHandler, query: dict[str, str]) -> None:
        since = int(query.get("resourceVersion") or 0)
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        if query.get("sendInitialEvents") == "true":
            since, events = self._initial_events()
            for event in events:
                _chunk(request, event)
        while True:
            with self._changed:
                self._changed.wait_for(partial(self._has_news, since), float(query["timeoutSeconds"]))
                new = [(at, event) for at, event in self._events if at > since]
            for at, event in new:
                since = at
                _chunk(request, event)
            if not new:
                request.wfile.write(b"0\r\n\r\n")
                return


def _say(request: BaseHTTPRequestHandler, answer: Json, status: int = 200) -> None:
    body = json.dumps(answer).encode()
    request.send_response(status)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def _refuse(request: BaseHTTPRequestHandler, status: int) -> None:
    """Answer with an error, as the API server words it."""
    _say(request, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}, status)


def _chunk(request: BaseHTTPRequestHandler, event: Json) -> None:
    line = json.dumps(event).encode() + b"\n"
    request.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
    request.wfile.flush()


@contextmanager
def api_server(folder: Path) -> Iterator[tuple[ApiServer, Access]]:
    """One that runs, and how a pod reaches it."""
    served = ApiServer(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            served.answer(self)
            self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Clients may leave when they like."""

    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(served.certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield served, Access(host="localhost", port=server.server_address[1], account=served.account)
    finally:
        served.end()
        server.shutdown()
        server.server_close()
        thread.join(5)
