"""The viewer's page of a capture with profiles in Chromium: its flame graphs are in it, and run under its policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from otelgpu.cli.view import write_page
from otelgpu.model.profiles import ProfileColumns
from tests.browser.test_flame_graph import STACKS
from tests.browser.test_view import HEADING, SERVER
from tests.rig.browser_session import BrowserSession
from tests.unit.render.profile_columns import HOSTILE, profile
from tests.unit.view.otlp_lines import span, traces

TABS = "[...document.querySelectorAll('[role=tab]')].map((tab) => tab.dataset.list)"
SHOWN = "document.querySelector('[role=tab][aria-selected=true]').dataset.list"
INNER = "document.getElementById('profile').contentDocument"


def page_of(folder: Path, *profiles: ProfileColumns) -> str:
    lines = folder / "x.jsonl"
    lines.write_bytes(traces(span(1, "chat one", kind=SERVER)))
    write_page(lines, folder / "x.html", source=lines, profiles=profiles)
    return (folder / "x.html").as_uri()


def test_a_page_with_profiles_has_their_flame_graphs(browser: BrowserSession, tmp_path: Path) -> None:
    browser.open(page_of(tmp_path, profile(STACKS)))
    browser.wait(f"{HEADING} === 'chat one'")
    place = browser.evaluate(TABS).index("profile") + 1
    browser.press(str(place))
    browser.wait(f"{SHOWN} === 'profile'")
    browser.wait(f"{INNER}.getElementById('status').textContent.startsWith('all · 1.00 µs')")
    browser.press("ArrowUp")  # the graph has the focus
    browser.wait(f"{INNER}.getElementById('status').textContent.startsWith('main')")
    size = (
        "(({ width, height }) => [width, height])(document.getElementById('profile').getBoundingClientRect())"
    )
    width, height = browser.evaluate(size)
    assert width == 1400
    assert height > 800
    browser.press("1")  # and numbers lead back
    browser.wait(f"{SHOWN} === 'requests'")
    browser.wait(f"{HEADING} === 'chat one'")


def test_a_page_without_profiles_has_no_place_for_them(browser: BrowserSession, tmp_path: Path) -> None:
    browser.open(page_of(tmp_path) + "#/profile")
    assert "profile" not in browser.evaluate(TABS)
    assert browser.evaluate(SHOWN) == "requests"


@pytest.mark.parametrize("text", HOSTILE[:3])
def test_hostile_frames_do_nothing_in_the_page_either(
    browser: BrowserSession, tmp_path: Path, text: str
) -> None:
    browser.open(page_of(tmp_path, profile({(text, "leaf"): 1})) + "#/profile")
    browser.wait(f"{INNER}.getElementById('status').textContent")
    assert browser.evaluate("document.scripts.length") == 2
    assert browser.evaluate(f"{INNER}.scripts.length") == 3
    assert browser.evaluate(f"{INNER}.querySelectorAll('img').length") == 0
