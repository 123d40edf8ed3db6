"""The pods of this node, from the Kubernetes API server, by a thread of its own: a server that hangs holds up nobody.

In: list and watch of pods, of this node (``OTELGPU_NODE_NAME``), or of the agent's own pod where no more is allowed.
Out: :class:`PodWatch`, which answers what pod a process is in. Only ``list`` and ``watch`` of ``pods`` are asked for.

The standard library's HTTP is enough for one connection at a time, and takes no memory that the exporters do not
take already; the official client would take more than the rest of the agent.

Source: Kubernetes API concepts v1.34 ("Efficient detection of changes", "Retrieving large results sets in chunks"),
"Accessing the Kubernetes API from a Pod".
"""

from __future__ import annotations

import http.client
import logging
import random
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec

from otelgpu import __version__
from otelgpu.discover.kubernetes import (
    ApiStatus,
    OwnPod,
    Pod,
    PodList,
    PodObject,
    PodTable,
    WatchEvent,
    read_pod,
)

_log = logging.getLogger("otelgpu.kubernetes")
_Kind = TypeVar("_Kind")

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAGE: Final = 100  # pods in an answer, where the server divides at all
MAX_ANSWER_BYTES: Final = 32 << 20
"""Of a list: some 1,600 pods of 20 KiB, were they all in one answer, as a server's watch cache gives them."""
MAX_EVENT_BYTES: Final = 4 << 20  # an object has 1.5 MiB at most
MAX_TOKEN_BYTES: Final = 1 << 16
GONE: Final = 410
EXPIRED: Final = "expired"

REASONS: Final[Mapping[str, str]] = {
    "access_missing": "there is no service account to ask the Kubernetes API server with",
    "unreachable": "the Kubernetes API server could not be reached, did not answer in time or is not the one that the "
    "service account's authority vouches for; it is asked again later",
    "unauthorized": "the Kubernetes API server did not accept the service account's token, which is read again",
    "forbidden": "the service account may not list and watch pods; docs/identity.md has the role that it needs",
    "refused": "the Kubernetes API server answered with another error; it is asked again later",
    "garbled": "an answer of the Kubernetes API server was not what it is to be; pods are listed anew",
    "too_large": "an answer of the Kubernetes API server was larger than is read; pods are listed anew",
    "watch_cut": "the connection on which changes of pods are told was cut; it is made again",
    EXPIRED: "the Kubernetes API server no longer knew what had been told; pods were listed anew, and none is missed",
    "pods_full": "more pods on the node than are kept; the processes of the others have no names of Kubernetes",
}
"""What one count of (``kubernetes``, reason) means."""


class ApiError(Exception):
    """Something went wrong; ``reason`` is one of :data:`REASONS`. ``wait_s``: what the server asked for."""

    def __init__(self, reason: str, detail: str, wait_s: float = 0.0) -> None:
        super().__init__(detail)
        self.reason = reason
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the server is, and the files that are read for each connection, for they are changed now and then."""

    host: str
    port: int
    account: Path = ACCOUNT

    def connect(self, timeout_s: float) -> tuple[http.client.HTTPSConnection, str]:
        """A connection that is not open yet, and the token. Raises :class:`ApiError`."""
        try:
            with open(self.account / "token", "rb") as file:
                token = file.read(MAX_TOKEN_BYTES).decode("ascii").strip()
            context = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        except (OSError, ValueError) as error:
            raise ApiError("access_missing", f"{self.account}: {error}") from error
        return http.client.HTTPSConnection(self.host, self.port, context=context, timeout=timeout_s), token


def find_access(environ: Mapping[str, str], account: Path = ACCOUNT) -> Access | None:
    """The server as a pod finds it; None outside of one."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        return None
    return Access(host=host, port=int(port), account=account)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """In seconds. A watch is asked to end after ``watch``, so that the token of the next one is a fresh one."""

    answer: float = 10.0
    whole_answer: float = 60.0
    watch: float = 240.0
    first_wait: float = 1.0
    longest_wait: float = 60.0


