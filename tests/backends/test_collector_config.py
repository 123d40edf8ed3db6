"""Every file of collector-config/ is started as its head comment says, and what goes in comes out at its backend.

Backends are fakes that take their protocol. ClickHouse's is none that can be played: there, what came waits in the
queue on disk.
"""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from otelgpu.export.profiles import encode_profiles
from tests.backends.configured import (
    PROFILES_GATE,
    Command,
    ConfiguredCollector,
    command_of,
    config_files,
    configured_collector,
    signals_of,
    validate,
    wait_for,
)
from tests.backends.kubernetes_api import kubernetes_api
from tests.backends.otlp_messages import (
    events,
    metrics,
    names_sent,
    sent_profiles,
    span,
    traces,
)
from tests.contract.otlp_servers import Server, grpc_server, http_server
from tests.rig.ports import free_port
from tests.unit.export.profile_builders import samples

pytestmark = pytest.mark.long

FILES: Final = config_files()
BACKENDS: Final = [file for file in FILES if file.startswith("backends/")]
SPAN: Final = "chat llama"
EVENT: Final = "otelgpu.switch"
METRIC: Final = "gen_ai.requests"
"""Of no unit, so that Prometheus adds only ``_total``."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """What plays a backend: the protocol, and the settings that lead to its port."""

    protocol: Literal["grpc", "http", "none"]
    settings: Callable[[int], dict[str, str]]


def _endpoint(variable: str, path: str = "") -> Callable[[int], dict[str, str]]:
    return lambda port: {f"{variable}_ENDPOINT": f"http://127.0.0.1:{port}{path}"}


STAND_INS: Final = {
    "backends/clickhouse.yaml": StandIn(
        "none",
        lambda port: {"CLICKHOUSE_ENDPOINT": f"tcp://127.0.0.1:{port}", "CLICKHOUSE_CREATE_SCHEMA": "false"},
    ),
    "backends/gateways.yaml": StandIn(
        "grpc", lambda port: {"GATEWAY_HOST": "localhost", "GATEWAY_PORT": str(port)}
    ),
    "backends/jaeger.yaml": StandIn("grpc", _endpoint("JAEGER")),
    "backends/otlp.yaml": StandIn("grpc", _endpoint("OTLP")),
    "backends/otlp-profiles.yaml": StandIn("grpc", _endpoint("OTLP")),
    "backends/prometheus.yaml": StandIn("http", _endpoint("PROMETHEUS", "/api/v1/otlp")),
    "backends/prometheus-remote-write.yaml": StandIn("http", _endpoint("REMOTE_WRITE", "/api/v1/write")),
    "backends/prometheus-scrape.yaml": StandIn("none", lambda port: {"SCRAPE_LISTEN": f"127.0.0.1:{port}"}),
    "backends/pyroscope.yaml": StandIn("grpc", _endpoint("PYROSCOPE")),
    "backends/tempo.yaml": StandIn("grpc", _endpoint("TEMPO")),
    "backends/zipkin.yaml": StandIn("http", _endpoint("ZIPKIN", "/api/v2/spans")),
}
BASES: Final = {  # settings by which what comes is soon sent on
    "daemonset.yaml": {"OTELGPU_NODE_NAME": "node-1", "KUBERNETES_AUTH": "kubeConfig"},
    "gateway.yaml": {
        "SAMPLING_WAIT": "1s",
        "SAMPLING_REQUESTS_PERCENT": "100",
        "SPAN_METRICS_INTERVAL": "1s",
    },
    "profiles.yaml": {},
    "sidecar.yaml": {},
}


@dataclass
class Started:
    """A Collector, as one of the files says, and the fakes of the backends that it sends to."""

    collector: ConfiguredCollector
    command: Command
    servers: dict[str, Server]
    ports: dict[str, int]


@contextlib.contextmanager
def started(folder: Path, file: str) -> Iterator[Started]:
    """By the command in the head comment of ``file``, with each backend's address replaced by a fake's."""
    command = command_of(file)
    settings: dict[str, str] = dict(command.settings)
    servers: dict[str, Server] = {}
    ports: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        for part in command.files:
            if part in BASES:
                settings |= BASES[part]
                continue
            fake = STAND_INS[part]
            same = [other for other in ports if STAND_INS[other].settings(0) == fake.settings(0)]
            if same:  # otlp.yaml and otlp-profiles.yaml send to one address
                ports[part], servers[part] = ports[same[0]], servers[same[0]]
                continue
            if fake.protocol == "none":
                ports[part] = free_port()
            else:
                serve: Any = grpc_server if fake.protocol == "grpc" else http_server
                servers[part] = stack.enter_context(serve())
                ports[part] = int(servers[part].address.rpartition(":")[2])
            settings |= fake.settings(ports[part])
        if "daemonset.yaml" in command.files:
            api = stack.enter_context(kubernetes_api(folder, []))
            settings["KUBECONFIG"] = str(api.kubeconfig)
        collector = stack.enter_context(
            configured_collector(folder, command.files, *command.options, **settings)
        )
        yield Started(collector, command, servers, ports)


def send_all(started: Started) -> None:
    """A span, a metric, an event and, where it takes them, profiles."""
    assert started.collector.send("traces", traces([span(SPAN, trace=1)])) == 200
    assert started.collector.send("metrics", metrics(METRIC)) == 200
    assert started.collector.send("logs", events(EVENT)) == 200
    if PROFILES_GATE in started.command.options:
        for payload in encode_profiles([samples(5)]):
            assert started.collector.send("profiles", payload.body) == 200


def expected_of(file: str) -> set[tuple[str, str]]:
    """What :func:`send_all` makes a backend have, by the pipelines that its file has."""
    metric = (
        f"{METRIC.replace('.', '_')}_total" if file == "backends/prometheus-remote-write.yaml" else METRIC
    )
    names = {"traces": SPAN, "metrics": metric, "logs": EVENT, "profiles": "gpu_kernel_time"}
    return {(signal, names[signal]) for signal in signals_of(file)}


def test_every_file_is_tested() -> None:
    assert set(FILES) == set(BASES) | set(STAND_INS)


@pytest.mark.parametrize("file", FILES)
def test_the_command_in_its_head_comment_is_valid(file: str) -> None:
    command = command_of(file)
    assert file in command.files
    assert validate(command.files, command.options, {"OTELGPU_NODE_NAME": "node-1", **command.settings}) == ""


@pytest.mark.parametrize("base", ["gateway.yaml", "sidecar.yaml", "daemonset.yaml"])
def test_backends_can_be_combined(base: str) -> None:
    files = [base, "profiles.yaml", *BACKENDS]
    assert validate(files, [PROFILES_GATE], {"OTELGPU_NODE_NAME": "node-1"}) == ""


def test_what_is_wrong_is_seen() -> None:
    """So that the two tests above can fail."""
    assert "feature gate" in validate(["sidecar.yaml", "profiles.yaml"])


@pytest.mark.parametrize("file", [file for file in FILES if file != "backends/clickhouse.yaml"])
def test_what_goes_in_comes_out(tmp_path: Path, file: str) -> None:
    with started(tmp_path, file) as running:
        send_all(running)
        for backend, server in running.servers.items():
            missing = expected_of(backend)
            wait_for(lambda: missing <= set(names_sent(server.requests)), f"{missing} at {backend}")  # noqa: B023
        for backend, port in running.ports.items():
            if backend == "backends/prometheus-scrape.yaml":
                text = f"{METRIC.replace('.', '_')}_total{{"
                wait_for(lambda: text in scraped(port), text)  # noqa: B023


def scraped(port: int) -> str:
    """What a Prometheus would be reported there."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_headers_reach_the_backend(tmp_path: Path) -> None:
    """As the head comment of tempo.yaml gives them."""
    with started(tmp_path, "backends/tempo.yaml") as running:
        send_all(running)
        server = running.servers["backends/tempo.yaml"]
        wait_for(lambda: server.requests, "the span")
    assert {request.headers.get("x-scope-orgid") for request in server.requests} == {"team-a"}


