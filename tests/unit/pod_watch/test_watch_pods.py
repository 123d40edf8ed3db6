"""``otelgpu watch-pods`` against an API server that a test plays, over HTTP on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from otelgpu.cli.pod_watch import command
from otelgpu.cli.pod_watch.api_server import ApiServer, Expired, Place, Unreachable
from otelgpu.cli.pod_watch.command import Switches, follow, place_of
from otelgpu.cli.pod_watch.metadata import Metadata
from otelgpu.errors import OtelgpuError
from otelgpu.families.switches.poll.switch_file import SwitchFile
from otelgpu.model.inputs import Input
from otelgpu.model.switches import MOST_PODS, PROFILE_ANNOTATION, SwitchesRead, SwitchesWritten


def pod(name: str, value: str | None = "all 5m", version: str = "8") -> dict[str, Any]:
    annotations = {} if value is None else {"otelgpu.io/detail": value}
    told = {"name": name, "namespace": "n", "uid": f"uid-{name}", "resourceVersion": version}
    return {"kind": "PartialObjectMetadata", "metadata": told | {"annotations": annotations}}


def page(*pods: dict[str, Any], version: str = "7", following: str = "") -> bytes:
    metadata = {"resourceVersion": version} | ({"continue": following} if following else {})
    return json.dumps({"kind": "PartialObjectMetadataList", "metadata": metadata, "items": pods}).encode()


def event(kind: str, of: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": of}).encode() + b"\n"


class Played:
    """Answers lists and watches with what it was given, in turn, the last for good; remembers what it was asked."""

    def __init__(self) -> None:
        self.lists: list[tuple[int, bytes]] = [(200, page())]
        self.watches: list[tuple[int, bytes]] = [(200, b"")]
        self.asked: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.lists_break = False
        played = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                assert parts.path == "/api/v1/pods"
                options = {key: value for key, (value,) in parse_qs(parts.query).items()}
                played.asked.append(options)
                played.headers.append(dict(self.headers))
                answers = played.watches if "watch" in options else played.lists
                status, content = answers.pop(0) if len(answers) > 1 else answers[0]
                self.send_response(status)
                if played.lists_break and "watch" not in options:
                    self.send_header("Transfer-Encoding", "chunked")
                    content = b"zz\r\n"
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def played() -> Iterator[Played]:
    made = Played()
    yield made
    made.stop()


class Enough(Exception):
    pass


def followed(played: Played, path: Path, turns: int = 1) -> tuple[list[str], list[float]]:
    """What the file said after each of ``turns`` pauses, and how long these were to be."""
    texts: list[str] = []
    pauses: list[float] = []

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        texts.append(path.read_text() if path.exists() else "")
        if len(pauses) == turns:
            raise Enough

    with pytest.raises(Enough):
        follow(ApiServer(Place(url=played.url), "node-a"), [Switches(path)], wait)
    return texts, pauses


def asked_in(text: str) -> dict[str, str]:
    read = msgspec.json.decode(text, type=SwitchesRead)
    return {each.pod: each.value for each in read.switches}


def test_metadata_of_the_pods_of_the_node_is_asked_for_and_nothing_else(
    played: Played, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret\n")
    server = ApiServer(Place(url=played.url, token=tmp_path / "token"), "node-a")
    assert server.list() == ([], "7")
    assert list(server.watch("7")) == []
    listed, watched = played.asked
    assert listed == {"fieldSelector": "spec.nodeName=node-a", "limit": "250"}
    assert (watched["fieldSelector"], watched["watch"], watched["resourceVersion"]) == (
        "spec.nodeName=node-a",
        "1",
        "7",
    )
    assert played.headers[0]["Accept"] == "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    assert played.headers[1]["Accept"] == "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    assert {each["Authorization"] for each in played.headers} == {"Bearer secret"}


def test_a_long_list_is_read_in_pages(played: Played) -> None:
    played.lists = [(200, page(pod("a"), following="next")), (200, page(pod("b"), version="9"))]
    pods, version = ApiServer(Place(url=played.url), "node-a").list()
    assert ([each.name for each in pods], version) == (["a", "b"], "9")
    assert played.asked[1]["continue"] == "next"


def test_the_file_follows_what_happens_and_the_agent_reads_it(played: Played, tmp_path: Path) -> None:
    played.lists = [(200, page(pod("a"), pod("plain", None)))]
    played.watches = [
        (200, event("ADDED", pod("b", "ops 1m", "8")) + event("MODIFIED", pod("a", "all 9m", "9"))),
        (200, event("DELETED", pod("b", "ops 1m", "10")) + event("BOOKMARK", pod("", None, "11"))),
        (200, event("MODIFIED", pod("a", None, "12"))),
    ]
    path = tmp_path / "switches.json"
    texts, _ = followed(played, path, 3)
    assert list(map(asked_in, texts)) == [{"a": "all 9m", "b": "ops 1m"}, {"a": "all 9m"}, {}]
    assert [each["resourceVersion"] for each in played.asked if "watch" in each] == ["7", "9", "11"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["switches.json"]
    read: list[Input] = list(SwitchFile(path).collect(0))
    assert read == [SwitchesRead()]


def test_what_is_too_long_ago_is_listed_again(played: Played, tmp_path: Path) -> None:
    status = {"kind": "Status", "code": 410, "reason": "Expired", "metadata": {}}
    played.lists = [(200, page(pod("a"))), (200, page(pod("b"), version="20"))]
    played.watches = [(200, event("ERROR", status)), (410, b"{}"), (200, b"")]
    texts, _ = followed(played, tmp_path / "f", 3)
    assert list(map(asked_in, texts)) == [{"a": "all 5m"}, {"b": "all 5m"}, {"b": "all 5m"}]


@pytest.mark.parametrize(
    ("lists", "watches", "words"),
    [
        ([(403, b'{"message": "pods is forbidden"}')], [(200, b"")], "refuses (403): "),
        ([(401, b"")], [(200, b"")], "refuses (401)"),
        ([(302, b"")], [(200, b"")], "refuses (302)"),
        ([(200, b"<html>")], [(200, b"")], "list is none of pods"),
        ([(200, b'{"items": [1], "metadata": {}}')], [(200, b"")], "list is none of pods"),
        ([(200, page())], [(200, b'{"type": 1}\n')], "watch says what is no event"),
        ([(200, page())], [(200, b"\xff\xfe\n")], "watch says what is no event"),
        ([(200, page())], [(500, b"\x1b[1m")], "refuses (500)"),
    ],
)
def test_a_server_that_does_not_answer_as_it_should_is_asked_later_and_later(
    played: Played,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    lists: list[tuple[int, bytes]],
    watches: list[tuple[int, bytes]],
    words: str,
) -> None:
    played.lists, played.watches = lists, watches
    texts, pauses = followed(played, tmp_path / "f", 8)
    assert words in caplog.text and "\x1b" not in caplog.text
    assert len(caplog.records) == 1
    assert pauses[-1] > 30 and all(each <= 60 for each in pauses)
    assert texts[-1] in ('{"failures":8}', '{"switches":[],"failures":8}')


def test_what_cannot_be_read_or_written_is_tried_again_too_and_does_not_end_it(
    played: Played, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a pod that has ended the agent would not be ready."""
    token, folder = tmp_path / "token", tmp_path / "run"
    texts: list[str] = []

    def wait(_: float) -> None:
        texts.append((folder / "f").read_text() if (folder / "f").exists() else "")
        match len(texts):
            case 1:
                token.write_text("a\nb: c")
            case 2:
                token.write_text("secret")
            case 3:
                folder.mkdir()
            case 5:
                raise Enough

    played.lists = [(200, page(pod("a")))]
    server = ApiServer(Place(url=played.url, token=token), "node-a")
    with pytest.raises(Enough):
        follow(server, [Switches(folder / "f")], wait)
    assert [each.message.partition(" ")[0] for each in caplog.records] == ["cannot", str(token), "cannot"]
    assert texts[2] == "" and asked_in(texts[-1]) == {"a": "all 5m"}
    assert msgspec.json.decode(texts[-1], type=SwitchesWritten).failures == 3