class PodWatch:
    """Asks from :meth:`start` to :meth:`stop`; every other method returns at once.

    ``access`` None: there is nobody to ask, which is counted once.
    """

    def __init__(
        self,
        access: Access | None,
        own: OwnPod,
        *,
        times: Times = Times(),
        table: PodTable | None = None,
    ) -> None:
        self._access = access
        self._times = times
        self._questions = questions(own)
        self._lock = threading.Lock()  # of the table and of the counters
        self._table = table if table is not None else PodTable()
        self._counters: Counter[str] = Counter()
        self._socket: socket.socket | None = None  # of the question under way
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otelgpu-kubernetes", daemon=True)
        self._said = self._trouble = ""
        self._version = ""  # as of which the pods are known; "": they are to be listed
        self._listed = threading.Event()

    @property
    def counters(self) -> Counter[str]:
        """By reason, since the start: see :data:`REASONS`."""
        with self._lock:
            return self._counters + self._table.counters

    def find(self, pod_uid: str, container_id: str) -> Pod | None:
        """The pod that a process is in, as far as the server told."""
        with self._lock:
            return self._table.find(pod_uid, container_id)

    def take_changed(self) -> bool:
        """Whether a pod was described otherwise since the last call."""
        with self._lock:
            return self._table.take_changed()

    def start(self) -> None:
        """Begin to ask. Idempotent."""
        if self._access is None or not self._questions:
            self._note(
                "access_missing", "not in a pod, or neither OTELGPU_NODE_NAME nor OTELGPU_POD_NAME is set"
            )
            self._questions = []
        elif self._thread.ident is None:
            self._thread.start()

    @property
    def trouble(self) -> str:
        """What goes wrong now, "" where nothing does."""
        return self._trouble

    def wait_for_list(self, timeout_s: float) -> bool:
        """Until pods were listed once, or it is clear that nobody can be asked; whether they were."""
        return self._listed.wait(timeout_s if self._questions else 0)

    def stop(self, deadline_s: float = 1.0) -> None:
        """End; a thread that looks up a name for longer is left to die with the process. Idempotent."""
        self._stopping.set()
        connected = self._socket
        if connected is not None:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join(deadline_s)

    # -- The thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            wait_s = 0.0
            failed = False
            try:
                if not self._version:
                    self._list(from_cache=failures == 0)
                self._watch()
            except ApiError as error:
                if self._stopping.is_set():
                    return
                self._note(error.reason, str(error))
                failed, wait_s = True, error.wait_s
                if error.reason != "watch_cut":
                    self._version = ""
                if error.reason == "forbidden" and len(self._questions) > 1:
                    del self._questions[0]
            # A watch that ends at once is as good as one that failed: the server is not to be asked in a circle.
            took_s = time.monotonic() - began
            if took_s >= self._times.longest_wait:
                failures = int(failed)
            else:
                failures = failures + 1 if failed or took_s < self._times.first_wait else 0
            if failures:
                wait_s = max(wait_s, self._pause(failures))
            self._stopping.wait(min(wait_s, self._times.longest_wait))

    def _pause(self, failures: int) -> float:
        """Twice as long each time, and not at the same moment on every node."""
        longest = min(self._times.first_wait * 2.0 ** min(failures - 1, 16), self._times.longest_wait)
        return longest * random.uniform(0.5, 1.0)

    def _list(self, *, from_cache: bool) -> None:
        """Take all pods in place of those that were known.

        ``from_cache``: as of any time, which the server answers without asking its database.
        """
        pods: list[Pod] = []
        version, go_on = "", ""
        while True:
            page = {"limit": str(PAGE), **({"continue": go_on} if go_on else {})}
            if from_cache and not go_on:
                page["resourceVersion"] = "0"
            with self._ask(page, self._times.answer) as response:
                answer = _decoded(_whole(response, time.monotonic() + self._times.whole_answer), PodList)
            pods += filter(None, map(read_pod, answer.items or ()))
            version, go_on = answer.metadata.resource_version or version, answer.metadata.go_on
            if not go_on:
                break
        with self._lock:
            self._table.replace(pods)
        self._listed.set()
        if self._said:
            _log.warning("the Kubernetes API server answers again")
            self._said = self._trouble = ""
        self._version = version

    def _watch(self) -> None:
        """Follow changes from the version that is known on, until the server ends it."""
        asked = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(round(self._times.watch), 1)),
            **({"resourceVersion": self._version} if self._version else {}),
        }
        with self._ask(asked, self._times.answer) as response:
            if self._socket is not None:
                self._socket.settimeout(self._times.watch + self._times.answer)
            for line in _lines(response):
                event = _decoded(line, WatchEvent)
                if event.type == "ERROR":
                    status = _decoded(event.object, ApiStatus)
                    raise _refusal(status.code, status.message)
                self._version = self._take(event) or self._version

    def _take(self, event: WatchEvent) -> str:
        """One change; the version that it is as of."""
        given = _decoded(event.object, PodObject)
        pod = read_pod(given)
        if pod is not None and event.type in ("ADDED", "MODIFIED"):
            with self._lock:
                self._table.put(pod)
        elif pod is not None and event.type == "DELETED":
            with self._lock:
                self._table.remove(pod.uid)
        return given.metadata.resource_version

    @contextmanager
    def _ask(self, asked: Mapping[str, str], timeout_s: float) -> Iterator[http.client.HTTPResponse]:
        """An answer whose status is 200. Raises :class:`ApiError` for all that goes wrong meanwhile."""
        assert self._access is not None
        path, selector = self._questions[0]
        connection, token = self._access.connect(timeout_s)
        watching = "watch" in asked
        began = False
        try:
            connection.connect()
            self._socket = connection.sock
            if self._stopping.is_set():  # perhaps before there was anything to shut down
                raise ApiError("watch_cut", "stopped")
            _keep_alive(connection.sock)
            connection.request(
                "GET",
                f"{path}?{urlencode({'fieldSelector': selector, **asked})}",
                headers={
                    "Authorization": f"Bearer {token}",
                    "Accept": "application/json",
                    "User-Agent": f"otelgpu/{__version__}",
                },
            )
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise _refusal(
                    response.status, response.reason, _seconds(response.getheader("Retry-After", ""))
                )
            began = True
            yield response
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = "watch_cut" if watching and began else "unreachable"
            raise ApiError(reason, f"{type(error).__name__}: {error}") from error
        finally:
            self._socket = None
            connection.close()

    def _note(self, reason: str, detail: str) -> None:
        """Counted each time, said when it is another trouble than the last."""
        with self._lock:
            self._counters[reason] += 1
        if reason not in (EXPIRED, "watch_cut", self._said):
            _log.warning("no names from Kubernetes for now: %s (%s)", REASONS[reason], detail)
            self._said, self._trouble = reason, f"{REASONS[reason]} ({detail})"


