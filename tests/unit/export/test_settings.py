"""OTEL_EXPORTER_OTLP_*: as https://opentelemetry.io/docs/specs/otel/protocol/exporter/ says."""

from __future__ import annotations

from pathlib import Path

import pytest

from otelgpu.export.base import Signal
from otelgpu.export.otlp.compression import Compression
from otelgpu.export.otlp.settings import NO_LIMIT_S, OtlpSettings, Protocol, SettingsError

P = "OTEL_EXPORTER_OTLP_"


def settle(signal: Signal = Signal.TRACES, /, *, flag: str | None = None, **variables: str) -> OtlpSettings:
    """Settings from variables named without their common prefix."""
    environ = {P + name: value for name, value in variables.items()}
    return OtlpSettings.from_environment(environ, signal, endpoint=flag)


def fault(**variables: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        settle(**variables)
    return caught.value


def test_nothing_set_means_the_specifications_defaults() -> None:
    assert settle() == OtlpSettings(
        signal=Signal.TRACES,
        protocol=Protocol.HTTP_PROTOBUF,
        endpoint="http://localhost:4318/v1/traces",
        secure=False,
        timeout_s=10.0,
    )
    assert settle(PROTOCOL="grpc").endpoint == "localhost:4317"
    assert not settle(PROTOCOL="grpc").secure


@pytest.mark.parametrize(
    ("base", "signal", "url"),
    [
        ("http://collector:4318", Signal.TRACES, "http://collector:4318/v1/traces"),
        ("http://collector:4318", Signal.METRICS, "http://collector:4318/v1/metrics"),
        ("http://collector:4318", Signal.PROFILES, "http://collector:4318/v1development/profiles"),
        ("http://collector:4318/mycollector/", Signal.TRACES, "http://collector:4318/mycollector/v1/traces"),
        ("https://collector.example.com", Signal.TRACES, "https://collector.example.com/v1/traces"),
        ("http://[::1]:4318/", Signal.TRACES, "http://[::1]:4318/v1/traces"),
    ],
)
def test_a_base_endpoint_gets_the_signals_path(base: str, signal: Signal, url: str) -> None:
    assert settle(signal, ENDPOINT=base).endpoint == url
    assert settle(signal, flag=base).endpoint == url


@pytest.mark.parametrize(
    ("own", "url"),
    [
        ("http://collector:4318", "http://collector:4318/"),
        ("https://collector.example.com/v1/traces/", "https://collector.example.com/v1/traces/"),
        ("https://example.com/in?tenant=1", "https://example.com/in?tenant=1"),
    ],
)
def test_a_per_signal_endpoint_is_used_as_it_is(own: str, url: str) -> None:
    assert settle(TRACES_ENDPOINT=own, ENDPOINT="http://other:1").endpoint == url


def test_a_per_signal_endpoint_leaves_the_other_signal_alone() -> None:
    assert (
        settle(Signal.METRICS, TRACES_ENDPOINT="http://a", ENDPOINT="http://b").endpoint
        == "http://b/v1/metrics"
    )


def test_a_flag_wins_over_the_environment() -> None:
    found = settle(flag="http://flag:4318", TRACES_ENDPOINT="http://own:1", ENDPOINT="http://base:2")
    assert found.endpoint == "http://flag:4318/v1/traces"


def test_the_environment_wins_over_defaults_of_a_configuration_file() -> None:
    defaults = {P + "ENDPOINT": "http://file:1", P + "TIMEOUT": "5"}
    found = OtlpSettings.from_environment({P + "ENDPOINT": "http://env:2"}, Signal.TRACES, defaults=defaults)
    assert (found.endpoint, found.timeout_s) == ("http://env:2/v1/traces", 0.005)


def test_a_flag_with_a_signals_path_says_to_leave_it_out() -> None:
    with pytest.raises(SettingsError, match="base URL") as caught:
        settle(flag="http://collector:4318/v1/traces")
    assert "/v1/traces" in caught.value.hint


def test_port_4317_without_a_protocol_means_grpc() -> None:
    assert settle(ENDPOINT="http://collector:4317").protocol is Protocol.GRPC
    assert settle(ENDPOINT="collector:4317").protocol is Protocol.GRPC
    assert (
        settle(ENDPOINT="http://collector:4317", PROTOCOL="http/protobuf").protocol is Protocol.HTTP_PROTOBUF
    )
    assert settle(ENDPOINT="http://collector:4318").protocol is Protocol.HTTP_PROTOBUF


@pytest.mark.parametrize(
    ("endpoint", "insecure", "target", "secure"),
    [
        ("http://collector:4317", "false", "collector:4317", False),
        ("https://collector:4317", "true", "collector:4317", True),
        ("https://collector.example.com/ignored", "", "collector.example.com:4317", True),
        ("http://[::1]:4317", "", "[::1]:4317", False),
        ("collector:4317", "", "collector:4317", True),
        ("collector:4317", "TRUE", "collector:4317", False),
        ("unix:///run/otel.sock", "true", "unix:///run/otel.sock", False),
        ("dns:///collector:4317", "true", "dns:///collector:4317", False),
    ],
)
def test_grpc_takes_tls_from_the_scheme_else_from_insecure(
    endpoint: str, insecure: str, target: str, secure: bool
) -> None:
    found = settle(ENDPOINT=endpoint, PROTOCOL="grpc", INSECURE=insecure)
    assert (found.endpoint, found.secure) == (target, secure)


def test_per_signal_variables_win_over_general_ones() -> None:
    found = settle(
        TIMEOUT="1000",
        TRACES_TIMEOUT="2000",
        HEADERS="a=1",
        TRACES_HEADERS="b=2",
        COMPRESSION="none",
        TRACES_COMPRESSION="gzip",
        PROTOCOL="http/protobuf",
        TRACES_PROTOCOL="grpc",
    )
    assert (found.timeout_s, found.headers, found.compression, found.protocol) == (
        2.0,
        (("b", "2"),),
        Compression.GZIP,
        Protocol.GRPC,
    )


def test_an_empty_variable_is_unset() -> None:
    assert (
        settle(TRACES_ENDPOINT="", ENDPOINT="http://a:1", TIMEOUT=" ", PROTOCOL="").endpoint
        == "http://a:1/v1/traces"
    )


def test_timeout_is_in_milliseconds_and_zero_means_the_longest_we_wait() -> None:
    assert settle(TIMEOUT="2500").timeout_s == 2.5
    assert settle(TIMEOUT="0").timeout_s == NO_LIMIT_S
    assert settle(TIMEOUT="999999999").timeout_s == NO_LIMIT_S


def test_headers_are_baggage_with_percent_encoded_values() -> None:
    found = settle(HEADERS="Authorization=Basic%20dXNlcg==, x-tenant = a%2Cb ,,empty=")
    assert found.headers == (("authorization", "Basic dXNlcg=="), ("x-tenant", "a,b"), ("empty", ""))


def test_header_values_are_not_in_the_repr() -> None:
    assert "secret" not in repr(settle(HEADERS="authorization=secret"))


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("PROTOCOL", "http/json", "http/json is not supported"),
        ("TRACES_PROTOCOL", "udp", "'udp' is not known"),
        ("COMPRESSION", "brotli", "'brotli' is not known"),
        ("TIMEOUT", "10s", "whole number of milliseconds"),
        ("TRACES_TIMEOUT", "-1", "whole number of milliseconds"),
        ("ENDPOINT", "localhost:4318", "is not an http:// or https:// URL"),
        ("TRACES_ENDPOINT", "ftp://x", "is not an http:// or https:// URL"),
        ("ENDPOINT", "http://host:port", "is not an address"),
        ("ENDPOINT", "http://host name:4318", "is not an address"),
        ("ENDPOINT", f"http://{'a' * 64}.com", "is not an address"),
        ("ENDPOINT", "http://host..double:4318", "is not an address"),
        ("ENDPOINT", "http://user:hunter2@host:4318", "a user name or password in the URL is not sent"),
        ("HEADERS", "novalue", "entry 1 is not KEY=VALUE"),
        ("HEADERS", "a=1,b c=2", "entry 2 is not KEY=VALUE"),
        ("HEADERS", "a=hunter2%0d%0aevil: 1", "characters that a header cannot carry"),
        ("HEADERS", "content-type=text/plain", "belongs to the protocol"),
        ("CERTIFICATE", "/nonexistent/ca.pem", "cannot read '/nonexistent/ca.pem'"),
    ],
)
def test_a_bad_value_names_its_variable_and_no_secret(variable: str, value: str, says: str) -> None:
    error = fault(**{variable: value})
    assert error.variable == P + variable
    assert str(error).startswith(P + variable)
    assert says in str(error)
    assert "hunter2" not in str(error)


