"""What the commands make of their settings."""

from __future__ import annotations

import pytest

from otelgpu.cli import options
from otelgpu.config import Config
from otelgpu.families.http import protocols
from otelgpu.families.http.http1 import parser as http1
from otelgpu.families.http.plugins import Plugins
from otelgpu.kernel.loader import read_image


def plugins(monkeypatch: pytest.MonkeyPatch, *, count: int) -> None:
    """So many plug-ins are installed, and one that could not be loaded."""
    found = Plugins(specs=(http1.SPEC,) * count, failed={"broken": "ImportError: no"})
    monkeypatch.setattr(options, "are_installed", lambda: True)
    monkeypatch.setattr(protocols, "installed", lambda: found)


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