def questions(own: OwnPod) -> list[tuple[str, str]]:
    """(path, field selector) of what may be asked, the best first."""
    found = []
    if own.node:
        found.append(("/api/v1/pods", f"spec.nodeName={own.node}"))
    if own.name and own.namespace and _is_name(own.namespace):
        found.append((f"/api/v1/namespaces/{own.namespace}/pods", f"metadata.name={own.name}"))
    return found


def _is_name(text: str) -> bool:
    """Whether it can stand in a path."""
    return text.replace("-", "").isalnum() and text.isascii()


def _refusal(status: int, detail: str, wait_s: float = 0.0) -> ApiError:
    reason = {401: "unauthorized", 403: "forbidden", GONE: EXPIRED}.get(status, "refused")
    return ApiError(reason, f"{status} {detail[:200]}", wait_s)


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() and len(text) < 6 else 0.0


def _keep_alive(connected: socket.socket) -> None:
    """A server that vanished without a word is noticed within a minute."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
        connected.setsockopt(socket.IPPROTO_TCP, option, value)


def _whole(response: http.client.HTTPResponse, until: float) -> bytes:
    """The body, if it comes in time and is not too large."""
    parts: list[bytes] = []
    size = 0
    while part := response.read1(1 << 16):
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise ApiError("too_large", f"more than {MAX_ANSWER_BYTES} bytes")
        if time.monotonic() > until:
            raise ApiError("unreachable", "the answer takes too long")
    return b"".join(parts)


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while line := response.readline(MAX_EVENT_BYTES + 1):
        if len(line) > MAX_EVENT_BYTES:
            raise ApiError("too_large", f"an event of more than {MAX_EVENT_BYTES} bytes")
        if not line.endswith(b"\n"):
            raise ApiError("watch_cut", "the connection ended within an event")
        if line.strip():
            yield line


def _decoded(data: bytes | msgspec.Raw, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError("garbled", str(error)[:200]) from error
