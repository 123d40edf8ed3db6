"""The heat map's page in Chromium: a rectangle of cells selects the flame graph of that time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from otelgpu.render.heat_map import heat_map
from tests.browser.test_flame_graph import COPY, FRAMES_LATER, STATUS, TABLE, point
from tests.rig.browser_session import BrowserSession
from tests.unit.render.profile_columns import HOSTILE, PARTS, SECOND, START, profile

MS = 1_000_000
HEAT = "document.getElementById('heat-status').textContent"
SIZES = (
    "(() => { const c = document.getElementById('heat-map'), b = c.getBoundingClientRect();"
    " return {x: b.x, y: b.y, width: b.width, height: b.height}; })()"
)
# a in the first two seconds, b at 500 ms of each of ten seconds, c in the last
ROWS = (
    *[(("main", "a"), 10, second * SECOND + at * MS) for second in (0, 1) for at in range(0, 400, 20)],
    *[(("main", "b"), 10, second * SECOND + 500 * MS) for second in range(10)],
    (("main", "c"), 10, 9 * SECOND + 999 * MS),
)

Open = Callable[[], None]


@pytest.fixture
def opened(browser: BrowserSession, tmp_path: Path) -> Open:
    """Show the page of :data:`ROWS`."""

    def show() -> None:
        batch = profile([(stack, value) for stack, value, _ in ROWS], times=[START + at for _, _, at in ROWS])
        (tmp_path / "page.html").write_bytes(heat_map([batch], PARTS))
        browser.open((tmp_path / "page.html").as_uri())
        browser.wait(STATUS)

    return show


def drag(
    browser: BrowserSession, one: tuple[int, int], other: tuple[int, int], *, moved: bool = True
) -> None:
    """From one cell (second, row from below) to another. Without ``moved`` the page is told of no movement."""
    box = browser.evaluate(SIZES)

    def at(cell: tuple[int, int]) -> dict[str, float]:
        column, row = cell
        return {
            "x": box["x"] + (column + 0.5) * box["width"] / 10,
            "y": box["y"] + box["height"] - (row + 0.5) * box["height"] / 50,
        }

    browser.send(
        "Input.dispatchMouseEvent", type="mousePressed", button="left", buttons=1, clickCount=1, **at(one)
    )
    if moved:
        browser.send("Input.dispatchMouseEvent", type="mouseMoved", button="left", buttons=1, **at(other))
    browser.send("Input.dispatchMouseEvent", type="mouseReleased", button="left", clickCount=1, **at(other))
    browser.evaluate(FRAMES_LATER)


def shares(browser: BrowserSession) -> dict[str, str]:
    """What frames have themselves."""
    return {frame: own for frame, own, _ in browser.evaluate(TABLE) if own != "0 %"}


def test_everything_is_shown_at_first(browser: BrowserSession, opened: Open) -> None:
    opened()
    assert browser.evaluate(HEAT).startswith("51 observations in 10 s")
    assert shares(browser) == {"a": "78.4 %", "b": "19.6 %", "c": "1.96 %"}


def test_a_rectangle_selects_its_time(browser: BrowserSession, opened: Open) -> None:
    opened()
    drag(browser, (0, 0), (1, 9))  # 0 to 200 ms of the first two seconds
    assert shares(browser) == {"a": "100.0 %"}
    assert browser.evaluate(HEAT) == "seconds 0 to 2, 0 to 200 ms of each: 20 observations"
    assert point(browser, 0.99, 2)[0] == "a"
    drag(browser, (9, 49), (2, 25))  # from any corner
    assert shares(browser) == {"b": "88.9 %", "c": "11.1 %"}


def test_a_rectangle_ends_where_it_is_let_go(browser: BrowserSession, opened: Open) -> None:
    opened()
    drag(browser, (0, 0), (1, 9), moved=False)
    assert browser.evaluate(HEAT) == "seconds 0 to 2, 0 to 200 ms of each: 20 observations"


def test_one_cell_can_be_selected(browser: BrowserSession, opened: Open) -> None:
    opened()
    drag(browser, (9, 49), (9, 49))
    assert shares(browser) == {"c": "100.0 %"}
    assert browser.evaluate(HEAT).endswith(": 1 observations")


def test_cells_without_observations_show_nothing(browser: BrowserSession, opened: Open) -> None:
    opened()
    drag(browser, (5, 0), (5, 10))
    assert shares(browser) == {}
    assert browser.evaluate(HEAT).endswith(": 0 observations")


def test_reset_shows_everything_again(browser: BrowserSession, opened: Open) -> None:
    opened()
    drag(browser, (9, 49), (9, 49))
    browser.click("#reset")
    assert shares(browser)["a"] == "78.4 %"


def test_the_keyboard_selects_too(browser: BrowserSession, opened: Open) -> None:
    opened()
    browser.evaluate("document.getElementById('heat-map').focus()")
    browser.press("ArrowRight")  # the first cell
    for _ in range(24):
        browser.press("ArrowUp")
    assert browser.evaluate(HEAT) == "seconds 0 to 1, 480 to 500 ms of each: 0 observations"
    for _ in range(2):
        browser.send("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", modifiers=8)
    browser.send("Input.dispatchKeyEvent", type="keyDown", key="ArrowUp", modifiers=8)
    assert browser.evaluate(HEAT) == "seconds 0 to 3, 480 to 520 ms of each: 3 observations"
    assert shares(browser) == {"b": "100.0 %"}
    browser.press("Escape")
    assert shares(browser)["a"] == "78.4 %"


def test_more_observations_are_darker(browser: BrowserSession, opened: Open, tmp_path: Path) -> None:
    rows = [(("a",), 1, 0)] * 9 + [(("a",), 1, SECOND)] * 3
    batch = profile([(stack, value) for stack, value, _ in rows], times=[START + at for _, _, at in rows])
    (tmp_path / "two.html").write_bytes(heat_map([batch], PARTS))
    browser.open((tmp_path / "two.html").as_uri())
    browser.wait(STATUS)
    colours = browser.evaluate(
        f"(() => {{ {COPY} const c = document.getElementById('heat-map'), h = c.height;"
        " return [[2, h - 3], [c.width / 2 + 3, h - 3], [2, 3]].map(([x, y]) => copied(c, x, y)); })()"
    )
    most, some, none = (sum(colour) for colour in colours)
    assert most < some < none


def test_hostile_names_do_nothing(browser: BrowserSession, opened: Open, tmp_path: Path) -> None:
    batch = profile([((name,), 1) for name in HOSTILE], times=[START] * len(HOSTILE))
    (tmp_path / "hostile.html").write_bytes(heat_map([batch], PARTS, title=HOSTILE[1]))
    browser.open((tmp_path / "hostile.html").as_uri())
    browser.wait(STATUS)
    assert len(shares(browser)) == len(HOSTILE)
    assert browser.evaluate("document.querySelectorAll('script').length") == 3
