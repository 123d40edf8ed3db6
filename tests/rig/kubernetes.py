"""A stand-in for the Kubernetes API server: pods of one node, listed and watched over TLS, and every way to fail.

As the real one, it answers a list with a version, tells a watch what changed since that version, forgets old
versions (410), and asks for a bearer token. A watch may also begin with what there is (``sendInitialEvents``). What
it does otherwise a test says by :attr:`ApiServer.script`. Format: Kubernetes API concepts, "Efficient detection of
changes" and "Streaming lists".
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from otelgpu.discover.kubernetes_api import Access
from tests.rig.certificates import make_certificate

NODE = "node-1"
Json = dict[str, Any]


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
    """:meth:`put` and :meth:`delete` change what is there. ``asked``: every request's path and query."""

    def __init__(self, folder: Path, certificate: Path | None = None) -> None:
        self.token = "first"
        self.forgotten = 0  # versions up to here are not known any more
        self.page = 0  # pods in an answer; 0: all
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.watches = 0  # that were begun
        self.tokens: list[str] = []
        self.script: list[Callable[[BaseHTTPRequestHandler], None]] = []  # in place of the next answers
        self._pods: dict[str, Json] = {}
        self._events: list[tuple[int, Json]] = []
        self._version = 1
        self._changed = threading.Condition()
        self._cut = 0
        self.certificate = certificate or make_certificate(folder)
        self.account = folder / "account"
        self.account.mkdir()
        (self.account / "ca.crt").write_bytes(self.certificate.with_name("certificate.pem").read_bytes())
        self.write_token("first")

    def write_token(self, token: str) -> None:
        """Into the file that a pod reads it from."""
        (self.account / "token").write_text(token + "\n")

    def put(self, pod: Json) -> None:
        """A pod is made or changed."""
        with self._changed:
            uid = pod["metadata"]["uid"]
            self._tell("MODIFIED" if uid in self._pods else "ADDED", pod)
            self._pods[uid] = pod

    def delete(self, uid: str) -> None:
        """A pod is no more."""
        with self._changed:
            self._tell("DELETED", self._pods.pop(uid))

    def send(self, event: Json) -> None:
        """To the watches that there are, whatever it is."""
        with self._changed:
            self._version += 1
            self._events.append((self._version, event))
            self._changed.notify_all()

    def cut(self) -> None:
        """Cut every watch in the middle of a chunk."""
        with self._changed:
            self._cut += 1
            self._changed.notify_all()

    def forget(self) -> None:
        """Remember no change up to now, as after a compaction."""
        with self._changed:
            self.forgotten = self._version
            self._events.clear()

    def _has_news(self, since: int, cut: int) -> bool:
        return self._cut != cut or any(at > since for at, _ in self._events)

    def _tell(self, kind: str, pod: Json) -> None:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        self._events.append((self._version, {"type": kind, "object": pod}))
        self._changed.notify_all()

    # -- Answers --------------------------------------------------------------------------------------

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.asked.append((url.path, query))
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.tokens.append(token)
        if self.script:
            self.script.pop(0)(request)
        elif token != self.token:
            refuse(401)(request)
        elif not url.path.startswith("/api/v1/") or "/pods" not in url.path:
            refuse(404)(request)
        elif "watch" in query:
            self._watch(request, query)
        else:
            self._list(request, query)

    def _list(self, request: BaseHTTPRequestHandler, query: dict[str, str]) -> None:
        with self._changed:
            pods, version = list(self._pods.values()), self._version
        first = int(query.get("continue", "0"))
        last = first + self.page if self.page else len(pods)
        metadata = {"resourceVersion": str(version), "continue": str(last) if last < len(pods) else ""}
        say(request, {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": pods[first:last]})

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
        elif since < self.forgotten:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            _chunk(request, {"type": "ERROR", "object": gone})
            request.wfile.write(b"0\r\n\r\n")
            return
        with self._changed:
            cut = self._cut
            self.watches += 1
        while True:
            with self._changed:
                self._changed.wait_for(partial(self._has_news, since, cut), float(query["timeoutSeconds"]))
                new = [(at, event) for at, event in self._events if at > since]
                is_cut = self._cut != cut
            for at, event in new:
                since = at
                _chunk(request, event)
            if is_cut:
                request.wfile.write(b'20\r\n{"type": "ADDED", ')
                request.close_connection = True
                return
            if not new:
                request.wfile.write(b"0\r\n\r\n")
                return


def say(request: BaseHTTPRequestHandler, answer: Json, status: int = 200, **headers: str) -> None:
    """A whole answer."""
    body = json.dumps(answer).encode()
    request.send_response(status)
    described = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    for name, value in {**described, **headers}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)


def refuse(status: int, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """Answer with an error, as the API server words it."""
    told = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}
    return lambda request: say(request, told, status, **headers)


def write(body: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    """Answer 200 with these bytes."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


def _chunk(request: BaseHTTPRequestHandler, event: Json) -> None:
    line = json.dumps(event).encode() + b"\n" if event.get("type") else event["raw"]
    request.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
    request.wfile.flush()


@contextmanager
def api_server(folder: Path, certificate: Path | None = None) -> Iterator[tuple[ApiServer, Access]]:
    """One that runs, and how a pod reaches it. ``certificate``: made before, by make_certificate."""
    served = ApiServer(folder, certificate)

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
        served.cut()
        server.shutdown()
        server.server_close()
        thread.join(5)
