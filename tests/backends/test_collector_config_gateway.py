"""What gateway.yaml keeps of the traces, what it counts of all of them, and that two gateways share them by trace."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.backends.configured import ConfiguredCollector, configured_collector, wait_for
from tests.backends.engine_session import replay
from tests.backends.otlp_messages import attributes_of, sent_metrics, sent_spans, span, trace_id, traces
from tests.backends.sessions import GOLDEN
from tests.contract.otlp_servers import Server, grpc_server
from tests.rig.ports import free_port

FILES: Final = ["gateway.yaml", "backends/otlp.yaml"]
NONE: Final = {"SAMPLING_WAIT": "1s", "SAMPLING_REQUESTS_PERCENT": "0", "SAMPLING_REST_PERCENT": "0"}
"""Only what a policy asks for by name is kept."""

INTERNAL: Final = Span.SPAN_KIND_INTERNAL
CLIENT: Final = Span.SPAN_KIND_CLIENT

KEPT: Final[dict[str, dict[str, Any]]] = {
    "slow first token": {"attributes": {"gen_ai.latency.time_to_first_token": 1.5}},
    "slow first chunk at the client": {
        "kind": CLIENT,
        "attributes": {"gen_ai.response.time_to_first_chunk": 1.5},
    },
    "failed request": {"error": True},
    "failed CUDA call": {"kind": INTERNAL, "error": True},
    "slow request": {"seconds": 11},
    "stall": {"attributes": {"otelgpu.gen_ai.stalls": 1}},
    "Xid that asks for nothing": {"kind": INTERNAL, "attributes": {"otelgpu.hw.error.code": 63}},
    "RDMA port ACTIVE": {"kind": INTERNAL, "attributes": {"rdma.port.state": "ACTIVE"}},
    "late rank": {"kind": INTERNAL, "attributes": {"nccl.arrival.skew": 0.25}},
}
DROPPED: Final[dict[str, dict[str, Any]]] = {
    "quick request": {
        "attributes": {"gen_ai.latency.time_to_first_token": 0.2, "otelgpu.gen_ai.stalls": 0},
    },
    "quick request at the client": {
        "kind": CLIENT,
        "attributes": {"gen_ai.response.time_to_first_chunk": 0.2},
    },
    "engine step": {"kind": INTERNAL},
    "long work without a request": {"kind": INTERNAL, "seconds": 300},
    "collective": {"kind": INTERNAL, "attributes": {"nccl.arrival.skew": 0.001}},
}


def wait_for_decisions(collector: ConfiguredCollector, traces: int) -> None:
    """Return when it has been decided of so many traces, and those that are kept have been sent."""
    wait_for(lambda: decided(collector) == traces, f"decisions on {traces} traces")
    wait_for(collector.drained, "empty queues")


def decided(collector: ConfiguredCollector) -> int:
    """Of how many traces it has been decided whether they are kept."""
    return collector.counted("processor_tail_sampling_global_count_traces_sampled")


def kept_names(server: Server) -> set[str]:
    return {each.name for _, each in sent_spans(server.requests)}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the spans that are left of one trace each of ``KEPT`` and ``DROPPED``."""
    spans = KEPT | DROPPED
    with (
        grpc_server() as server,
        configured_collector(
            tmp_path_factory.mktemp("kept"), FILES, OTLP_ENDPOINT=server.address, **NONE
        ) as collector,
    ):
        for number, (name, facts) in enumerate(spans.items(), 1):
            collector.send("traces", traces([span(name, trace=number, **facts)]))
        wait_for_decisions(collector, len(spans))
        return kept_names(server)


@pytest.mark.parametrize("name", KEPT)
def test_a_trace_that_somebody_will_want_is_kept(kept: set[str], name: str) -> None:
    assert name in kept


@pytest.mark.parametrize("name", DROPPED)
def test_a_trace_that_nobody_will_miss_is_not(kept: set[str], name: str) -> None:
    assert name not in kept


def test_all_spans_of_a_trace_are_kept(tmp_path: Path) -> None:
    """The error is in a child, which comes in another request."""
    with (
        grpc_server() as server,
        configured_collector(tmp_path, FILES, OTLP_ENDPOINT=server.address, **NONE) as collector,
    ):
        collector.send("traces", traces([span("chat llama", trace=1)]))
        collector.send("traces", traces([span("cudaMalloc", 1, 2, parent=1, kind=INTERNAL, error=True)]))
        wait_for(lambda: len(sent_spans(server.requests)) == 2, "both spans")


