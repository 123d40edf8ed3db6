"""OTEL_CONFIG_FILE: the SDK's declarative configuration as settings, and errors that name the line."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from otelgpu.cli.declarative import declared_otlp, declared_settings
from otelgpu.cli.options import read_config
from otelgpu.config import ConfigError
from otelgpu.export.base import Signal
from otelgpu.export.otlp.settings import OtlpSettings, Protocol

FULL = """\
file_format: "1.0"
log_level: info
resource:
  attributes_list: team=a,service.namespace=listed
  attributes:
    - name: service.name
      value: ${NAME:-gpu-node}
    - name: service.namespace
      value: inference
    - name: shard
      value: 7
      type: int
tracer_provider:
  processors:
    - batch:
        exporter:
          otlp_http:
            endpoint: https://collector:4318/base/v1/traces
            headers:
              - name: x-tenant
                value: "a b,c"
            headers_list: x-tenant=other,x-more=1
            compression: gzip
            timeout: 3000
            tls:
              ca_file: /etc/ca.pem
    - simple:
        exporter:
          console:
meter_provider:
  readers:
    - periodic:
        interval: 15000
        exporter:
          otlp_grpc:
            endpoint: http://metrics:4317
logger_provider:
  processors:
    - batch:
        exporter:
          otlp_http:
            endpoint: http://logs:4318/v1/logs
extensions:
  otelgpu:
    detail: phases
    families: [cuda, http]
"""


@pytest.fixture(scope="module", autouse=True)
def schema_is_one() -> Iterator[None]:
    """The SDK's own, which it looks through for 0.2 s each time before it looks at a file."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jsonschema.Draft202012Validator, "check_schema", lambda _schema: None)
        yield


def written(folder: Path, text: str) -> dict[str, str]:
    path = folder / "otel.yaml"
    path.write_text(text)
    return {"OTEL_CONFIG_FILE": str(path)}


def test_exporters_resource_and_our_own_settings_are_taken(tmp_path: Path) -> None:
    found = declared_settings(written(tmp_path, FULL))
    assert found["export"] == ("otlp", "console")
    assert found["resource_attributes"] == {
        "service.name": "gpu-node",
        "service.namespace": "inference",
        "team": "a",
        "shard": "7",
    }
    assert (found["metric_interval_ms"], found["log_level"]) == (15000, "info")
    assert (found["detail"], found["families"]) == ("phases", ["cuda", "http"])


def test_each_signal_goes_where_the_file_says_and_what_it_does_not_mention_goes_with_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("")
    declared = declared_otlp(written(tmp_path, FULL.replace("/etc/ca.pem", str(authority))))
    settings = {signal: OtlpSettings.from_environment({}, signal, defaults=declared) for signal in Signal}
    traces = settings[Signal.TRACES]
    assert (traces.endpoint, traces.protocol) == (
        "https://collector:4318/base/v1/traces",
        Protocol.HTTP_PROTOBUF,
    )
    assert dict(traces.headers) == {"x-tenant": "a b,c", "x-more": "1"}
    assert (traces.compression, traces.timeout_s, traces.certificate) == ("gzip", 3.0, str(authority))
    metrics = settings[Signal.METRICS]
    assert (metrics.endpoint, metrics.protocol, metrics.secure) == ("metrics:4317", Protocol.GRPC, False)
    assert settings[Signal.LOGS].endpoint == "http://logs:4318/v1/logs"
    assert settings[Signal.PROFILES].endpoint == "https://collector:4318/base/v1development/profiles"


def test_flags_win_over_environment_over_the_settings_file_over_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in written(tmp_path, FULL).items():
        monkeypatch.setenv(name, value)
    assert read_config({}).detail == "phases"
    own = tmp_path / "otelgpu.yaml"
    own.write_text("detail: all\nmetric_interval_ms: 500\n")
    file: dict[str, object] = {"config_file": own}
    assert (read_config(file).detail, read_config(file).metric_interval_ms) == ("all", 500)
    assert read_config(file).families == ("cuda", "http")  # of which the other file says nothing
    monkeypatch.setenv("OTELGPU_DETAIL", "ops")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "700")
    assert (read_config(file).detail, read_config(file).metric_interval_ms) == ("ops", 700)
    assert read_config({**file, "detail": "phases"}).detail == "phases"
    assert read_config({"export": ("console",)}).export == ("console",)


def test_the_environment_wins_over_the_resource(tmp_path: Path) -> None:
    environ = written(tmp_path, FULL) | {
        "OTEL_SERVICE_NAME": "mine",
        "OTEL_RESOURCE_ATTRIBUTES": "team=b",
    }
    kept = declared_settings(environ)["resource_attributes"]
    assert set(kept) == {"service.namespace", "shard"}


def test_variables_are_substituted_by_the_sdks_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAME", "from-variable")
    environ = written(tmp_path, FULL.replace("detail: phases", "interval_ms: ${EVERY:-50}"))
    found = declared_settings(environ)
    assert found["resource_attributes"]["service.name"] == "from-variable"
    assert found["interval_ms"] == 50


