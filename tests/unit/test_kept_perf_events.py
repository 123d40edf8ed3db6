"""Kernels that keep perf events for CAP_SYS_ADMIN: what cannot be attached later is at once, and it is said."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from otelgpu.cli import privilege_plan
from otelgpu.config import Config
from otelgpu.engine import registry
from otelgpu.kernel import features
from otelgpu.kernel.loader import read_image
from otelgpu.kernel.privileges import capabilities
from otelgpu.kernel.privileges.capabilities import Capability, Held, Need, perf_events_are_kept
from otelgpu.kernel.uprobe_links import UprobeLinks
from otelgpu.sources.live_settings import LiveSettings


@pytest.mark.parametrize(
    ("text", "kept"),
    [("-1\n", False), ("2\n", False), ("3\n", True), ("4\n", True), ("", False), ("three\n", False)],
)
def test_levels_beyond_those_of_linux_keep_them(text: str, kept: bool, tmp_path: Path) -> None:
    setting = tmp_path / "perf_event_paranoid"
    setting.write_text(text)
    assert perf_events_are_kept(setting) is kept
    assert not perf_events_are_kept(tmp_path / "nothing")


def test_what_has_tracepoints_is_loaded_at_once_where_that_is_too_late_later() -> None:
    observed = {name: family for name, family in registry.families().items() if name in ("file", "nccl")}
    begin = {
        late: {
            name: LiveSettings(late_tracepoints=late).begin_with(family, observed, read_image(name))
            for name, family in observed.items()
        }
        for late in (True, False)
    }
    assert begin == {True: {"file": False, "nccl": False}, False: {"file": True, "nccl": False}}


def test_who_lacks_what_they_are_kept_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    every = functools.reduce(lambda bits, each: bits | 1 << each, Capability, 0)
    admin = 1 << Capability.SYS_ADMIN
    told = {}
    for kept in (False, True):
        monkeypatch.setattr(capabilities, "perf_events_are_kept", lambda kept=kept: kept)
        for effective in (every, every & ~admin):
            own = Held(
                permitted=effective,
                effective=effective,
                inheritable=0,
                bounding=effective,
                ambient=0,
                no_new_privileges=False,
            )
            lacking = [each for each in features.privileges(own) if not each.present]
            told[kept, effective == every] = [(each.name, each.detail, each.required) for each in lacking]
    assert told == {
        (False, True): [],
        (False, False): [],
        (True, True): [],
        (True, False): [("perf events", "missing: CAP_SYS_ADMIN", True)],
    }


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("links", UprobeLinks)
def test_before_probes_are_anything_else_the_capability_is_kept_and_that_is_said(
    kept: bool, links: UprobeLinks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted: list[Need] = []
    monkeypatch.setattr(capabilities, "perf_events_are_kept", lambda: kept)
    monkeypatch.setattr(privilege_plan, "uprobe_links", lambda: links)
    monkeypatch.setattr(privilege_plan.privileges, "give_up", wanted.extend)
    privilege_plan.give_up(Config())
    stays = kept and links is UprobeLinks.SINGLE
    assert (capabilities.PERF_EVENTS in wanted) is stays
    assert capabilities.LOADING in wanted
    assert [each.getMessage()[:21] for each in caplog.records] == ["CAP_SYS_ADMIN is kept"] * stays
