"""What the commands make of their settings."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from otelgpu.cli import options
from otelgpu.cli.commands import cli
from otelgpu.config import Config
from otelgpu.engine import registry
from otelgpu.families.requests import discover as http
from otelgpu.families.requests import protocols
from otelgpu.families.requests.http1 import parser as http1
from otelgpu.families.requests.plugins import Plugins
from otelgpu.kernel.loader import read_image
from otelgpu.model.settings import Settings
from otelgpu.sources.discoveries import choice_of, discovery_of


def chosen_constants(config: Config) -> dict[str, int]:
    """What the families of a session choose, all together."""
    settings = options.live_settings(config).families
    found: dict[str, int] = {}
    for name in options.families_of(config):
        if (choose := discovery_of(name).choose) is not None:
            found |= choose(settings).constants
    return found


def plugins(monkeypatch: pytest.MonkeyPatch, *, count: int) -> None:
    """So many plug-ins are installed, and one that could not be loaded."""
    found = Plugins(specs=(http1.SPEC,) * count, failed={"broken": "ImportError: no"})
    monkeypatch.setattr(http, "are_installed", lambda: True)
    monkeypatch.setattr(protocols, "installed", lambda: found)


@pytest.mark.parametrize(
    ("families", "profiles", "asked"),
    [
        ((), (), set()),
        ((), ("cpu",), {"profile"}),
        ((), ("mem",), {"profile", "torch"}),
        ((), ("all",), {"profile", "torch"}),
        (("cuda",), ("mem",), {"profile"}),  # a choice is kept to
        (("cuda", "torch"), (), {"torch"}),
    ],
)
def test_profiles_bring_the_families_that_they_need(
    families: tuple[str, ...], profiles: tuple[str, ...], asked: set[str]
) -> None:
    found = options.families_of(Config(families=families, profiles=profiles))
    assert found.keys() - registry.select(()).keys() == asked


@pytest.mark.parametrize("families", [(), ("cuda", "http")])
def test_a_protocol_plugin_is_shown_connections_of_unknown_protocols(
    monkeypatch: pytest.MonkeyPatch, families: tuple[str, ...]
) -> None:
    plugins(monkeypatch, count=1)
    assert chosen_constants(Config(families=families))["http_unknown_bytes"] == http.PLUGIN_BYTES


@pytest.mark.parametrize(("count", "families"), [(0, ()), (1, ("cuda",))])
def test_without_a_plugin_that_is_asked_they_are_let_go_at_once(
    monkeypatch: pytest.MonkeyPatch, count: int, families: tuple[str, ...]
) -> None:
    plugins(monkeypatch, count=count)
    assert "http_unknown_bytes" not in chosen_constants(Config(families=families))


def test_the_program_has_the_constant() -> None:
    assert "http_unknown_bytes" in read_image("http").variables(".rodata")


@pytest.mark.parametrize(
    ("kinds", "frequency_hz", "ring_bytes", "expected"),
    [
        (("cpu",), 19, 8 << 20, 2 << 20),
        (("cpu",), 99, 8 << 20, 8 << 20),
        (("cpu",), 997, 8 << 20, 8 << 20),
        (("cpu",), 19, 65_536, 65_536),
        (("cpu", "offcpu"), 19, 8 << 20, 8 << 20),
        ((), 19, 8 << 20, 8 << 20),
    ],
)
def test_where_few_samples_come_the_ring_is_smaller(
    kinds: tuple[str, ...], frequency_hz: int, ring_bytes: int, expected: int
) -> None:
    settings = options.live_settings(
        Config(profiles=kinds, profile_frequency_hz=frequency_hz, ring_bytes=ring_bytes)
    )
    choose = discovery_of("profile").choose
    assert choose is not None
    wanted = choose(settings.families).ring_bytes
    assert wanted is not None and wanted(settings.default_ring_bytes) == expected
    assert settings.ring_bytes == {}


@pytest.mark.parametrize("family", ["file", "nccl", "sched", "torch", "verbs"])
@pytest.mark.parametrize(
    ("usual", "expected"),
    [(65_536, 65_536), (2 << 20, 2 << 20), (8 << 20, 2 << 20), (32 << 20, 8 << 20)],
)
def test_families_of_few_records_have_smaller_rings(family: str, usual: int, expected: int) -> None:
    wanted = choice_of(family, Settings()).ring_bytes
    assert wanted is not None and wanted(usual) == expected


@pytest.mark.parametrize("family", ["cuda", "http", "probe"])
def test_calls_and_requests_have_whole_rings(family: str) -> None:
    assert choice_of(family, Settings()).ring_bytes is None


def test_resource_detectors_are_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "host, os,process,nobody's"}
    assert options.detected({}) == {}
    found = options.base_attributes(Config(), asked)
    assert found["os.type"] == "linux" and found["host.arch"]
    assert not [key for key in found if key.startswith("process.")]  # which are not of every process
    assert found["telemetry.sdk.name"] == "otelgpu"
    named = options.base_attributes(Config(), asked | {"OTEL_RESOURCE_ATTRIBUTES": "host.arch=mine"})
    assert named["host.arch"] == "mine"
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    own = options.plan(Config(export=("console",))).attributes
    assert own["process.pid"] == os.getpid() and own["os.type"] == "linux"
    assert "process.command_args" not in own


def test_the_help_names_the_families_that_are_observed_by_default() -> None:
    said = " ".join(CliRunner().invoke(cli, ["run", "--help"]).output.split())
    assert f"By default: {', '.join(registry.select(()))}." in said
    assert "torch" not in said.partition("By default:")[2].partition(".")[0]


def test_help_has_a_commands_own_options_first_and_shared_ones_under_headings() -> None:
    shown = CliRunner().invoke(cli, ["record", "--help"]).output
    places = [
        shown.index(f"\n{heading}:\n")
        for heading in (
            "Options",
            "What is observed",
            "Results",
            "Probes",
            "Continuous profiles",
            "CUDA calls",
        )
    ]
    assert places == sorted(places)
    assert places[0] < shown.index("--output") < places[1] < shown.index("--config") < places[2]
