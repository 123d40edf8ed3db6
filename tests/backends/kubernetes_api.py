"""A stand-in for a Kubernetes API server: it lists and watches the pods that it was given, and nothing else.

In: pods, as the API has them. Out: a kubeconfig for its clients, and the requests that came. Both ways in which clients
ask are answered: a list and then a watch, and a watch that begins with what there is (``sendInitialEvents``).
Format: Kubernetes API concepts, "Efficient detection of changes" and "Streaming lists".
"""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

_PODS: Final = "/api/v1/pods"
_VERSION: Final = "7"
"""The resource version of everything: nothing ever changes."""


@dataclass
class KubernetesApi:
    """A running server. ``asked``: path and query of each request."""

    kubeconfig: Path
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def selectors(self) -> set[str]:
        """Of the requests for pods: what fields they were to have."""
        return {query.get("fieldSelector", "") for path, query in self.asked if path == _PODS}


def deployed_pod(deployment: str, uid: str, node: str, address: str, container_id: str) -> dict[str, Any]:
    """A pod of a Deployment in the namespace ``inference``; its one container is called ``server``."""
    replica_set = f"{deployment}-5d9f7c8b6"
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": replica_set,
        "uid": "owner",
        "controller": True,
    }
    image = "registry.example/llm:1.2"
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": f"{replica_set}-x2x9z",
            "namespace": "inference",
            "uid": uid,
            "labels": {"pod-template-hash": "5d9f7c8b6"},
            "resourceVersion": _VERSION,
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": node, "containers": [{"name": "server", "image": image}]},
        "status": {
            "phase": "Running",
            "podIP": address,
            "containerStatuses": [
                {
                    "name": "server",
                    "image": image,
                    "containerID": f"containerd://{container_id}",
                    "restartCount": 0,
                }
            ],
        },
    }


def _initial_events(pods: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What there is, and the mark behind it."""
    end = {"resourceVersion": _VERSION, "annotations": {"k8s.io/initial-events-end": "true"}}
    mark = {"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1", "metadata": end}}
    return [*({"type": "ADDED", "object": each} for each in pods), mark]


@contextlib.contextmanager
def kubernetes_api(folder: Path, pods: Sequence[dict[str, Any]]) -> Iterator[KubernetesApi]:
    """A server until the end of the block; its kubeconfig is in ``folder``."""
    state = KubernetesApi(folder / "kubeconfig.json")
    stopping = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(asked.query).items()}
            state.asked.append((asked.path, query))
            if asked.path != _PODS:
                self._answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})
            elif query.get("watch") in ("1", "true"):
                self._watch(_initial_events(pods) if query.get("sendInitialEvents") == "true" else [])
            else:
                metadata = {"resourceVersion": _VERSION}
                self._answer(
                    200, {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": list(pods)}
                )

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _watch(self, events: list[dict[str, Any]]) -> None:
            """The events, one a line, and then silence until the server ends."""
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in events:
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
            stopping.wait()
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.kubeconfig.write_text(json.dumps(_kubeconfig(f"http://127.0.0.1:{server.server_port}")))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        stopping.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


def _kubeconfig(server: str) -> dict[str, Any]:
    """For clients that need no authentication; every JSON text is YAML."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "standin", "cluster": {"server": server}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "standin", "context": {"cluster": "standin", "user": "nobody"}}],
        "current-context": "standin",
    }
