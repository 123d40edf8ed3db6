"""What pods are called, from an API server that is real but for what is behind it: HTTP over TLS, on loopback."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from otelgpu.discover import kubernetes_api
from otelgpu.discover.kubernetes import OwnPod, PodTable
from otelgpu.discover.kubernetes_api import Access, PodWatch, Times, find_access, questions
from tests.rig.certificates import make_certificate
from tests.rig.kubernetes import NODE, ApiServer, api_server, pod_object, refuse, write
from tests.unit.discover.processes_builders import CONTAINER, POD

OTHER = "22222222-3333-4444-8555-666666666666"
OWN = OwnPod(node=NODE, name="agent-x", namespace="monitoring")
QUICK = Times(answer=0.3, whole_answer=0.2, watch=5, first_wait=0.02, longest_wait=0.2)


class Asked:
    """A server, and a watch on it."""

    def __init__(self, server: ApiServer, access: Access, own: OwnPod = OWN) -> None:
        self.server = server
        self.table = PodTable()
        self.watch = PodWatch(access, own, times=QUICK, table=self.table)

    def name(self, uid: str = POD) -> object:
        pod = self.watch.find(uid, "")
        return pod.attributes["k8s.pod.name"] if pod is not None else None

    def count(self, reason: str) -> int:
        return self.watch.counters[reason]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def asked(tmp_path: Path, certificate: Path) -> Iterator[Asked]:
    with api_server(tmp_path, certificate) as (server, access):
        made = Asked(server, access)
        try:
            yield made
        finally:
            made.watch.stop()


def eventually(holds: Callable[[], object]) -> None:
    until = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_pods_of_the_node_are_listed_and_watched(asked: Asked) -> None:
    server = asked.server
    server.put(pod_object("worker-0", POD, container_id=CONTAINER))
    asked.watch.start()
    eventually(lambda: asked.name() == "worker-0")
    assert asked.watch.wait_for_list(0) and asked.watch.take_changed() and not asked.watch.take_changed()
    by_container = asked.watch.find("", CONTAINER)
    assert by_container is not None and by_container.uid == POD
    server.put(pod_object("worker-1", OTHER))
    eventually(lambda: asked.name(OTHER) == "worker-1")
    assert asked.watch.take_changed()
    server.delete(POD)
    eventually(lambda: asked.name() is None)
    eventually(lambda: server.watches == 1)
    (list_path, listed), (watch_path, watched) = server.asked
    assert list_path == watch_path == "/api/v1/pods"
    assert listed["fieldSelector"] == watched["fieldSelector"] == f"spec.nodeName={NODE}"
    assert (listed["resourceVersion"], watched["allowWatchBookmarks"]) == ("0", "true")
    assert not asked.watch.counters


def test_a_list_may_come_in_pages(asked: Asked) -> None:
    asked.server.page = 2
    for number in range(5):
        asked.server.put(pod_object(f"worker-{number}", f"{POD[:-1]}{number}"))
    asked.watch.start()
    eventually(lambda: len(asked.table) == 5)
    assert [query.get("continue") for _, query in asked.server.asked[:3]] == [None, "2", "4"]


def test_a_bookmark_moves_the_version_and_names_nobody(asked: Asked) -> None:
    asked.watch.start()
    eventually(lambda: asked.server.watches == 1)
    asked.server.send({"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "77"}}})
    asked.server.cut()
    eventually(lambda: asked.server.watches == 2)
    assert asked.server.asked[2][1]["resourceVersion"] == "77" and len(asked.table) == 0


def test_the_token_is_read_again_for_each_connection(asked: Asked) -> None:
    asked.watch.start()
    eventually(lambda: asked.server.watches == 1)
    asked.server.write_token("second")
    asked.server.token = "second"
    asked.server.put(pod_object("worker-0", POD))
    asked.server.cut()
    eventually(lambda: "second" in asked.server.tokens)
    eventually(lambda: asked.name() == "worker-0")
    assert asked.count("unauthorized") == 0


def test_a_token_that_is_not_accepted_is_counted_until_there_is_another(asked: Asked) -> None:
    asked.server.put(pod_object("worker-0", POD))
    asked.server.token = "second"
    asked.watch.start()
    eventually(lambda: asked.count("unauthorized") >= 2)
    assert asked.name() is None
    asked.server.write_token("second")
    eventually(lambda: asked.name() == "worker-0")


def test_who_may_not_ask_for_the_node_asks_for_the_agents_own_pod(asked: Asked) -> None:
    asked.server.put(pod_object("agent-x", POD))
    asked.server.script = [refuse(403)]
    asked.watch.start()
    eventually(lambda: asked.name() == "agent-x")
    path, query = asked.server.asked[1]
    assert (path, query["fieldSelector"]) == ("/api/v1/namespaces/monitoring/pods", "metadata.name=agent-x")
    assert asked.count("forbidden") == 1


def test_who_may_not_ask_at_all_is_told_so_and_waits_longer_each_time(asked: Asked) -> None:
    asked.server.script = [refuse(403)] * 1000
    asked.watch.start()
    eventually(lambda: asked.count("forbidden") >= 5)
    time.sleep(0.2)
    assert asked.count("forbidden") < 30  # 0.2 s and 0.02 s to begin with, doubled to 0.2 s


def test_a_version_that_is_forgotten_has_the_pods_listed_anew(asked: Asked) -> None:
    asked.server.put(pod_object("worker-0", POD))
    asked.watch.start()
    eventually(lambda: asked.server.watches == 1)
    asked.server.put(pod_object("worker-1", OTHER))
    eventually(lambda: asked.name(OTHER) is not None)
    asked.server.delete(POD)
    asked.server.send({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}})
    eventually(lambda: asked.count("expired") == 1 and asked.server.watches == 2)
    assert (asked.name(), asked.name(OTHER)) == (None, "worker-1")
    lists = [query for _, query in asked.server.asked if "watch" not in query]
    assert [query.get("resourceVersion") for query in lists] == ["0", None]  # not from what may be as old


def test_a_status_410_is_the_same(asked: Asked) -> None:
    asked.watch.start()
    eventually(lambda: asked.server.watches == 1)
    asked.server.script = [refuse(410)]
    asked.server.cut()
    eventually(lambda: asked.count("expired") == 1)
    asked.server.put(pod_object("worker-0", POD))
    eventually(lambda: asked.name() == "worker-0")


def test_a_watch_that_is_cut_goes_on_where_it_was(asked: Asked) -> None:
    asked.server.put(pod_object("worker-0", POD))
    asked.watch.start()
    eventually(lambda: asked.name() == "worker-0")
    for cuts in range(1, 4):
        eventually(lambda cuts=cuts: asked.server.watches == cuts)
        asked.server.cut()
        eventually(lambda cuts=cuts: asked.count("watch_cut") == cuts)
    asked.server.put(pod_object("worker-1", OTHER))
    eventually(lambda: asked.name(OTHER) == "worker-1")
    assert sum("watch" not in query for _, query in asked.server.asked) == 1  # nothing was listed again


@pytest.mark.parametrize(("chunk", "cuts"), [(b"", 1), (b'7\r\n{"type"\r\n0\r\n\r\n', 2)])
def test_a_watch_that_ends_otherwise_goes_on_too(asked: Asked, chunk: bytes, cuts: int) -> None:
    def end(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        request.wfile.write(chunk)

    asked.watch.start()
    eventually(lambda: asked.server.watches == 1)
    asked.server.script = [end]
    asked.server.cut()
    eventually(lambda: asked.server.watches == 2)
    asked.server.put(pod_object("worker-0", POD))
    eventually(lambda: asked.name() == "worker-0")
    assert asked.watch.counters == {"watch_cut": cuts}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html>proxy</html>", "garbled"),
        (b'{"items": []}', "garbled"),
        (b'{"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": 7}}]}', "garbled"),
        (b'{"metadata": ' + b'{"a":' * 100_000, "garbled"),
        (b"\xff\xfe", "garbled"),
    ],
)
def test_garbage_in_place_of_a_list_is_counted(asked: Asked, body: bytes, reason: str) -> None:
    asked.server.put(pod_object("worker-0", POD))
    asked.server.script = [write(body)]
    asked.watch.start()
    eventually(lambda: asked.name() == "worker-0")
    assert asked.count(reason) == 1


@pytest.mark.parametrize("line", [b"garbage\n", b'{"type": "ADDED"}\n', b'{"type": "ADDED", "object": 3}\n'])
def test_garbage_in_a_watch_has_the_pods_listed_anew(asked: Asked, line: bytes) -> None:
    asked.server.put(pod_object("worker-0", POD))
    asked.watch.start()
    eventually(lambda: asked.server.watches == 1)
    asked.server.send({"raw": line})
    eventually(lambda: asked.count("garbled") == 1)
    asked.server.put(pod_object("worker-1", OTHER))
    asked.server.forget()
    eventually(lambda: asked.name(OTHER) == "worker-1")
    assert asked.name() == "worker-0"


def test_what_is_too_large_is_not_read(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_api, "MAX_ANSWER_BYTES", 1000)
    monkeypatch.setattr(kubernetes_api, "MAX_EVENT_BYTES", 100)
    asked.server.script = [write(b" " * 2000)]
    asked.watch.start()
    eventually(lambda: asked.count("too_large") == 1)
    eventually(lambda: asked.watch.wait_for_list(0))
    asked.server.put(pod_object("worker-0", POD))
    eventually(lambda: asked.count("too_large") == 2)


def test_a_server_that_does_not_answer_holds_up_nobody(asked: Asked) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        watch = PodWatch(Access(host="localhost", port=port, account=asked.server.account), OWN, times=QUICK)
        began = time.monotonic()
        watch.start()
        assert watch.find(POD, CONTAINER) is None and not watch.take_changed()
        assert time.monotonic() - began < QUICK.answer
        eventually(lambda: watch.counters["unreachable"] == 1)
        watch.stop()


def test_an_answer_that_drips_is_given_up(asked: Asked) -> None:
    def drip(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000")
        request.end_headers()
        for _ in range(100):
            request.wfile.write(b" ")
            time.sleep(0.02)

    asked.server.put(pod_object("worker-0", POD))
    asked.server.script = [drip]
    asked.watch.start()
    eventually(lambda: asked.count("unreachable") == 1)
    eventually(lambda: asked.name() == "worker-0")


def test_a_server_whose_authority_is_another_is_told_nothing(asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with api_server(tmp_path / "other") as (stranger, _):
        authority = stranger.account / "ca.crt"
        (asked.server.account / "ca.crt").write_bytes(authority.read_bytes())
    asked.watch.start()
    eventually(lambda: asked.count("unreachable") >= 1)
    assert asked.server.tokens == []


def test_a_server_that_asks_for_time_has_it(asked: Asked) -> None:
    asked.server.script = [refuse(429, **{"Retry-After": "1"})]
    began = time.monotonic()
    asked.watch.start()
    eventually(lambda: asked.watch.wait_for_list(0))
    assert asked.count("refused") == 1
    assert time.monotonic() - began >= QUICK.longest_wait  # as long as it asks for, but no longer than that


def test_without_an_account_nobody_is_asked(tmp_path: Path) -> None:
    for access, own in ((None, OWN), (Access(host="localhost", port=1, account=tmp_path), OwnPod())):
        watch = PodWatch(access, own)
        watch.start()
        assert watch.counters == {"access_missing": 1}
        watch.stop()
    watch = PodWatch(Access(host="localhost", port=1, account=tmp_path), OWN, times=QUICK)
    watch.start()
    eventually(lambda: watch.counters["access_missing"])
    watch.stop()


def test_the_watch_stops_at_once(asked: Asked) -> None:
    asked.watch.start()
    eventually(lambda: asked.server.watches == 1)
    began = time.monotonic()
    asked.watch.stop(deadline_s=5)
    assert time.monotonic() - began < 3
    asked.watch.stop()


def test_a_pod_finds_the_server_by_its_environment() -> None:
    variables = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    found = find_access(variables)
    assert found is not None and (found.host, found.port) == ("fd00::1", 6443)
    assert find_access({}) is None
    for port in ("", "x", "0", "70000"):
        assert find_access(variables | {"KUBERNETES_SERVICE_PORT": port}) is None


def test_what_is_asked_depends_on_what_is_known() -> None:
    assert questions(OwnPod()) == []
    assert questions(OwnPod(node="n")) == [("/api/v1/pods", "spec.nodeName=n")]
    assert questions(OwnPod(name="a", namespace="b")) == [("/api/v1/namespaces/b/pods", "metadata.name=a")]
    assert questions(OwnPod(name="a", namespace="../x")) == []