def test_requests_for_profiles_are_in_a_file_of_their_own(played: Played, tmp_path: Path) -> None:
    both = pod("a")
    both["metadata"]["annotations"] |= {"otelgpu.io/profile": "30s"}
    profiled = pod("b", None, "8")
    profiled["metadata"]["annotations"] = {"otelgpu.io/profile": "5s"}
    played.lists, played.watches = [(200, page(both))], [(200, event("ADDED", profiled))]
    detail, profiles = tmp_path / "switches.json", tmp_path / "profiles.json"

    def wait(seconds: float) -> None:
        raise Enough

    with pytest.raises(Enough):
        server = ApiServer(Place(url=played.url), "node-a")
        follow(server, [Switches(detail), Switches(profiles, PROFILE_ANNOTATION)], wait)
    assert asked_in(detail.read_text()) == {"a": "all 5m"}
    assert asked_in(profiles.read_text()) == {"a": "30s", "b": "5s"}


def test_a_list_that_breaks_off_is_asked_for_again(
    played: Played, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    played.lists_break = True
    texts, _ = followed(played, tmp_path / "f", 2)
    assert "the list of the API server broke off" in caplog.text
    assert msgspec.json.decode(texts[-1], type=SwitchesWritten).failures == 2


def test_nested_without_end_is_no_answer(played: Played) -> None:
    deep = b'{"metadata": {"managedFields": [{"fieldsV1": ' + b'{"a": ' * 100_000
    played.lists, played.watches = (
        [(200, b'{"metadata": {}, "items": [' + deep)],
        [(200, b'{"type": "ADDED", "object": ' + deep + b"\n")],
    )
    server = ApiServer(Place(url=played.url), "node-a")
    with pytest.raises(Unreachable, match="list is none of pods"):
        server.list()
    with pytest.raises(Unreachable, match="watch says what is no event"):
        list(server.watch("7"))


def test_a_server_that_is_not_there_is_unreachable(played: Played) -> None:
    played.stop()
    with pytest.raises(Unreachable, match="does not answer"):
        ApiServer(Place(url=played.url), "node-a").list()
    played.__init__()  # type: ignore[misc]  # for the fixture to stop


def test_an_answer_without_an_end_is_given_up(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otelgpu.cli.pod_watch.api_server.LARGEST", 1000)
    monkeypatch.setattr("otelgpu.cli.pod_watch.api_server.LONGEST_LINE", 1000)
    played.lists, played.watches = [(200, b" " * 1001)], [(200, b" " * 1001)]
    server = ApiServer(Place(url=played.url), "node-a")
    with pytest.raises(Unreachable, match="more than 1,000 bytes"):
        server.list()
    with pytest.raises(Unreachable, match="a line without an end"):
        list(server.watch("7"))


def test_a_watch_that_has_expired_says_so(played: Played) -> None:
    played.watches = [(410, b"")]
    with pytest.raises(Expired):
        list(ApiServer(Place(url=played.url), "node-a").watch("7"))


def test_of_too_many_pods_some_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = [
        Metadata(name=f"p{n}", namespace="n", uid=f"{n:04}", annotations={"otelgpu.io/detail": "all 5m"})
        for n in range(MOST_PODS + 1)
    ]
    Switches(tmp_path / "f").replace(found)
    assert len(asked_in((tmp_path / "f").read_text())) == MOST_PODS
    assert "257 pods are annotated: 256 of them count" in caplog.text
    assert len(SwitchFile(tmp_path / "f").collect(0)) == 1


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "f").symlink_to("victim")
    Switches(tmp_path / "f").replace([])
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "f").is_symlink()