def test_the_documented_file_is_read(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "configuration.md"
    example = page.read_text().split("## OpenTelemetry's declarative configuration", 1)[1]
    found = declared_settings(written(tmp_path, example.split("```yaml\n", 1)[1].split("```", 1)[0]))
    assert (found["export"], found["detail"]) == (("otlp",), "phases")
    assert found["otlp"]["traces_endpoint"] == "http://localhost:4318/v1/traces"
    assert found["resource_attributes"] == {"deployment.environment.name": "production"}


def test_a_file_without_exporters_leaves_the_defaults(tmp_path: Path) -> None:
    assert declared_settings(written(tmp_path, 'file_format: "1.0"\n')) == {}


def test_files_of_otlp_lines_are_a_destination(tmp_path: Path) -> None:
    text = FULL[: FULL.index("tracer_provider")] + (
        "tracer_provider:\n  processors:\n    - batch:\n        exporter:\n"
        "          otlp_file/development:\n            output_stream: file:///var/log/otelgpu.jsonl\n"
    )
    assert declared_settings(written(tmp_path, text))["export"] == ("file:/var/log/otelgpu.jsonl",)


def test_detectors_that_are_listed_are_asked(tmp_path: Path) -> None:
    text = 'file_format: "1.0"\nresource:\n  detection/development:\n    detectors:\n      - host:\n      - process:\n'
    found = declared_settings(written(tmp_path, text))["resource_attributes"]
    assert found["host.arch"] and not [key for key in found if key.startswith(("process.", "service."))]


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("interval: 15000", "interval: soon", 33, "'soon' is not"),
        ("tracer_provider:", "tracer_provider: 7\nold:", 13, "7 is not of type"),
        ("detail: phases", "detail: most", 45, "detail must be one of phases, ops, all, not 'most'"),
        ("detail: phases", "details: phases", 45, "there is no setting 'details'; did you mean 'detail'?"),
        ("detail: phases", "kubernetes_api: true", 45, "k8s_attributes"),
        ('file_format: "1.0"', 'file_format: "9.0"', None, "Unsupported file_format '9.0'"),
        ("log_level: info", "log_level: [info", 3, "expected"),
        ("compression: gzip", "encoding: json", 23, "json is not supported"),
        ("value: 7\n      type: int", "value: [7]\n      type: int_array", 5, "shard is a list"),
        ("console:", "otlp_http:", 29, "a second OTLP exporter of traces"),
        ("families: [cuda, http]", "families: cuda", 46, "families must be a list of texts, not 'cuda'"),
    ],
)
def test_an_error_names_the_line(
    tmp_path: Path, old: str, new: str, line: int | None, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    environ = written(tmp_path, FULL.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        declared_settings(environ)
    place = f"otel.yaml:{line}: " if line is not None else "otel.yaml: "
    assert place in str(caught.value) and says in str(caught.value)
    assert caplog.records == []  # the parser logs a traceback of what it raises


@pytest.mark.parametrize(("name", "says"), [("none.yaml", "No such file"), ("folder.yaml", "Is a directory")])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ConfigError, match=says):
        declared_settings({"OTEL_CONFIG_FILE": str(tmp_path / name)})


@pytest.mark.parametrize(
    ("written_as", "sampler", "ratio"),
    [
        ("always_off:", "always_off", None),
        ("trace_id_ratio_based: {ratio: 0.1}", "traceidratio", 0.1),
        ("parent_based: {root: {trace_id_ratio_based: {ratio: 0.1}}}", "parentbased_traceidratio", 0.1),
        ("parent_based: {root: {always_on: }}", "parentbased_always_on", None),
        ("parent_based: {}", "parentbased_always_on", None),
    ],
)
def test_the_sampler_is_taken(tmp_path: Path, written_as: str, sampler: str, ratio: float | None) -> None:
    text = FULL.replace("tracer_provider:\n", f"tracer_provider:\n  sampler:\n    {written_as}\n", 1)
    found = declared_settings(written(tmp_path, text))
    assert (found["traces_sampler"], found.get("traces_sampler_arg")) == (sampler, ratio)


def test_of_a_sampler_what_has_no_meaning_here_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parent = "parent_based: {root: {always_on: }, remote_parent_not_sampled: {always_on: }}"
    text = FULL.replace("tracer_provider:\n", f"tracer_provider:\n  sampler:\n    {parent}\n", 1)
    with caplog.at_level(logging.WARNING, logger="otelgpu.config"):
        assert declared_settings(written(tmp_path, text))["traces_sampler"] == "parentbased_always_on"
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "tracer_provider.sampler.parent_based.remote_parent_not_sampled has no effect on otelgpu"
    ]


def test_what_has_no_effect_here_is_said_with_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = FULL.replace("tracer_provider:\n", "tracer_provider:\n  limits: {event_count_limit: 3}\n", 1)
    with caplog.at_level(logging.WARNING, logger="otelgpu.config"):
        declared_settings(written(tmp_path, text))
    (record,) = caplog.records
    assert "otel.yaml:14: tracer_provider.limits has no effect" in record.getMessage()