def test_of_ordinary_traces_the_ratio_is_kept_that_was_asked_for(tmp_path: Path) -> None:
    """By default a tenth of the requests, and a hundredth of the rest; which, their ids say: the same in each run."""
    many = 2000
    with (
        grpc_server() as server,
        configured_collector(tmp_path, FILES, OTLP_ENDPOINT=server.address, SAMPLING_WAIT="1s") as collector,
    ):
        for name, first, kind in (
            ("GET /health", 1, Span.SPAN_KIND_SERVER),
            ("engine.step", 10**6, INTERNAL),
        ):
            spans = [span(name, trace=first + i, kind=kind) for i in range(many)]
            collector.send("traces", traces(spans))
        wait_for_decisions(collector, 2 * many)
        names = [each.name for _, each in sent_spans(server.requests)]
    assert 0.08 < names.count("GET /health") / many < 0.12
    assert 0.004 < names.count("engine.step") / many < 0.016


@pytest.mark.parametrize(("seconds", "is_kept"), [(0.005, True), (0.5, False)])
def test_the_limit_is_read_of_what_the_agent_sends(tmp_path: Path, seconds: float, is_kept: bool) -> None:
    """A recorded session, whose streamed request had its first token after 11 ms."""
    settings = NONE | {"SAMPLING_SLOW_FIRST_TOKEN_S": str(seconds)}
    with (
        grpc_server() as server,
        configured_collector(tmp_path, FILES, OTLP_ENDPOINT=server.address, **settings) as collector,
    ):
        replay(GOLDEN / "llm_session.capture", f"otlp:{collector.grpc}", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
        begun = collector.counted("processor_tail_sampling_new_trace_id_received")
        assert begun > 1
        wait_for_decisions(collector, begun)
        streamed = "0af7651916cd43dd8448eb211c80319c"
        found = {each.trace_id.hex() for _, each in sent_spans(server.requests)}
    assert (streamed in found) is is_kept


class Counted:
    """What the gateway made of a client's and a server's span of three calls, a phase of each, and a launch in it."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def points(self, metric: str) -> list[tuple[dict[str, Any], Any]]:
        """The last data point of each series of a metric, with its attributes."""
        last = {}
        for each in self.all_points(metric):
            attributes = attributes_of(each)
            last[frozenset(attributes.items())] = attributes, each
        return list(last.values())

    def all_points(self, metric: str) -> list[Any]:
        return [
            point
            for _, each in sent_metrics(self._server.requests)
            if each.name == metric
            for point in getattr(each, each.WhichOneof("data") or "sum").data_points
        ]


TRACES: Final = (1, 2, 3)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    folder = tmp_path_factory.mktemp("counted")
    model = {"gen_ai.request.model": "llama", "gen_ai.operation.name": "chat"}
    settings = NONE | {"SPAN_METRICS_INTERVAL": "1s"}
    with (
        grpc_server() as server,
        configured_collector(folder, FILES, OTLP_ENDPOINT=server.address, **settings) as collector,
    ):
        for trace in TRACES:
            call = span("chat llama", trace, 1, kind=CLIENT, attributes=model)
            collector.send("traces", traces([call], {"service.name": "app", "service.instance.id": "app-1"}))
            request = span("chat llama", trace, 2, parent=1, seconds=0.3, attributes=model)
            prefill = span(
                "prefill", trace, 3, parent=2, kind=INTERNAL, attributes={"otelgpu.phase": "prefill"}
            )
            launch = span("cudaLaunchKernel axpy", trace, 4, parent=3, kind=INTERNAL)
            collector.send("traces", traces([request, prefill, launch]))
        made = Counted(server)
        wait_for(lambda: made.points("traces.span.metrics.calls"), "span metrics")
        wait_for(lambda: made.points("traces_service_graph_request_total"), "a service graph")
        wait_for_decisions(collector, 3)
        assert not kept_names(server)
        yield made


def test_requests_are_counted_before_they_are_sampled(counted: Counted) -> None:
    series = {
        (a["service.name"], a["span.kind"]): (p.as_int, a["gen_ai.request.model"], a["gen_ai.operation.name"])
        for a, p in counted.points("traces.span.metrics.calls")
        if a["span.name"] == "chat llama"
    }
    assert series == {
        ("app", "SPAN_KIND_CLIENT"): (3, "llama", "chat"),
        ("llm", "SPAN_KIND_SERVER"): (3, "llama", "chat"),
    }


def test_phases_are_counted_and_calls_are_not(counted: Counted) -> None:
    phases = {a["span.name"]: a.get("otelgpu.phase") for a, _ in counted.points("traces.span.metrics.calls")}
    assert phases == {"chat llama": None, "prefill": "prefill"}


def test_durations_are_in_seconds(counted: Counted) -> None:
    durations = [
        (p.count, p.sum)
        for a, p in counted.points("traces.span.metrics.duration")
        if a["span.kind"] == "SPAN_KIND_SERVER"
    ]
    assert durations == [(3, pytest.approx(0.9, rel=0.01))]


def test_durations_lead_to_traces(counted: Counted) -> None:
    exemplars = {e.trace_id for p in counted.all_points("traces.span.metrics.duration") for e in p.exemplars}
    assert exemplars == {trace_id(number) for number in TRACES}


def test_who_calls_whom_is_reported(counted: Counted) -> None:
    edges = [
        (a["client"], a["server"], a["server_gen_ai.request.model"], p.as_int)
        for a, p in counted.points("traces_service_graph_request_total")
    ]
    assert edges == [("app", "llm", "llama", 3)]


HOSTS: Final = 'mount --bind "$0" /etc/hosts && exec "$@"'
IN_OWN_MOUNTS: Final = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", HOSTS)
TO_GATEWAYS: Final = ["sidecar.yaml", "backends/gateways.yaml"]


@pytest.fixture
def two_of_a_name(tmp_path: Path) -> list[str]:
    """A command by which a Collector finds two addresses behind the name ``gateways``: it gets its own hosts file."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.2 gateways\n127.0.0.3 gateways\n127.0.0.1 localhost\n")
    prefix = [*IN_OWN_MOUNTS, str(hosts)]
    refused = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    if refused.returncode:
        pytest.skip(f"the Collector needs a hosts file of its own: {refused.stderr}")
    return prefix


