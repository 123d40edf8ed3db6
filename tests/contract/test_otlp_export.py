"""The OTLP exporter against real servers: what they answer decides what is counted, sent again and reported.

Every test ends in the account: given = accepted + queued + lost, and what the server took is what was accepted.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from msgspec.structs import replace
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from otelgpu import __version__
from otelgpu.export.base import ExportError
from otelgpu.export.otlp.exporter import ITEMS, OtlpExporter
from otelgpu.export.otlp.sender import RetryPolicy
from otelgpu.export.otlp.settings import OtlpSettings
from otelgpu.model.events import Event
from otelgpu.model.resource import resource
from otelgpu.model.spans import Text
from tests.contract.otlp_servers import (
    HttpAnswer,
    Server,
    Tls,
    grpc_fail,
    grpc_garbage,
    grpc_hang,
    grpc_partial,
    grpc_server,
    http_partial,
    http_server,
)
from tests.rig.ports import free_port
from tests.unit.export.builders import spans
from tests.unit.export.profile_builders import samples
from tests.unit.export.profile_conformance import broken_rules

FAST = RetryPolicy(initial_s=0.05, cap_s=0.2)
Code = grpc.StatusCode
Open = Callable[..., AbstractContextManager[Server]]


@pytest.fixture(params=["grpc", "http/protobuf"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def serve(protocol: str, grpc_script: list[Any], http_script: list[HttpAnswer], **options: Any) -> Any:
    """The same behaviour, in the words of the protocol."""
    return (
        grpc_server(*grpc_script, **options) if protocol == "grpc" else http_server(*http_script, **options)
    )


@contextmanager
def exporter(
    address: str, protocol: str, *, retry: RetryPolicy = FAST, **variables: str
) -> Iterator[OtlpExporter]:
    """An exporter set up by variables only; closed, and its account checked, at the end."""
    environ = {"ENDPOINT": address, "PROTOCOL": protocol} | variables
    environ = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in environ.items()}
    opened = OtlpExporter(*(OtlpSettings.from_environment(environ, signal) for signal in ITEMS), retry=retry)
    try:
        yield opened
    finally:
        opened.close(0.2)
        reported = [items for items in ITEMS.values() if f"{items}_given" in opened.stats()]
        assert reported[:2] == ["spans", "points"]
        for items in reported:
            stats = {k.removeprefix(f"{items}_"): v for k, v in opened.stats().items() if k.startswith(items)}
            lost = sum(count for key, count in stats.items() if key.startswith("lost_"))
            assert stats["given"] == stats["accepted"] + stats["queued"] + lost, stats
            assert stats["queued"] == 0


def metrics(points: int) -> MetricsData:
    data = MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    for value in range(points):
        metric.gauge.data_points.add(as_int=value)
    return data


def until(condition: Callable[[], bool], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.005)


def test_events_arrive_at_the_method_of_logs(protocol: str) -> None:
    happened = Event(
        name="otelgpu.test", time_unix_ns=5, text="it did", attributes={}, resource=resource({"a": "b"})
    )
    with serve(protocol, [], []) as server, exporter(server.address, protocol) as e:
        assert not [each for each in e.deliveries() if each.events]
        e.export_events([happened, happened])
        assert e.flush(10)
        (request,) = (r for r in server.requests if "ogs" in r.path)
        sent = ExportLogsServiceRequest.FromString(request.body)
        records = sent.resource_logs[0].scope_logs[0].log_records
        assert [each.event_name for each in records] == ["otelgpu.test"] * 2
        assert e.stats()["events_accepted"] == 2
        assert [each.kind for each in e.deliveries() if each.events] == [
            f"otlp_{'grpc' if protocol == 'grpc' else 'http'}_log_exporter"
        ]


def test_spans_and_metrics_arrive_whole_at_their_own_methods(protocol: str) -> None:
    with serve(protocol, [], []) as server, exporter(server.address, protocol) as e:
        e.export_spans([spans(30_000), spans(3, scope="otelgpu.http")])
        e.export_metrics(metrics(4), 4)
        assert e.flush(10)
        traces = [r for r in server.requests if "race" in r.path]
        assert sum(r.spans for r in traces) == 30_003
        assert len(traces) == 2
        assert [r.metrics for r in server.requests if "etrics" in r.path] == [1]
        assert (e.stats()["spans_accepted"], e.stats()["points_accepted"]) == (30_003, 4)
    paths = {r.path for r in server.requests}
    assert paths == (
        {
            "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
        }
        if protocol == "grpc"
        else {"/v1/traces", "/v1/metrics"}
    )


def test_profiles_arrive_at_their_own_method_and_open_no_connection_before(protocol: str) -> None:
    with serve(protocol, [], []) as server, exporter(server.address, protocol) as e:
        assert "profiles_given" not in e.stats()
        assert [delivery.profiles for delivery in e.deliveries()] == [False, False]
        e.export_profiles([samples(7), samples(3)])
        assert e.flush(10)
        assert (e.stats()["profiles_given"], e.stats()["profiles_accepted"]) == (10, 10)
        assert [delivery.accepted for delivery in e.deliveries() if delivery.profiles] == [10]
    path = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
    assert {r.path for r in server.requests} == {path if protocol == "grpc" else "/v1development/profiles"}
    for request in server.requests:
        assert broken_rules(ExportProfilesServiceRequest.FromString(request.body)) == []


def test_a_profile_that_a_server_rejects_is_lost_with_all_that_it_holds(protocol: str) -> None:
    script = [grpc_partial(1, "no room")], [http_partial(1, "no room")]
    with serve(protocol, *script) as server, exporter(server.address, protocol) as e:
        e.export_profiles([samples(7), samples(3)])
        assert e.flush(10)
        stats = e.stats()
        assert (stats["profiles_accepted"], stats["profiles_lost_rejected"]) == (3, 7)


def test_a_profile_that_breaks_its_contract_is_dropped_and_the_others_are_sent(protocol: str) -> None:
    with serve(protocol, [], []) as server, exporter(server.address, protocol) as e:
        broken = replace(samples(2), stack=np.array([0, 99]))
        e.export_profiles([broken, samples(3)])
        assert e.flush(10)
        stats = e.stats()
        assert (stats["profiles_given"], stats["profiles_accepted"]) == (5, 3)
        assert stats["profiles_lost_unencodable"] == 2


def test_headers_and_the_user_agent_are_sent(protocol: str) -> None:
    with (
        serve(protocol, [], []) as server,
        exporter(server.address, protocol, HEADERS="Authorization=Basic%20abc,x-tenant=blue") as e,
    ):
        e.export_spans([spans(1)])
        assert e.flush(10)
    (request,) = server.requests
    assert request.headers["authorization"] == "Basic abc"
    assert request.headers["x-tenant"] == "blue"
    assert request.headers["user-agent"].startswith(f"OTel-OTLP-Exporter-otelgpu/{__version__}")


def test_gzip_shrinks_what_is_sent_and_nothing_else(protocol: str) -> None:
    with serve(protocol, [], []) as server, exporter(server.address, protocol, COMPRESSION="gzip") as e:
        e.export_spans([spans(5000)])
        assert e.flush(10)
    (request,) = server.requests
    assert request.spans == 5000
    if protocol != "grpc":  # grpcio hides the header from its server
        assert request.headers["content-encoding"] == "gzip"
        assert int(request.headers["content-length"]) < len(request.body) / 3


def test_grpc_compression_is_on_the_wire() -> None:
    received: dict[str, int] = {}
    for compression in ("none", "gzip"):
        with grpc_server() as server, counting_proxy(server.address) as proxy:
            with exporter(proxy.address, "grpc", COMPRESSION=compression) as e:
                e.export_spans([spans(5000)])
                assert e.flush(10)
            received[compression] = proxy.bytes
    assert received["gzip"] < received["none"] / 3


def test_partial_success_is_counted_and_not_sent_again(protocol: str) -> None:
    with (
        serve(protocol, [grpc_partial(3, "too old")], [http_partial(3, "too old")]) as server,
        exporter(server.address, protocol) as e,
    ):
        e.export_spans([spans(10)])
        assert e.flush(10)
        assert (e.stats()["spans_accepted"], e.stats()["spans_lost_rejected"], len(server.requests)) == (
            7,
            3,
            1,
        )


def test_partial_success_of_metrics_counts_data_points() -> None:
    with grpc_server(grpc_partial(1, "stale")) as server, exporter(server.address, "grpc") as e:
        e.export_metrics(metrics(4), 4)
        assert e.flush(10)
        assert (e.stats()["points_accepted"], e.stats()["points_lost_rejected"]) == (3, 1)


def test_an_unreadable_answer_to_success_is_still_success(protocol: str) -> None:
    with (
        serve(protocol, [grpc_garbage], [HttpAnswer(body=b"<html>")]) as server,
        exporter(server.address, protocol) as e,
    ):
        e.export_spans([spans(2)])
        assert e.flush(10)
        assert (e.stats()["spans_accepted"], len(server.requests)) == (2, 1)


@pytest.mark.parametrize(
    "code", ["CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"]
)
def test_retryable_grpc_codes_are_sent_again(code: str) -> None:
    with (
        grpc_server(grpc_fail(Code[code]), grpc_fail(Code[code])) as server,
        exporter(server.address, "grpc") as e,
    ):
        e.export_spans([spans(2)])
        assert e.flush(10)
        assert (e.stats()["spans_accepted"], len(server.requests)) == (2, 3)


@pytest.mark.parametrize(
    "code",
    [
        *(
            "UNKNOWN",
            "INVALID_ARGUMENT",
            "NOT_FOUND",
            "ALREADY_EXISTS",
            "PERMISSION_DENIED",
            "UNAUTHENTICATED",
        ),
        *("FAILED_PRECONDITION", "UNIMPLEMENTED", "INTERNAL", "RESOURCE_EXHAUSTED"),
    ],
)
def test_other_grpc_codes_drop_the_data_at_once(code: str) -> None:
    with grpc_server(grpc_fail(Code[code])) as server, exporter(server.address, "grpc") as e:
        e.export_spans([spans(2)])
        assert e.flush(10)
        assert (e.stats()["spans_lost_refused"], len(server.requests)) == (2, 1)


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "UNAVAILABLE"])
def test_grpc_retry_info_is_waited_for(code: str) -> None:
    with grpc_server(grpc_fail(Code[code], 0.6)) as server, exporter(server.address, "grpc") as e:
        e.export_spans([spans(2)])
        assert e.flush(10)
        first, second = (r.at for r in server.requests)
        assert second - first >= 0.6
        assert e.stats()["spans_accepted"] == 2


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_retryable_http_statuses_are_sent_again(status: int) -> None:
    with (
        http_server(HttpAnswer(status), HttpAnswer(status)) as server,
        exporter(server.address, "http/protobuf") as e,
    ):
        e.export_spans([spans(2)])
        assert e.flush(10)
        assert (e.stats()["spans_accepted"], len(server.requests), server.connections) == (2, 3, 1)


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 500, 501])
def test_other_http_statuses_drop_the_data_at_once(status: int) -> None:
    with http_server(HttpAnswer(status)) as server, exporter(server.address, "http/protobuf") as e:
        e.export_spans([spans(2)])
        assert e.flush(10)
        assert (e.stats()["spans_lost_refused"], len(server.requests)) == (2, 1)


@pytest.mark.parametrize("date", [False, True])
def test_http_retry_after_is_waited_for(date: bool) -> None:
    # An HTTP date has whole seconds: one that is 2.x s away is at least 1 s away.
    value = formatdate(time.time() + 2, usegmt=True) if date else "1"
    with (
        http_server(HttpAnswer(503, (("Retry-After", value),))) as server,
        exporter(server.address, "http/protobuf") as e,
    ):
        e.export_spans([spans(2)])
        assert e.flush(10)
        first, second = (r.at for r in server.requests)
        assert second - first >= (0.7 if date else 1.0)
        assert e.stats()["spans_accepted"] == 2


def test_redirects_are_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    with (
        http_server(HttpAnswer(307, (("Location", "http://elsewhere/"),))) as server,
        exporter(server.address, "http/protobuf") as e,
    ):
        e.export_spans([spans(2)])
        assert e.flush(10)
        assert (e.stats()["spans_lost_refused"], len(server.requests)) == (2, 1)
    assert "redirects to http://elsewhere/ are not followed" in caplog.text


def test_a_reason_in_the_failures_body_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    from google.rpc.status_pb2 import Status

    body = Status(message="trace_id is\nshort").SerializeToString()
    with http_server(HttpAnswer(400, body=body)) as server, exporter(server.address, "http/protobuf") as e:
        e.export_spans([spans(2)])
        assert e.flush(10)
    assert "HTTP 400 trace_id is short" in caplog.text


def test_a_server_that_hangs_up_is_tried_again() -> None:
    with http_server(HttpAnswer(disconnect=True)) as server, exporter(server.address, "http/protobuf") as e:
        e.export_spans([spans(2)])
        assert e.flush(10)
        assert (e.stats()["spans_accepted"], len(server.requests)) == (2, 2)


def test_a_connection_that_went_stale_costs_no_back_off() -> None:
    slow = RetryPolicy(initial_s=60, cap_s=60)
    with (
        http_server(HttpAnswer(close_after=True)) as server,
        exporter(server.address, "http/protobuf", retry=slow) as e,
    ):
        e.export_spans([spans(2)])
        assert e.flush(5)
        time.sleep(0.1)
        e.export_spans([spans(3)])
        assert e.flush(5)
        assert (e.stats()["spans_accepted"], server.connections) == (5, 2)


def test_one_connection_serves_many_payloads() -> None:
    with http_server() as server, exporter(server.address, "http/protobuf") as e:
        for _ in range(5):
            e.export_spans([spans(2)])
        assert e.flush(10)
        assert (len(server.requests), server.connections) == (5, 1)


def test_a_huge_answer_is_not_read_to_its_end() -> None:
    with (
        http_server(HttpAnswer(body=bytes(50 << 20))) as server,
        exporter(server.address, "http/protobuf") as e,
    ):
        e.export_spans([spans(2)])
        assert e.flush(5)
        e.export_spans([spans(3)])
        assert e.flush(5)
        assert e.stats()["spans_accepted"] == 5


def test_a_server_that_hangs_is_given_up_after_the_timeout_and_tried_again(protocol: str) -> None:
    with (
        serve(protocol, [grpc_hang], [HttpAnswer(delay_s=1.5)]) as server,
        exporter(server.address, protocol, TIMEOUT="300") as e,
    ):
        began = time.monotonic()
        e.export_spans([spans(2)])
        assert time.monotonic() - began < 0.2
        assert e.flush(10)
        first, second = (r.at for r in server.requests)
        assert 0.25 < second - first < 1.4
        assert e.stats()["spans_accepted"] == 2


def test_a_server_that_drips_its_answer_cannot_outlast_the_timeout() -> None:
    drip = HttpAnswer(body=bytes(100), drip_s=0.05)
    with http_server(drip) as server, exporter(server.address, "http/protobuf", TIMEOUT="400") as e:
        e.export_spans([spans(2)])
        assert e.flush(10)
        first, second = (r.at for r in server.requests)
        assert second - first < 1.5


def test_closing_cuts_a_hanging_server_short_and_counts(protocol: str) -> None:
    with (
        serve(protocol, [grpc_hang], [HttpAnswer(delay_s=1.5)]) as server,
        exporter(server.address, protocol) as e,
    ):
        e.export_spans([spans(2)])
        until(lambda: len(server.requests) == 1)
        began = time.monotonic()
        e.close(0.2)
        assert time.monotonic() - began < 1.2
        assert e.stats()["spans_lost_shutdown"] == 2


def test_a_collector_that_is_down_is_found_again_when_it_comes_up(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    with exporter(f"http://localhost:{port}", protocol) as e:
        e.export_spans([spans(2)])
        assert not e.flush(0.5)
        assert e.stats()["spans_queued"] == 2
        with serve(protocol, [], [], port=port) as server:
            assert e.flush(15)
            assert server.requests[0].spans == 2
            assert e.stats()["spans_accepted"] == 2
    assert len([r for r in caplog.records if "not delivered" in r.getMessage()]) == 1
    assert len([r for r in caplog.records if "delivering again" in r.getMessage()]) == 1


def test_a_collector_that_stays_down_costs_a_count(protocol: str) -> None:
    with exporter(
        f"http://localhost:{free_port()}", protocol, retry=RetryPolicy(initial_s=0.05, horizon_s=0.3)
    ) as e:
        e.export_spans([spans(2)])
        until(lambda: e.stats()["spans_lost_retries_exhausted"] == 2, 15)


def test_a_host_that_does_not_exist_is_no_error_only_a_count(protocol: str) -> None:
    with exporter("http://collector.invalid:4318", protocol) as e:
        e.export_spans([spans(2)])
        e.close(0.3)
        assert e.stats()["spans_lost_shutdown"] == 2


def test_tls_with_the_named_authority(protocol: str, tls: Tls) -> None:
    with (
        serve(protocol, [], [], tls=tls) as server,
        exporter(server.address, protocol, CERTIFICATE=tls.authority) as e,
    ):
        e.export_spans([spans(2)])
        assert e.flush(10)
        assert e.stats()["spans_accepted"] == 2


def test_tls_with_an_unknown_authority_is_not_trusted(protocol: str, tls: Tls) -> None:
    with serve(protocol, [], [], tls=tls) as server, exporter(server.address, protocol) as e:
        e.export_spans([spans(2)])
        assert not e.flush(0.7)
        assert server.requests == []


def test_mutual_tls_shows_the_clients_certificate(protocol: str, tls: Tls) -> None:
    with serve(protocol, [], [], tls=tls, mutual=True) as server:
        with exporter(
            server.address,
            protocol,
            CERTIFICATE=tls.authority,
            CLIENT_CERTIFICATE=tls.client_certificate,
            CLIENT_KEY=tls.client_key,
        ) as e:
            e.export_spans([spans(2)])
            assert e.flush(10)
            assert e.stats()["spans_accepted"] == 2
        with exporter(server.address, protocol, CERTIFICATE=tls.authority) as e:
            e.export_spans([spans(3)])
            assert not e.flush(0.7)
        assert len(server.requests) == 1


def test_a_file_that_is_no_certificate_is_an_error_at_start_up(protocol: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("not a certificate")
    with (
        pytest.raises(ExportError, match=r"wrong\.pem"),
        exporter("https://localhost:1", protocol, CERTIFICATE=str(wrong)),
    ):
        pass


def test_spans_that_cannot_be_encoded_are_counted() -> None:
    with http_server() as server, exporter(server.address, "http/protobuf") as e:
        e.export_spans([spans(2, name=Text(codes=spans(2).name.codes + 5, table=("a",)))])
        e.export_spans([spans(3)])
        assert e.flush(10)
        assert (e.stats()["spans_lost_unencodable"], e.stats()["spans_accepted"]) == (2, 3)


def test_a_batch_that_cannot_be_encoded_takes_no_other_with_it() -> None:
    broken = spans(2, name=Text(codes=spans(2).name.codes + 5, table=("a",)))
    with http_server() as server, exporter(server.address, "http/protobuf") as e:
        e.export_spans(iter([spans(3), broken, spans(4), broken]))
        assert e.flush(10)
        stats = e.stats()
        assert (stats["spans_lost_unencodable"], stats["spans_accepted"], stats["spans_given"]) == (4, 7, 11)


class Proxy:
    def __init__(self) -> None:
        self.address = ""
        self.bytes = 0


@contextmanager
def counting_proxy(upstream: str) -> Iterator[Proxy]:
    """A TCP proxy that counts what the client sends."""
    import threading

    port = int(upstream.rpartition(":")[2])
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy()
    proxy.address = f"http://localhost:{listener.getsockname()[1]}"

    def pump(source: socket.socket, sink: socket.socket, count: bool) -> None:
        try:
            while data := source.recv(65536):
                if count:
                    proxy.bytes += len(data)
                sink.sendall(data)
        except OSError:
            pass

    def accept() -> None:
        try:
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("localhost", port))
                for args in ((client, server, True), (server, client, False)):
                    threading.Thread(target=pump, args=args, daemon=True).start()
        except OSError:
            pass

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield proxy
    finally:
        listener.close()
