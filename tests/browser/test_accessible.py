"""Pages in Chromium as axe-core judges them (WCAG 2.2 A and AA, and its best practices), in light and dark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from otelgpu.cli.page_files import topology_page_files
from otelgpu.model.spans import Attribute
from otelgpu.render.flame_graph import differential, flame_graph
from otelgpu.render.heat_map import heat_map
from otelgpu.topology.topology_page import topology_page
from tests.backends.programs import CACHE, missing_program
from tests.browser.conftest import GOLDEN, Page
from tests.browser.test_flame_graph import STACKS
from tests.rig.browser_session import BrowserSession
from tests.rig.cluster import Cluster
from tests.unit.render.profile_columns import PARTS, START, profile
from tests.unit.topology.test_graph import graph

AXE: Final = CACHE / "axe"
MISSING: Final = missing_program("axe", AXE, "axe/package-lock.json")
pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")

VIOLATIONS: Final = """axe.run(document, { iframes: false }).then((found) => found.violations.map(
  (each) => [each.id, each.impact, each.nodes.length, each.nodes[0].html.slice(0, 200)]))"""

PAGES: Final[dict[str, Callable[[], bytes]]] = {
    "flame graph": lambda: flame_graph([profile(STACKS)], PARTS),
    "comparison": lambda: differential([profile(STACKS)], [profile(STACKS)], PARTS),
    "heat map": lambda: heat_map([profile([(("a",), 1)] * 2, times=[START, START + 10**9])], PARTS),
    "flame chart": lambda: flame_graph(
        [profile(STACKS, times=[START] * 4, attributes=(Attribute.of("thread.id", [7, 7, 8, 8]),))], PARTS
    ),
    "nothing": lambda: flame_graph([], PARTS),
    "topology": lambda: topology_page(
        graph(Cluster(nodes=3, gpus=2, faults={(1, 1): "xid"}).lines()), topology_page_files(), title="three"
    ),
}


def violations(browser: BrowserSession) -> list[Any]:
    """What axe-core finds in the page as it is now."""
    browser.evaluate(AXE.read_text(encoding="utf-8") + "\n;0")
    found: list[Any] = browser.evaluate(VIOLATIONS)
    return found


def in_both_schemes(browser: BrowserSession, url: str, keys: tuple[str, ...]) -> None:
    for dark in (False, True):
        browser.resize(1400, 900, dark=dark)
        browser.open("about:blank")
        browser.open(url)
        for key in keys:
            browser.press(key)
        assert violations(browser) == [], f"{url.rpartition('/')[2]} {keys} {dark=}"


@pytest.mark.parametrize(
    ("capture", "states"),
    [
        (
            "llm_session",
            [("requests", ""), ("requests", "g"), ("requests", "?"), ("calls", ""), ("unseen", "")],
        ),
        ("training_job", [("training", ""), ("collectives", ""), ("requests", "")]),
    ],
)
def test_the_viewer_is_accessible(
    browser: BrowserSession, page: Page, capture: str, states: list[tuple[str, str]]
) -> None:
    url = page(GOLDEN / f"{capture}.capture")
    for tab, keys in states:
        in_both_schemes(browser, f"{url}#/{tab}", tuple(keys))


@pytest.mark.parametrize("name", PAGES)
def test_pages_of_profiles_are_accessible(browser: BrowserSession, tmp_path: Path, name: str) -> None:
    (tmp_path / "page.html").write_bytes(PAGES[name]())
    shown = (("o", "o", "o"),) if name == "flame chart" else ((), ("?",), ("ArrowUp", "s"))
    for keys in shown:
        in_both_schemes(browser, (tmp_path / "page.html").as_uri(), keys)
