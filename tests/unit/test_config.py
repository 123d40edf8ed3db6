"""Flags over environment over file over defaults, and errors that say where a setting was given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from otelgpu.config import Config, ConfigError, default_file, load_config, otlp_defaults

# Setting → (in the file, in the environment, what that is, as a flag): three values that are not the default.
GIVEN: dict[str, tuple[Any, str, Any, Any]] = {
    "families": (["cuda"], "http, cuda", ("http", "cuda"), ("http",)),
    "export": (["console"], "otlp,console", ("otlp", "console"), ("file:x",)),
    "detail": ("phases", "all", "all", "phases"),
    "fabric_interval_ms": (0, "500", 500, 100),
    "rdma_budget": (5, "2.5", 2.5, 100.0),
    "max_overhead": (5, "2.5", 2.5, 100.0),
    "file_slow_ms": (2.5, "2.5", 2.5, 2.5),
    "probe_file": ("p.json", "p.json", "p.json", "p.json"),
    "probe_program": ("p.c", "p.c", "p.c", "p.c"),
    "rdma_transfers": (True, "true", True, True),
    "collective_sample_ratio": (0.5, "0.25", 0.25, 0.0),
    "traces_sampler": ("always_off", "traceidratio", "traceidratio", "always_on"),
    "traces_sampler_arg": (0.5, "0.25", 0.25, 0.0),
    "traces_keep_errors": (False, "false", False, False),
    "traces_keep_first_token_s": (2, "2.5", 2.5, 0.0),
    "traces_keep_first_token_quantile": (0.9, "0.95", 0.95, 0.99),
    "traces_spans_per_second": (100, "200", 200, 300),
    "traces_exclude_paths": (["/a*"], "/b, /c?", ("/b", "/c?"), ("/d",)),
    "traces_exclude_user_agents": (["a/*"], "b c/*", ("b c/*",), ("d",)),
    "switch_file": ("/run/a", "/run/b", "/run/b", "/run/c"),
    "switch_longest_s": (100, "200", 200.0, 300.0),
    "switch_at_once": (3, "4", 4, 5),
    "switch_pause_s": (10, "20", 20.0, 30.0),
    "own_spans": ("always", "auto", "auto", "always"),
    "model_bytes": (7, "8", 8, 9),
    "memory_bandwidth": (10, "11", 11, 12),
    "gpu_idle_watts": (70, "71.5", 71.5, 72.0),
    "price_per_kwh": (0.3, "0.31", 0.31, 0.32),
    "price_per_gpu_hour": (2, "2.5", 2.5, 3.0),
    "currency": ("EUR", "USD", "USD", "CHF"),
    "carbon_grams_per_kwh": (380, "21.5", 21.5, 56.0),
    "publish_context": (True, "true", True, False),
    "hold_on_load": (True, "TRUE", True, True),
    "trust_mounts": (True, "true", True, True),
    "return_probes": ("on", "off", "off", "on"),
    "ring_bytes": (65536, "131072", 131072, 262144),
    "memory_limit_mib": (200, "300", 300, 400),
    "source": ("inject", "inject", "inject", "uprobe"),
    "inject_socket": ("/a", "/b", "/b", "/c"),
    "device_time": (True, "true", True, False),
    "kernel_metrics": (10, "20", 20, 30),
    "device_interval_ms": (0, "1000", 1000, 2000),
    "interval_ms": (50, "60", 60, 70),
    "metric_interval_ms": (500, "600", 600, 700),
    "executables": (["a*"], "b*", ("b*",), ("c*",)),
    "cgroups": (["/a"], "/b,/c", ("/b", "/c"), ("/d",)),
    "containers": (["abc"], "def, 012", ("def", "012"), ("345",)),
    "resource_attributes": ({"a": "1"}, "b=2, c=x=y", {"b": "2", "c": "x=y"}, {"d": "3"}),
    "otlp": ({"endpoint": "http://a"}, "endpoint=http://b", {"endpoint": "http://b"}, {"endpoint": "c"}),
    "profiles": (["cpu"], "offcpu, file", ("offcpu", "file"), ("all",)),
    "profile_frequency_hz": (99, "49", 49, 997),
    "profile_interval_s": (5, "2.5", 2.5, 60.0),
    "profile_off_cpu_us": (0, "100", 100, 5000),
    "profile_launches": (False, "false", False, False),
    "drop_privileges": (False, "false", False, False),
    "health_address": (":1", ":2", ":2", "[::1]:3"),
    "log_level": ("debug", "info", "info", "error"),
    "log_format": ("json", "json", "json", "text"),
}
NAMES = sorted(get_type_hints(Config))


def written(path: Path, **settings: Any) -> Path:
    path.write_text(yaml.safe_dump(settings))
    return path


def as_config(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def test_every_setting_is_tried_here() -> None:
    assert sorted(GIVEN) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_flags_win_over_environment_over_file_over_default(name: str, tmp_path: Path) -> None:
    in_file, variable, in_environment, flag = GIVEN[name]
    file = written(tmp_path / "c.yaml", **{name: in_file})
    environ, flags = {f"OTELGPU_{name.upper()}": variable}, {name: flag}
    found = [
        getattr(load_config(*sources), name)
        for sources in ((None, {}, {}), (file, {}, {}), (file, environ, {}), (file, environ, flags))
    ]
    assert found == [getattr(Config(), name), as_config(in_file), in_environment, flag]


@pytest.mark.parametrize("name", NAMES)
def test_the_other_settings_keep_what_they_had(name: str, tmp_path: Path) -> None:
    others = {other: values[0] for other, values in GIVEN.items() if other != name}
    config = load_config(written(tmp_path / "c.yaml", **others), {}, {name: GIVEN[name][3]})
    assert {other: getattr(config, other) for other in others} == {k: as_config(v) for k, v in others.items()}


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_variable_is_as_if_unset(name: str) -> None:
    assert load_config(None, {f"OTELGPU_{name.upper()}": ""}, {}) == Config()


def test_an_empty_file_is_as_if_there_were_none(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("# nothing\n")
    assert load_config(tmp_path / "c.yaml", {}, {}) == Config()


def test_the_standard_variable_sets_the_metric_interval_and_ours_wins() -> None:
    standard = {"OTEL_METRIC_EXPORT_INTERVAL": "700"}
    assert load_config(None, standard, {}).metric_interval_ms == 700
    assert load_config(None, standard | {"OTELGPU_METRIC_INTERVAL_MS": "800"}, {}).metric_interval_ms == 800


@pytest.mark.parametrize(
    ("given", "sampler", "ratio"),
    [
        ({"OTEL_TRACES_SAMPLER": "always_off"}, "always_off", 1.0),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"}, "traceidratio", 0.1),
        ({"OTEL_TRACES_SAMPLER": "traceidratio"}, "traceidratio", 1.0),
        ({"OTEL_TRACES_SAMPLER_ARG": "0.1"}, "parentbased_always_on", 1.0),
        ({"OTEL_TRACES_SAMPLER": "always_on", "OTEL_TRACES_SAMPLER_ARG": "x"}, "always_on", 1.0),
        (
            {"OTEL_TRACES_SAMPLER": "always_off", "OTELGPU_TRACES_SAMPLER": "parentbased_always_off"},
            "parentbased_always_off",
            1.0,
        ),
    ],
)
def test_the_standard_variables_set_the_sampler(given: dict[str, str], sampler: str, ratio: float) -> None:
    config = load_config(None, given, {})
    assert (config.traces_sampler, config.traces_sampler_arg) == (sampler, ratio)


@pytest.mark.parametrize("sampler", ["jaeger_remote", "parentbased_jaeger_remote", "xray"])
def test_a_sampler_that_a_service_is_started_with_does_not_keep_it_from_starting(
    sampler: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": "endpoint=http://x"}
    assert load_config(None, given, {}) == Config()
    assert [record.getMessage().partition(" is ")[0] for record in caplog.records] == [
        f"OTEL_TRACES_SAMPLER={sampler}"
    ]


@pytest.mark.parametrize(
    ("given", "at_fault"),
    [
        ({"OTEL_TRACES_SAMPLER": "sometimes"}, "OTEL_TRACES_SAMPLER: must be one of always_on"),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"},
            "OTEL_TRACES_SAMPLER_ARG: must be a number from 0 to 1",
        ),
    ],
)
def test_a_sampler_that_is_none_of_ours_is_named(given: dict[str, str], at_fault: str) -> None:
    with pytest.raises(ConfigError, match=f"^{at_fault}"):
        load_config(None, given, {})


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("False", False), ("0", False)])
def test_booleans_in_the_environment(text: str, value: bool) -> None:
    assert load_config(None, {"OTELGPU_HOLD_ON_LOAD": text}, {}).hold_on_load is value


def test_the_otlp_section_has_the_standard_names() -> None:
    config = load_config(None, {"OTELGPU_OTLP": "endpoint=http://a,traces_headers=x=y"}, {})
    assert otlp_defaults(config) == {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://a",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x=y",
    }


# -- errors -----------------------------------------------------------------------------------------

BAD: dict[str, Any] = {
    "detail": "everything",
    "return_probes": "maybe",
    "ring_bytes": 1000,
    "interval_ms": 5,
    "metric_interval_ms": 1,
    "log_level": "loud",
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_flag_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^--{name.replace('_', '-')}: "):
        load_config(None, {f"OTELGPU_{name.upper()}": str(GIVEN[name][1])}, {name: BAD[name]})


@pytest.mark.parametrize("name", [*BAD, "hold_on_load", "resource_attributes", "otlp"])
def test_a_bad_variable_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^OTELGPU_{name.upper()}"):
        load_config(None, {f"OTELGPU_{name.upper()}": str(BAD.get(name, "maybe"))}, {})


def test_a_bad_standard_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^OTEL_METRIC_EXPORT_INTERVAL: "):
        load_config(None, {"OTEL_METRIC_EXPORT_INTERVAL": "soon"}, {})


@pytest.mark.parametrize("name", [*BAD, "ring_bytes_not_a_power", "unknown_setting"])
def test_a_bad_setting_in_the_file_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    key, value = ("ring_bytes", 65537) if name == "ring_bytes_not_a_power" else (name, BAD.get(name, 1))
    file = tmp_path / "c.yaml"
    file.write_text(f"# first\nhold_on_load: false\n{key}: {value}\n")
    with pytest.raises(ConfigError, match=rf"^{file}:3: .*{key}"):
        load_config(file, {}, {})


def test_a_nested_mistake_is_reported_with_the_line_of_its_section(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("detail: ops\notlp:\n  timeout: 10\n")
    with pytest.raises(ConfigError, match=rf"^{file}:2: otlp must be a mapping of names to texts$"):
        load_config(file, {}, {})


@pytest.mark.parametrize(
    ("flags", "environ", "place"),
    [
        ({"ring_bytes": 65537}, {}, "--ring-bytes"),
        ({}, {"OTELGPU_RING_BYTES": "65537"}, "OTELGPU_RING_BYTES"),
    ],
)
def test_a_ring_that_is_no_power_of_two(flags: dict[str, Any], environ: dict[str, str], place: str) -> None:
    with pytest.raises(ConfigError, match=f"^{place}: 65537 is not a power of two"):
        load_config(None, environ, flags)


@pytest.mark.parametrize(
    "content",
    [
        b"- a list\n",
        b"just text",
        b"detail: [unclosed",
        b"\xff\xfe\x00",
        b"1: 2\n",
        b"a: &x [*x]\n",
        b"? [a]\n: b\n",
    ],
)
def test_a_file_that_is_no_mapping_of_settings(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=str(tmp_path / "c.yaml")):
        load_config(tmp_path / "c.yaml", {}, {})


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match=f"cannot read configuration file {path}: "):
            load_config(path, {}, {})


def test_a_secret_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, {"OTELGPU_OTLP": "headers=authorization=Bearer s3cret,more"}, {})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_setting_that_was_removed_is_refused_with_what_takes_its_place(tmp_path: Path, value: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"detail: ops\nkubernetes_api: {value}\n")
    with pytest.raises(ConfigError, match=r"c\.yaml:2: kubernetes_api was removed: .*k8s_attributes"):
        load_config(file, {}, {})
    with pytest.raises(ConfigError, match=r"OTELGPU_KUBERNETES_API was removed: .*k8s_attributes"):
        load_config(None, {"OTELGPU_KUBERNETES_API": value}, {})


def placed(path: Path, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("detail: all\n")
    path.chmod(mode)
    return path


def test_the_users_file_is_read_where_none_is_named_else_the_systems(tmp_path: Path) -> None:
    environ, system = {"HOME": str(tmp_path)}, tmp_path / "etc/config.yaml"
    assert default_file(environ, system) is None
    assert default_file({}, placed(system)) == system
    assert default_file(environ, system) == system
    own = placed(tmp_path / ".config/otelgpu/config.yaml")
    assert default_file(environ, system) == own
    other = placed(tmp_path / "xdg/otelgpu/config.yaml")
    assert default_file({**environ, "XDG_CONFIG_HOME": str(tmp_path / "xdg")}, system) == other


def test_a_file_that_others_could_have_written_is_not_read_unless_it_is_named(tmp_path: Path) -> None:
    path = placed(tmp_path / ".config/otelgpu/config.yaml", 0o666)
    with pytest.raises(ConfigError, match="everybody may write to it"):
        default_file({"HOME": str(tmp_path)}, tmp_path / "none")
    assert load_config(path, {}, {}).detail == "all"


def test_commands_read_the_file_that_is_there(tmp_path: Path) -> None:
    path = placed(tmp_path / "otelgpu/config.yaml")
    path.write_text("no_such_setting: 1\n")
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "otelgpu", "replay", "/dev/null"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert told.returncode == 1
    assert f"{path}" in told.stderr
    assert "no_such_setting" in told.stderr
