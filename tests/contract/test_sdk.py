"""Batch commands report on themselves through OpenTelemetry's SDK: what arrives at a real OTLP server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.contract.otlp_servers import HttpAnswer, Server, grpc_fail, grpc_hang, grpc_server, http_server
from tests.unit.diagnose.otlp_collectives import MS, Host, collectives

PROTOCOLS = {"grpc": grpc_server, "http/protobuf": http_server}


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """``otelgpu`` with these variables and no others of OpenTelemetry's."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "OTELGPU_"))}
    return subprocess.run(
        [sys.executable, "-c", "from otelgpu.cli.main import main; main()", *arguments],
        env=environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )


def to(server: Server, protocol: str, **more: str) -> dict[str, str]:
    found = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.address, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    return found | more


def plain(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


def of(attributes: Any) -> dict[str, Any]:
    return {each.key: plain(each.value) for each in attributes}


def points(server: Server) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    """Of each metric: attributes and value; of a histogram its sum."""
    found: dict[str, list[tuple[dict[str, Any], Any]]] = {}
    for request in server.requests:
        if "etrics" not in request.path:
            continue
        for part in ExportMetricsServiceRequest.FromString(request.body).resource_metrics:
            for metric in (each for scope in part.scope_metrics for each in scope.metrics):
                kind = metric.WhichOneof("data")
                for point in getattr(metric, kind).data_points:
                    value = point.sum if kind == "histogram" else plain_number(point)
                    found.setdefault(metric.name, []).append((of(point.attributes), value))
    return found


def plain_number(point: Any) -> float:
    return float(getattr(point, point.WhichOneof("value")))


def events(server: Server) -> list[tuple[dict[str, Any], Any]]:
    """Resource and log record, in order."""
    return [
        (of(part.resource.attributes), record)
        for request in server.requests
        if "ogs" in request.path
        for part in ExportLogsServiceRequest.FromString(request.body).resource_logs
        for scope in part.scope_logs
        for record in scope.log_records
    ]


@pytest.fixture
def spans(tmp_path: Path) -> Path:
    """Three hosts of two ranks, 20 collectives; rank 4 calls 8 ms later than all others; and two broken lines."""
    import json

    hosts = [Host(f"node-{n}", (2 * n, 2 * n + 1), ahead_ns=n * MS) for n in range(3)]
    collectives(hosts, 20, lambda _number, rank: 8 * MS * (rank == 4))
    path = tmp_path / "spans.jsonl"
    lines = [json.dumps(host.document()) for host in hosts]
    path.write_text("\n".join([*lines, "broken", "[1]"]) + "\n")
    return path


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_command_reports_what_it_read_skipped_and_how_long_it_took(spans: Path, protocol: str) -> None:
    with PROTOCOLS[protocol]() as server:
        ended = run("analyze", "collectives", str(spans), **to(server, protocol))
    assert (ended.returncode, ended.stderr) == (0, "")
    found = points(server)
    named = {"otelgpu.command.name": "analyze collectives"}
    ((attributes, seconds),) = found["otelgpu.command.duration"]
    assert attributes == named | {"otelgpu.command.outcome": "ok"}
    assert 0 < seconds < 60
    assert found["otelgpu.command.inputs"] == [(named, 1)]
    assert found["otelgpu.command.input.size"] == [(named, spans.stat().st_size)]
    assert found["otelgpu.command.skipped"] == [(named | {"otelgpu.reason": "lines_unreadable"}, 2)]
    resource, record = events(server)[-1]
    assert (record.event_name, record.severity_text) == ("otelgpu.command", "INFO")
    reported = of(record.attributes)
    assert (reported["otelgpu.command.skipped"], reported["otelgpu.command.verdicts"]) == (2, 0)
    assert (record.trace_id, record.span_id) == (b"", b"")
    assert resource["service.name"] == resource["telemetry.distro.name"] == "otelgpu"
    assert resource["telemetry.sdk.name"] == "opentelemetry"
    assert resource["host.name"] and resource["os.type"] == "linux" and resource["process.pid"]
    assert "process.command_args" not in resource  # they may hold secrets


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_verdict_is_an_event(tmp_path: Path, protocol: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    from tests.rig.jobs.shape import Shape
    from tests.rig.jobs.simulation import simulate
    from tests.rig.jobs.table import EPOCH_S, write

    job = simulate("slow compute", 4, Shape(steps=40, replicas=4, ranks_per_host=2, unit_s=0.01))
    write(tmp_path / "ops.parquet", job)
    duckdb.sql(
        f"SELECT DISTINCT job, rank, step, '{'ab' * 16}-' || format('{{:016x}}', rank * 1000 + step) AS link "
        f"FROM '{tmp_path}/ops.parquet'"
    ).write_parquet(str(tmp_path / "spans.parquet"))
    with PROTOCOLS[protocol]() as server:
        ended = run("diagnose", "ranks", str(tmp_path), **to(server, protocol))
    assert ended.returncode == 3
    records = {record.event_name: record for _, record in events(server)}
    assert of(records["otelgpu.command"].attributes)["otelgpu.command.verdicts"] == 1
    verdict = records["otelgpu.verdict"]
    reported = of(verdict.attributes)
    assert job.fault is not None
    (rank,) = job.fault.ranks
    assert (reported["otelgpu.verdict.class"], reported["otelgpu.verdict.cause"]) == (
        "slow_worker",
        "compute",
    )
    assert [each.string_value for each in reported["otelgpu.verdict.ranks"].values] == [str(rank)]
    assert [each.string_value for each in reported["otelgpu.verdict.hosts"].values] == [f"host-{rank // 2}"]
    assert reported["otelgpu.verdict.cost"] == pytest.approx(job.saved_s.sum(), rel=0.1)
    assert reported["otelgpu.verdict.start"] == pytest.approx(EPOCH_S, abs=1)
    end_s = reported["otelgpu.verdict.start"] + reported["otelgpu.verdict.duration"]
    assert verdict.time_unix_nano == pytest.approx(end_s * 1e9, abs=1e6)
    links = [each.string_value for each in reported["otelgpu.verdict.links"].values]
    assert {int(link.rpartition("-")[2], 16) // 1000 for link in links} == {rank}
    assert f"{verdict.trace_id.hex()}-{verdict.span_id.hex()}" == links[0]
    assert verdict.severity_text == "WARN"
    assert f"Slow rank {rank}" in verdict.body.string_value


def test_a_command_that_fails_says_of_what_kind_and_fails_as_it_would(tmp_path: Path) -> None:
    (tmp_path / "a.folded").write_text("")
    with http_server() as server:
        variables = to(server, "http/protobuf")
        ended = run("diff", str(tmp_path / "a.folded"), str(tmp_path / "missing"), **variables)
    alone = run("diff", str(tmp_path / "a.folded"), str(tmp_path / "missing"))
    assert (ended.returncode, ended.stderr) == (alone.returncode, alone.stderr)
    assert ended.returncode == 1
    ((attributes, _),) = points(server)["otelgpu.command.duration"]
    assert attributes == {
        "otelgpu.command.name": "diff",
        "otelgpu.command.outcome": "error",
        "error.type": "UnreadableProfiles",
    }
    ((_, record),) = events(server)
    assert record.severity_text == "ERROR"


def test_what_the_environment_says_of_the_resource_wins(tmp_path: Path, spans: Path) -> None:
    with http_server() as server:
        variables = to(
            server,
            "http/protobuf",
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=ci,host.name=named",
            OTEL_SERVICE_NAME="nightly",
            OTEL_EXPERIMENTAL_RESOURCE_DETECTORS="host",
        )
        run("analyze", "collectives", str(spans), **variables)
    resource, _ = events(server)[0]
    assert (resource["service.name"], resource["host.name"]) == ("nightly", "named")
    assert resource["deployment.environment.name"] == "ci"
    assert "host.arch" in resource and "os.type" not in resource  # only the detectors that were asked for


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
    ],
    ids=["disabled", "none", "no endpoint"],
)
def test_who_does_not_want_it_sends_nothing(spans: Path, variables: dict[str, str]) -> None:
    with http_server() as server:
        ended = run("analyze", "collectives", str(spans), **to(server, "http/protobuf") | variables)
    assert ended.returncode == 0 and server.requests == []


def test_one_signal_may_go_alone(spans: Path) -> None:
    with http_server() as server:
        variables = {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"{server.address}/here"}
        run("analyze", "collectives", str(spans), **variables)
    assert [request.path for request in server.requests] == ["/here"]
    assert [record.event_name for _, record in events_at(server)] == ["otelgpu.command"]


def events_at(server: Server) -> list[tuple[dict[str, Any], Any]]:
    for request in server.requests:
        object.__setattr__(request, "path", "/v1/logs")
    return events(server)


def test_a_declarative_configuration_says_where_to(spans: Path, tmp_path: Path) -> None:
    file = tmp_path / "otel.yaml"
    with http_server() as server:
        file.write_text(
            'file_format: "1.0"\nlogger_provider:\n  processors:\n    - batch:\n        exporter:\n'
            f"          otlp_http:\n            endpoint: {server.address}/v1/logs\n"
        )
        ended = run("analyze", "collectives", str(spans), OTEL_CONFIG_FILE=str(file))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [request.path for request in server.requests] == [
        "/v1/logs"
    ]  # and no metrics: none are configured


@pytest.mark.parametrize("trouble", ["nobody", "grpc hangs", "http hangs", "refuses"])
def test_an_endpoint_in_trouble_costs_two_seconds_and_nothing_else(spans: Path, trouble: str) -> None:
    import contextlib

    with contextlib.ExitStack() as stack:
        if trouble == "nobody":
            variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
        elif trouble == "http hangs":
            server = stack.enter_context(http_server(*[HttpAnswer(delay_s=8)] * 4))
            variables = to(server, "http/protobuf")
        else:
            import grpc

            answer = grpc_hang if trouble == "grpc hangs" else grpc_fail(grpc.StatusCode.PERMISSION_DENIED)
            variables = to(stack.enter_context(grpc_server(*[answer] * 8)), "grpc")
        alone = run("analyze", "collectives", str(spans))
        began = time.monotonic()
        ended = run("analyze", "collectives", str(spans), **variables)
        took = time.monotonic() - began
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, alone.stdout, "")
    assert took < 15  # two seconds, and what a busy machine needs to import


