"""Pages in Chromium as axe-core judges them (WCAG 2.2 A and AA, and its best practices), in light and dark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from otelgpu.render.flame_graph import differential, flame_graph
from otelgpu.render.heat_map import heat_map
from tests.backends.programs import CACHE, missing_program
from tests.browser.conftest import GOLDEN, Page
from tests.browser.test_flame_graph import STACKS
from tests.rig.browser_session import BrowserSession
from tests.unit.render.profile_columns import PARTS, START, profile

AXE: Final = CACHE / "axe"
MISSING: Final = missing_program("axe", AXE, "axe/package-lock.json")
pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")

VIOLATIONS: Final = """axe.run(document, { iframes: false }).then((found) => found.violations.map(
  (each) => [each.id, each.impact, each.nodes.length, each.nodes[0].html.slice(0, 200)]))"""

PAGES: Final[dict[str, Callable[[], bytes]]] = {
    "flame graph": lambda: flame_graph([profile(STACKS)], PARTS),
    "comparison": lambda: differential([profile(STACKS)], [profile(STACKS)], PARTS),
    "heat map": lambda: heat_map([profile([(("a",), 1)] * 2, times=[START, START + 10**9])], PARTS),
    "nothing": lambda: flame_graph([], PARTS),
}


def violations(browser: BrowserSession) -> list[Any]:
    """What axe-core finds in the page as it is now."""
    browser.evaluate(AXE.read_text(encoding="utf-8") + "\n;0")
    found: list[Any] = browser.evaluate(VIOLATIONS)
    return found


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(
    ("capture", "state", "keys"),
    [
        ("llm_session", "#/requests", ""),
        ("llm_session", "#/requests", "g"),
        ("llm_session", "#/requests", "?"),
        ("llm_session", "#/calls", ""),
        ("llm_session", "#/unseen", ""),
        ("training_job", "#/training", ""),
        ("training_job", "#/collectives", ""),
        ("training_job", "#/requests", ""),
    ],
)
def test_the_viewer_is_accessible(
    browser: BrowserSession, page: Page, capture: str, state: str, keys: str, dark: bool
) -> None:
    browser.resize(1400, 900, dark=dark)
    browser.open(page(GOLDEN / f"{capture}.capture") + state)
    for key in keys:
        browser.press(key)
    assert violations(browser) == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("keys", ["", "?", ("ArrowUp", "s")])
def test_pages_of_profiles_are_accessible(
    browser: BrowserSession, tmp_path: Path, name: str, keys: str | tuple[str, ...], dark: bool
) -> None:
    browser.resize(1400, 900, dark=dark)
    (tmp_path / "page.html").write_bytes(PAGES[name]())
    browser.open((tmp_path / "page.html").as_uri())
    for key in keys:
        browser.press(key)
    assert violations(browser) == []