@pytest.mark.parametrize(
    "url",
    ["", "kubernetes", "ftp://a", "http://example.org", "https://", "https://a:b", "http://10.0.0.1:8001"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(OtelgpuError, match="no address of an API server"):
        ApiServer(Place(url=url), "node-a")


def test_in_a_pod_the_place_is_the_clusters() -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    place = place_of(None, None, None, environ)
    assert place.url == "https://[fd00::1]:443"
    assert str(place.token) == "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert str(place.authority) == "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    with pytest.raises(OtelgpuError, match="this is no pod of Kubernetes"):
        place_of(None, None, None, {})


def test_a_token_that_cannot_be_read_is_named(played: Played, tmp_path: Path) -> None:
    with pytest.raises(OtelgpuError, match="cannot read the token"):
        ApiServer(Place(url=played.url, token=tmp_path / "none"), "node-a").list()
    with pytest.raises(OtelgpuError, match="cannot read the token"):
        ApiServer(Place(url=played.url, token=tmp_path / "none"), "node-a").check()
    with pytest.raises(OtelgpuError, match="cannot read certificates"):
        ApiServer(Place(url="https://127.0.0.1:1", authority=tmp_path / "none"), "node-a").check()
    with pytest.raises(OtelgpuError, match="cannot write"):
        Switches(tmp_path / "none/f").replace([])
    assert command.watch_pods.name == "watch-pods"