def test_every_span_of_a_trace_goes_to_the_same_gateway(tmp_path: Path, two_of_a_name: list[str]) -> None:
    port = free_port()
    spans = [span("request", trace, number) for trace in range(40) for number in (1, 2)]
    settings = {"GATEWAY_HOST": "gateways", "GATEWAY_PORT": str(port)}
    with (
        grpc_server(host="127.0.0.2", port=port) as one,
        grpc_server(host="127.0.0.3", port=port) as other,
        configured_collector(tmp_path, TO_GATEWAYS, prefix=two_of_a_name, **settings) as collector,
    ):
        for each in spans:  # one at a time: those of a trace come in different requests
            collector.send("traces", traces([each]))
        wait_for(lambda: len(sent_spans([*one.requests, *other.requests])) == len(spans), "all spans")
        traces_of_one, traces_of_other = (
            {each.trace_id for _, each in sent_spans(server.requests)} for server in (one, other)
        )
    assert not traces_of_one & traces_of_other
    assert len(traces_of_one) > 5 < len(traces_of_other)


def test_a_gateway_that_restarts_gets_what_was_for_it(tmp_path: Path, two_of_a_name: list[str]) -> None:
    """The other one gets only what is its own, though perhaps more than once."""
    port = free_port()
    spans = [span("request", trace) for trace in range(40)]
    settings = {"GATEWAY_HOST": "gateways", "GATEWAY_PORT": str(port)}
    with (
        grpc_server(host="127.0.0.2", port=port) as one,
        configured_collector(tmp_path, TO_GATEWAYS, prefix=two_of_a_name, **settings) as collector,
    ):
        collector.send("traces", traces(spans))
        wait_for(lambda: one.requests, "what is for the one that is there")
        assert not collector.drained()
        with grpc_server(host="127.0.0.3", port=port) as other:
            wait_for(collector.drained, "what is for the one that came back")
        of_one, of_other = (
            {each.trace_id for _, each in sent_spans(server.requests)} for server in (one, other)
        )
    assert of_one.isdisjoint(of_other)
    assert of_one | of_other == {each.trace_id for each in spans}
