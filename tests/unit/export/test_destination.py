"""--export texts, and what opening a destination needs and costs."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from otelgpu.errors import OtelgpuError
from otelgpu.export.console import ConsoleDestination
from otelgpu.export.console.exporter import ConsoleExporter
from otelgpu.export.file import FileDestination
from otelgpu.export.file.exporter import FileExporter
from otelgpu.export.otlp import OtlpDestination
from otelgpu.export.otlp.exporter import OtlpExporter
from otelgpu.export.registry import parse_destination


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("console", ConsoleDestination()),
        ("file:out.jsonl", FileDestination("out.jsonl")),
        ("file:/a:b", FileDestination("/a:b")),
        ("otlp", OtlpDestination(None)),
        ("otlp:http://collector:4318", OtlpDestination("http://collector:4318")),
        ("otlp:collector:4317", OtlpDestination("collector:4317")),
    ],
)
def test_destinations_are_parsed(text: str, expected: object) -> None:
    assert parse_destination(text) == expected


@pytest.mark.parametrize("text", ["", "file", "file:", "otlp:", "console:x", "jaeger", "stdout"])
def test_an_unknown_destination_says_what_can_be_written(text: str) -> None:
    with pytest.raises(OtelgpuError) as caught:
        parse_destination(text)
    assert "console, file:PATH, otlp, otlp:URL or parquet:DIR" in str(caught.value)


def test_a_bare_url_is_reported_what_to_write() -> None:
    with pytest.raises(OtelgpuError, match="otlp:http://collector:4318"):
        parse_destination("http://collector:4318")


def test_each_destination_opens_its_exporter(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = ConsoleDestination(stream).open({}, {})
    file = FileDestination(str(tmp_path / "out.jsonl")).open({}, {})
    otlp = OtlpDestination("http://localhost:1").open({}, {})
    assert [type(e) for e in (console, file, otlp)] == [ConsoleExporter, FileExporter, OtlpExporter]
    for exporter in (console, file, otlp):
        exporter.close(1)


@pytest.mark.parametrize(
    ("endpoint", "warned"),
    [
        ("http://collector.observability:4318", ["collector.observability"]),
        ("https://collector.observability:4318", []),
        ("http://localhost:4318", []),
    ],
)
def test_what_goes_to_another_host_in_the_clear_is_said_once(
    endpoint: str, warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    OtlpDestination(endpoint).open({}, {}).close(0)
    assert [record.args for record in caplog.records] == [(host,) for host in warned]
    (trial, *_) = OtlpDestination(endpoint).trials({}, {}, connects=False)
    assert ("not encrypted" in trial.detail) == bool(warned)


def test_a_bad_variable_is_an_error_at_start_up() -> None:
    with pytest.raises(OtelgpuError, match="OTEL_EXPORTER_OTLP_PROTOCOL"):
        OtlpDestination(None).open({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, {})


def test_an_otlp_http_exporter_imports_no_grpc_requests_rich_or_sdk() -> None:
    code = """
import sys
from otelgpu.export.registry import parse_destination
parse_destination("otlp:http://localhost:1").open({}, {}).close(0)
print([name for name in ("grpc", "requests", "rich", "opentelemetry.sdk") if name in sys.modules])
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(("protocol", "imported"), [("http/protobuf", ["http.client"]), ("grpc", [])])
def test_what_sends_over_http_is_imported_before_it_is_opened_and_grpc_is_not(
    protocol: str, imported: list[str]
) -> None:
    code = f"""
import sys
from otelgpu.export.destination import Opening
from otelgpu.export.registry import parse_destination
settings = {{"OTEL_EXPORTER_OTLP_PROTOCOL": "{protocol}"}}
opening = Opening(parse_destination("otlp:http://localhost:1"), settings, {{}})
opening.prepare()
before = set(sys.modules)
print([name for name in ("http.client", "grpc") if name in before])
opening.open().close(0)
print([name for name in sorted(set(sys.modules) - before) if name.startswith(("http", "ssl", "email"))])
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=60)
    prepared, later = done.stdout.splitlines()
    assert prepared == str(imported), done.stderr
    assert imported == [] or later == "[]"
