"""What the commands make of their settings."""

from __future__ import annotations

import pytest

from otelgpu.cli import options
from otelgpu.config import Config
from otelgpu.families import registry
from otelgpu.families.http import protocols
from otelgpu.families.http.http1 import parser as http1
from otelgpu.families.http.plugins import Plugins
from otelgpu.kernel.loader import read_image


def plugins(monkeypatch: pytest.MonkeyPatch, *, count: int) -> None:
    """So many plug-ins are installed, and one that could not be loaded."""
    found = Plugins(specs=(http1.SPEC,) * count, failed={"broken": "ImportError: no"})
    monkeypatch.setattr(options, "are_installed", lambda: True)
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
    settings = options.live_settings(Config(families=families))
    assert settings.knobs["http_unknown_bytes"] == options.PLUGIN_BYTES


@pytest.mark.parametrize(("count", "families"), [(0, ()), (1, ("cuda",))])
def test_without_a_plugin_that_is_asked_they_are_let_go_at_once(
    monkeypatch: pytest.MonkeyPatch, count: int, families: tuple[str, ...]
) -> None:
    plugins(monkeypatch, count=count)
    assert "http_unknown_bytes" not in options.live_settings(Config(families=families)).knobs


def test_the_program_has_the_knob() -> None:
    assert "http_unknown_bytes" in read_image("http").variables(".rodata")


@pytest.mark.parametrize(
    ("kinds", "frequency_hz", "ring_bytes", "expected"),
    [
        (("cpu",), 19, 8 << 20, {"profile": 2 << 20}),
        (("cpu",), 99, 8 << 20, {"profile": 8 << 20}),
        (("cpu",), 997, 8 << 20, {"profile": 8 << 20}),
        (("cpu",), 19, 65_536, {"profile": 65_536}),
        (("cpu", "offcpu"), 19, 8 << 20, {}),
        ((), 19, 8 << 20, {}),
    ],
)
def test_where_few_samples_come_the_ring_is_smaller(
    kinds: tuple[str, ...], frequency_hz: int, ring_bytes: int, expected: dict[str, int]
) -> None:
    config = Config(profiles=kinds, profile_frequency_hz=frequency_hz, ring_bytes=ring_bytes)
    assert options.live_settings(config).ring_bytes == expected