def test_while_clickhouse_is_away_what_came_is_kept(tmp_path: Path) -> None:
    """Nobody listens at its address: the Collector starts all the same, takes what comes, and has it on disk."""
    with started(tmp_path, "backends/clickhouse.yaml") as running:
        send_all(running)
        collector, port = running.collector, running.ports["backends/clickhouse.yaml"]
        refused = f"dial tcp 127.0.0.1:{port}: connect: connection refused"
        wait_for(
            lambda: collector.process.said().count(refused) >= 3,
            "a refusal of spans, of metrics and of events",
        )
        collector.stop()
    stored = b"".join(path.read_bytes() for path in collector.storage.iterdir() if path.is_file())
    assert SPAN.encode() in stored
    assert METRIC.encode() in stored
    assert EVENT.encode() in stored


def test_a_profile_arrives_whole(tmp_path: Path) -> None:
    """Its values, its stack and whose it is."""
    with started(tmp_path, "backends/pyroscope.yaml") as running:
        send_all(running)
        server = running.servers["backends/pyroscope.yaml"]
        wait_for(lambda: sent_profiles(server.requests), "the profile")
    (request,) = sent_profiles(server.requests)
    texts = request.dictionary.string_table
    (part,) = request.resource_profiles
    assert [(each.key, each.value.string_value) for each in part.resource.attributes] == [
        ("service.name", "llm")
    ]
    ((profile,),) = [scope.profiles for scope in part.scope_profiles]
    assert sorted(value for sample in profile.samples for value in sample.values) == [0, 1, 2, 3, 4]
    assert texts[profile.sample_type.type_strindex] == "gpu_kernel_time"
    assert {"forward", "launch", "model.py", "libcudart.so.13"} <= set(texts)
