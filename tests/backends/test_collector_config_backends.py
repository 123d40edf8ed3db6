"""Through gateway.yaml and the files of its backends into real ones, and read back by their own query APIs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from tests.backends.configured import configured_collector, wait_for
from tests.backends.engine_session import replay
from tests.backends.jaeger import Jaeger
from tests.backends.prometheus import Prometheus
from tests.backends.sessions import GOLDEN
from tests.backends.zipkin import Zipkin
from tests.contract.otlp_servers import http_server

ALL: Final = {"SAMPLING_WAIT": "1s", "SAMPLING_REQUESTS_PERCENT": "100", "SPAN_METRICS_INTERVAL": "1s"}
TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
"""Of the recorded session: a streamed request, with the traceparent that its client sent."""


def test_a_trace_is_in_jaeger_and_in_zipkin(tmp_path: Path, jaeger: Jaeger, zipkin: Zipkin) -> None:
    files = ["gateway.yaml", "backends/jaeger.yaml", "backends/zipkin.yaml"]
    settings = {"JAEGER_ENDPOINT": jaeger.grpc_address, "ZIPKIN_ENDPOINT": f"{zipkin.address}/api/v2/spans"}
    with configured_collector(tmp_path, files, **ALL, **settings) as collector:
        replay(GOLDEN / "llm_session.capture", f"otlp:{collector.grpc}", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
        wait_for(lambda: zipkin.trace(TRACE), "the trace in Zipkin")
        wait_for(lambda: jaeger.trace(TRACE), "the trace in Jaeger")
        wait_for(collector.drained, "empty queues")
    names = {span["name"] for span in jaeger.trace(TRACE)}
    assert {"chat tiny", "prefill", "decode"} <= names
    assert {span["name"] for span in zipkin.trace(TRACE) or ()} == {name.lower() for name in names}


def recorded_spans() -> list[bytes]:
    """Those of the recorded session, without the metrics, which are as old as it is.

    Prometheus takes nothing old after what is new, refuses the whole request that has both, and exemplars come once.
    """
    with http_server() as server:
        replay(
            GOLDEN / "llm_session.capture",
            f"otlp:{server.address}",
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        )
    return [request.body for request in server.requests if request.path.endswith("/v1/traces")]


@pytest.mark.parametrize(
    ("file", "setting", "path"),
    [
        ("prometheus", "PROMETHEUS_ENDPOINT", "/api/v1/otlp"),
        ("prometheus-remote-write", "REMOTE_WRITE_ENDPOINT", "/api/v1/write"),
    ],
)
def test_span_metrics_are_in_prometheus(
    tmp_path: Path, prometheus: Prometheus, file: str, setting: str, path: str
) -> None:
    files = ["gateway.yaml", f"backends/{file}.yaml"]
    began_s = time.time()
    with configured_collector(tmp_path, files, **ALL, **{setting: prometheus.address + path}) as collector:
        for body in recorded_spans():
            assert collector.send("traces", body) == 200
        calls = 'traces_span_metrics_calls_total{span_name="chat tiny"}'

        def counted() -> list[tuple[dict[str, str], float]]:
            """Without the zeros from which a counter starts."""
            return [(labels, value) for labels, value in prometheus.query(calls, time.time()) if value]

        wait_for(counted, calls)
        durations = "traces_span_metrics_duration_seconds_bucket"
        wait_for(lambda: prometheus.exemplars(durations, began_s - 10, time.time() + 10), "exemplars")
        assert {labels["gen_ai_request_model"] for labels, _ in counted()} == {"tiny"}