def test_nothing_of_the_sdk_is_imported_without_an_endpoint(spans: Path) -> None:
    program = (
        "import sys\n"
        "from otelgpu.cli.main import main\n"
        "try:\n    main()\n"
        "finally:\n    print(sorted(m for m in sys.modules if m.startswith(('opentelemetry.sdk', "
        "'opentelemetry.exporter', 'grpc', 'requests'))), file=sys.stderr)\n"
    )
    environ = {key: value for key, value in os.environ.items() if not key.startswith("OTEL")}
    ended = subprocess.run(
        [sys.executable, "-c", program, "analyze", "collectives", str(spans)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stderr == "[]\n"


def test_the_agent_imports_nothing_of_the_sdk() -> None:
    program = (
        "import sys\n"
        "import otelgpu.cli.observe, otelgpu.agent, otelgpu.export.otlp.grpc, otelgpu.export.otlp.http\n"
        "from otelgpu.cli.options import base_attributes, plan\n"
        "from otelgpu.config import Config\n"
        "plan(Config(export=('console',)))\n"
        "print(sorted(m for m in sys.modules if m.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))))\n"
    )
    environ = {key: value for key, value in os.environ.items() if not key.startswith("OTEL")}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60
    )
    assert (ended.stdout, ended.stderr) == ("[]\n", "")