def test_insecure_must_be_a_boolean() -> None:
    assert fault(PROTOCOL="grpc", ENDPOINT="h:1", INSECURE="yes").variable == P + "INSECURE"


def test_a_client_key_needs_its_certificate(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("key")
    error = fault(CLIENT_KEY=str(key))
    assert error.variable == P + "CLIENT_KEY"
    assert P + "CLIENT_CERTIFICATE" in str(error)
    assert settle(CLIENT_KEY=str(key), CLIENT_CERTIFICATE=str(key)).client_key == str(key)


def test_the_shown_endpoint_has_no_query() -> None:
    assert settle(TRACES_ENDPOINT="https://h/p?token=hunter2").shown == "https://h/p"


@pytest.mark.parametrize(
    ("endpoint", "protocol", "host"),
    [
        ("http://collector:4318", "http/protobuf", "collector"),
        ("http://otel.observability.svc.cluster.local:4317", "grpc", "otel.observability.svc.cluster.local"),
        ("http://10.0.0.7:4318", "http/protobuf", "10.0.0.7"),
        ("http://[fd00::7]:4317", "grpc", "fd00::7"),
        ("https://collector:4318", "http/protobuf", ""),
        ("https://collector:4317", "grpc", ""),
        ("http://localhost:4318", "http/protobuf", ""),
        ("http://127.0.0.9:4318", "http/protobuf", ""),
        ("http://[::1]:4317", "grpc", ""),
        ("http://localhost.example.com:4318", "http/protobuf", "localhost.example.com"),
    ],
)
def test_who_is_sent_to_in_the_clear_is_another_host_without_tls(
    endpoint: str, protocol: str, host: str
) -> None:
    assert settle(ENDPOINT=endpoint, PROTOCOL=protocol).in_clear_to == host


def test_a_unix_socket_is_nobody_elses_to_read() -> None:
    assert settle(ENDPOINT="unix:/run/otel.sock", PROTOCOL="grpc", INSECURE="true").in_clear_to == ""
    assert settle().in_clear_to == ""
