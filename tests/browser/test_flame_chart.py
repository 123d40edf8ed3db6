"""The flame chart in Chromium: x is time, a thread below the other; what is pointed at, zoomed to and found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from otelgpu.model.spans import Attribute
from otelgpu.render.flame_graph import flame_graph
from otelgpu.render.heat_map import heat_map
from tests.browser.test_flame_graph import CHOOSE, COPY, FRAMES_LATER, MATCHED, STATUS, TIP
from tests.browser.test_flame_page import HASH
from tests.rig.browser_session import BrowserSession
from tests.unit.render.profile_columns import PARTS, START, profile

MS: Final = 1_000_000
AXIS, ROW = 18, 18
BOX = (
    "(() => { const b = document.getElementById('chart').getBoundingClientRect();"
    " return {x: b.x, y: b.y, width: b.width}; })()"
)
ORDER = "document.getElementById('order').value"
IS_SHOWN = "['chart-scroll', 'scroll'].map((id) => !document.getElementById(id).hidden)"
# Thread 7 is seen in a, twice in b, and after 50 ms without samples in b again; thread 8 in c, all by samples of 10 ms.
ROWS = (
    (("main", "a"), 7, 10),
    (("main", "py:b:1"), 7, 20),
    (("main", "py:b:1"), 7, 30),
    (("main", "py:b:1"), 7, 100),
    (("other", "c"), 8, 60),
)

Open = Callable[..., None]


def page(render: Callable[..., bytes] = flame_graph) -> bytes:
    batch = profile(
        [(stack, 10 * MS) for stack, _, _ in ROWS],
        times=[START + at * MS for _, _, at in ROWS],
        attributes=(
            Attribute.of("thread.id", [thread for _, thread, _ in ROWS]),
            Attribute.of("thread.name", ["loop" if thread == 7 else "io" for _, thread, _ in ROWS]),
        ),
    )
    return render([batch], PARTS)


@pytest.fixture
def opened(browser: BrowserSession, tmp_path: Path) -> Open:
    """Show the chart of :data:`ROWS`; its rows: loop, main, a|b, io, other, c."""

    def show(state: str = "#order=time", render: Callable[..., bytes] = flame_graph) -> None:
        (tmp_path / "page.html").write_bytes(page(render))
        browser.open("about:blank")
        browser.open((tmp_path / "page.html").as_uri() + state)
        browser.wait(STATUS)
        browser.evaluate(FRAMES_LATER)

    return show


def place(
    browser: BrowserSession, ms: float, row: int, *, span: tuple[float, float] = (0, 100)
) -> dict[str, float]:
    box = browser.evaluate(BOX)
    share = (ms - span[0]) / (span[1] - span[0])
    return {"x": box["x"] + share * box["width"], "y": box["y"] + AXIS + (row + 0.5) * ROW}


def point(browser: BrowserSession, ms: float, row: int, **how: tuple[float, float]) -> list[str]:
    """The lines about what is there."""
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", **place(browser, ms, row, **how))
    found: list[str] = browser.evaluate(TIP)
    return found


def press_mouse(browser: BrowserSession, begin: dict[str, float], end: dict[str, float]) -> None:
    for kind, at in (("mousePressed", begin), ("mouseMoved", end), ("mouseReleased", end)):
        browser.send("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **at)
    browser.evaluate(FRAMES_LATER)


def test_a_frame_lasts_as_long_as_one_sample_after_the_other_has_it(
    browser: BrowserSession, opened: Open
) -> None:
    opened()
    assert point(browser, 5, 2) == [
        "a",
        "/usr/lib/libc.so.6",
        "0 ns to 10.0 ms: 10.0 ms",
        "1 observations",
        "loop (7)",
    ]
    assert point(browser, 15, 1)[2:4] == ["0 ns to 30.0 ms: 30.0 ms", "3 observations"]  # main
    assert point(browser, 25, 2)[2:4] == ["10.0 ms to 30.0 ms: 20.0 ms", "2 observations"]
    assert point(browser, 60, 2) == []  # where nothing was seen nothing is drawn
    assert point(browser, 95, 2)[2:4] == ["90.0 ms to 100 ms: 10.0 ms", "1 observations"]


def test_threads_are_below_each_other(browser: BrowserSession, opened: Open) -> None:
    opened()
    assert point(browser, 55, 4)[0] == "other"
    assert point(browser, 55, 5)[::4] == ["c", "io (8)"]
    assert point(browser, 55, 3) == []  # its title


def test_the_order_is_offered_where_observations_have_times_and_a_thread(
    browser: BrowserSession, opened: Open, tmp_path: Path
) -> None:
    opened("")
    assert browser.evaluate(IS_SHOWN) == [False, True]
    for _ in range(3):
        browser.press("o")
    assert (browser.evaluate(ORDER), browser.evaluate(IS_SHOWN)) == ("time", [True, False])
    assert "order=time" in browser.evaluate(HASH)
    browser.press("o")
    assert (browser.evaluate(ORDER), browser.evaluate(IS_SHOWN)) == ("name", [False, True])
    (tmp_path / "untimed.html").write_bytes(flame_graph([profile({("a",): 1})], PARTS))
    browser.open("about:blank")
    browser.open((tmp_path / "untimed.html").as_uri() + "#order=time")
    browser.wait(STATUS)
    assert (browser.evaluate(ORDER), browser.evaluate(IS_SHOWN)) == ("name", [False, True])


def test_a_click_zooms_to_a_frame_and_escape_shows_everything(browser: BrowserSession, opened: Open) -> None:
    opened()
    press_mouse(browser, place(browser, 25, 2), place(browser, 25, 2))
    assert "span=10000-30000" in browser.evaluate(HASH)
    assert point(browser, 12, 2, span=(10, 30))[0] == "b (model.py:1)"
    browser.press("Escape")
    assert "span" not in browser.evaluate(HASH)
    assert point(browser, 5, 2)[0] == "a"


def test_a_part_that_is_dragged_over_is_zoomed_to(browser: BrowserSession, opened: Open) -> None:
    opened()
    press_mouse(browser, place(browser, 75, 2), place(browser, 50, 4))
    begin, end = (int(each) for each in browser.evaluate(HASH).split("span=")[1].split("-"))
    assert abs(begin - 50_000) < 500 and abs(end - 75_000) < 500
    assert point(browser, 55, 5, span=(50, 75))[0] == "c"


def test_an_address_shows_the_same_part(browser: BrowserSession, opened: Open) -> None:
    opened("#order=time&span=40000-80000")
    assert point(browser, 55, 5, span=(40, 80))[0] == "c"


def test_the_keyboard_goes_from_frame_to_frame_and_zooms(browser: BrowserSession, opened: Open) -> None:
    opened()
    browser.evaluate("document.getElementById('chart').focus()")
    seen = []
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", "ArrowUp"):
        browser.press(key)
        seen.append(browser.evaluate(STATUS).split(" · ")[0])
    assert seen == ["a", *["b (model.py:1)"] * 2, "other", "c", "other"]
    browser.press("Enter")
    assert "span=50000-60000" in browser.evaluate(HASH)
    browser.press("-")
    assert "span=47500-62500" in browser.evaluate(HASH)


def test_one_thread_alone_and_no_native_frames(browser: BrowserSession, opened: Open) -> None:
    opened()
    browser.evaluate(CHOOSE % ("thread", 2))
    browser.evaluate(FRAMES_LATER)
    assert browser.evaluate("document.getElementById('thread').selectedOptions[0].text") == "io (8)"
    opened("#order=time&hide=1")
    assert point(browser, 25, 1)[0] == "b (model.py:1)"
    assert point(browser, 5, 1) == []  # nothing of a is left


def test_what_is_searched_stands_out(browser: BrowserSession, opened: Open) -> None:
    opened("#order=time&search=other")
    at = place(browser, 55, 4)
    colour = browser.evaluate(
        f"(() => {{ {COPY} const c = document.getElementById('chart'), b = c.getBoundingClientRect();"
        f" return copied(c, {at['x']} - b.x, {at['y']} - b.y - 6); }})()"
    )
    assert colour == [0xE5, 0x8B, 0xE0]
    assert browser.evaluate(MATCHED) == "20.0 % under 1 frames"


def test_the_heat_map_makes_room_and_its_choice_goes(browser: BrowserSession, opened: Open) -> None:
    opened("", heat_map)
    hidden = "document.getElementById('heat').hidden"
    assert browser.evaluate(hidden) is False
    browser.evaluate("document.getElementById('order').focus()")
    browser.evaluate(CHOOSE % ("order", 3))
    assert browser.evaluate(hidden) is True
    browser.evaluate(CHOOSE % ("order", 0))
    assert browser.evaluate(hidden) is False
