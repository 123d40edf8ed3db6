"""What the flame graph's page shows besides: other shapes of a tree, some of its threads, its address, axes, help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from otelgpu.model.resource import resource
from otelgpu.model.spans import Attribute
from otelgpu.render.flame_graph import differential, flame_graph
from otelgpu.render.flame_svg import flame_svg
from otelgpu.render.heat_map import heat_map
from tests.browser.test_flame_graph import FRAMES_LATER, MATCHED, STACKS, STATUS, TABLE, point
from tests.rig.browser_session import BrowserSession
from tests.unit.render.profile_columns import HOSTILE, PARTS, SECOND, START, profile

Open = Callable[..., str]
HASH = "decodeURIComponent(location.hash)"
CHOSEN = (
    "((s, text) => {{ s.value = [...s.options].find((each) => each.text === text).value;"
    " s.dispatchEvent(new Event('change')); }})(document.getElementById('{}'), '{}')"
)
NAMES = "[...document.getElementById('{}').options].map((each) => each.text)"


@pytest.fixture
def opened(browser: BrowserSession, tmp_path: Path) -> Open:
    """Show a page, with an address; its file."""

    def show(page: bytes, state: str = "") -> str:
        (tmp_path / "page.html").write_bytes(page)
        browser.open("about:blank")
        browser.open((tmp_path / "page.html").as_uri() + state)
        browser.wait(STATUS)
        browser.evaluate(FRAMES_LATER)
        return (tmp_path / "page.html").as_uri()

    return show


def two_processes() -> bytes:
    """Two processes of which the first has two threads: 60 and 30 ns; the other has 10 ns."""
    first = profile(
        [(("main", "py:train:1"), 60), (("main", "read"), 30)],
        attributes=(Attribute.of("thread.id", [7, 8]), Attribute.of("thread.name", ["main", "loader"])),
        owner=resource({"process.pid": 1, "process.executable.name": "python3"}),
    )
    other = profile([(("main", "py:serve:1"), 10)], owner=resource({"process.pid": 2, "service.name": "web"}))
    return flame_graph([first, other], PARTS)


def frames(browser: BrowserSession, shares: tuple[float, ...], depth: int, **how: bool) -> list[str]:
    return [point(browser, share, depth, **how)[0] for share in shares]


def test_native_frames_can_be_hidden_and_what_they_have_is_their_callers(
    browser: BrowserSession, opened: Open
) -> None:
    opened(flame_graph([profile(STACKS)], PARTS))
    browser.press("n")
    browser.evaluate(FRAMES_LATER)
    assert frames(browser, (0.2, 0.6, 0.8), 1) == [
        *("generate (model.py:42)", "load (model.py:7)", "load (model.py:8)"),
    ]
    assert point(browser, 0.6, 2) == []  # vfs_read
    assert browser.evaluate(TABLE)[0] == ["generate (model.py:42)", "50.0 %", "50.0 %"]
    assert "10.0 % of all" not in browser.evaluate(STATUS)
    assert (
        point(browser, 0.95, 0)[1] == "1.00 µs, 100.0 % of all"
    )  # nothing is lost: `other` is the root's own


def test_a_sandwich_has_the_callers_above_and_the_callees_below(
    browser: BrowserSession, opened: Open
) -> None:
    stacks = {("a", "f", "x"): 60, ("b", "f", "y"): 30, ("b", "f", "f", "z"): 6, ("c",): 4}
    opened(flame_graph([profile(stacks)], PARTS))
    browser.evaluate(
        "[...document.querySelectorAll('#side-table button')].find((b) => b.textContent === 'f').click()"
    )
    browser.press("s")
    browser.evaluate(FRAMES_LATER)
    assert point(browser, 0.5, 1, icicle=True)[:2] == ["f", "/usr/lib/libc.so.6"]
    assert frames(browser, (0.03, 0.5, 0.9), 2, icicle=True) == ["f", "x", "y"]  # f in f counts once
    assert "96 ns" in point(browser, 0.5, 1, icicle=True)[2]
    box = browser.evaluate(
        "(() => { const b = document.getElementById('callers').getBoundingClientRect();"
        " return [b.left, b.bottom, b.width]; })()"
    )

    def above(share: float) -> str:
        at = {"x": box[0] + share * box[2], "y": box[1] - 2.5 * 18}
        browser.send("Input.dispatchMouseEvent", type="mouseMoved", **at)
        browser.evaluate(FRAMES_LATER)
        return str(browser.evaluate("document.querySelector('#tip p').textContent"))

    assert [above(0.3), above(0.9)] == ["a", "b"]
    browser.press("s")
    browser.evaluate(FRAMES_LATER)
    assert frames(browser, (0.3, 0.8, 0.98), 1) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("order", "found"),
    [("by name", ["a", "b", "c"]), ("widest first", ["b", "c", "a"]), ("first seen first", ["c", "a", "b"])],
)
def test_siblings_stand_in_the_order_that_is_chosen(
    browser: BrowserSession, opened: Open, order: str, found: list[str]
) -> None:
    rows = [(("c", "d"), 30), (("a",), 20), (("b",), 50)]
    opened(flame_graph([profile(rows, times=[START + at * SECOND for at in (1, 2, 3)])], PARTS))
    browser.evaluate(CHOSEN.format("order", order))
    browser.evaluate(FRAMES_LATER)
    widths = {"a": 0.2, "b": 0.5, "c": 0.3}
    at, seen = 0.0, []
    for name in found:
        seen.append(point(browser, at + widths[name] / 2, 1)[0])
        at += widths[name]
    assert seen == found


def test_profiles_without_times_have_no_order_of_time(browser: BrowserSession, opened: Open) -> None:
    opened(flame_graph([profile(STACKS)], PARTS))
    assert browser.evaluate(NAMES.format("order")) == ["by name", "widest first"]
    assert browser.evaluate("document.getElementById('thread').hidden")


def test_one_process_or_thread_can_be_shown_alone(browser: BrowserSession, opened: Open) -> None:
    opened(two_processes())
    assert browser.evaluate(NAMES.format("process")) == ["all processes", "python3 (1)", "web (2)"]
    browser.evaluate(CHOSEN.format("process", "python3 (1)"))
    assert browser.evaluate(NAMES.format("thread")) == ["all threads", "main (7)", "loader (8)"]
    assert "90 ns" in browser.evaluate(STATUS)
    browser.evaluate(CHOSEN.format("thread", "loader (8)"))
    browser.evaluate(FRAMES_LATER)
    assert "30 ns, 100.0 % of all" in browser.evaluate(STATUS)
    assert point(browser, 0.5, 3)[0] == "read"
    browser.press("Escape")
    assert "100 ns" in browser.evaluate(STATUS)


def test_what_is_shown_is_in_the_address(browser: BrowserSession, opened: Open) -> None:
    opened(two_processes())
    browser.evaluate(CHOSEN.format("thread", "main (7), python3 (1)"))
    browser.press("n")
    browser.press("o")
    browser.press("/")
    browser.write("train")
    state = browser.evaluate("location.hash")
    shown = (
        browser.evaluate(STATUS),
        browser.evaluate(TABLE),
        browser.evaluate(MATCHED),
    )
    opened(two_processes(), state)
    assert browser.evaluate("document.getElementById('search').value") == "train"
    again = (
        browser.evaluate(STATUS),
        browser.evaluate(TABLE),
        browser.evaluate(MATCHED),
    )
    assert again == shown
    assert "100.0 % under 1 frames" in shown[2]
    browser.press("Escape")
    assert "search" not in browser.evaluate(HASH)


@pytest.mark.parametrize(
    "state",
    ["#node=99999&type=77&thread=9&process=x&frame=9999&order=z", "#frame=<img src=x>&node=-1", "#%&=&&"],
)
def test_an_address_that_names_nothing_shows_everything(
    browser: BrowserSession, opened: Open, state: str
) -> None:
    opened(flame_graph([profile(STACKS)], PARTS), state)
    assert "1.00 µs, 100.0 % of all" in browser.evaluate(STATUS)


def test_hostile_names_of_threads_do_nothing(browser: BrowserSession, opened: Open) -> None:
    given = (
        Attribute.of("thread.id", list(range(1, len(HOSTILE) + 1))),
        Attribute.of("thread.name", list(HOSTILE)),
    )
    opened(flame_graph([profile([((name,), 1) for name in HOSTILE], attributes=given)], PARTS))
    assert len(browser.evaluate(NAMES.format("thread"))) == len(HOSTILE) + 1
    assert browser.evaluate("document.querySelectorAll('script').length") == 3


def test_keys_are_explained(browser: BrowserSession, opened: Open) -> None:
    opened(flame_graph([profile(STACKS)], PARTS))
    assert browser.evaluate("document.activeElement.id") == "flame"  # keys work at once
    browser.press("?")
    browser.wait("document.getElementById('help').open")
    assert "callers and callees" in browser.evaluate("document.getElementById('help').textContent")


def test_a_comparison_has_its_other_shapes_too(browser: BrowserSession, opened: Open) -> None:
    before, after = profile({("a", "py:g:1"): 50}), profile({("a", "py:g:1"): 50, ("b",): 50})
    opened(differential([before], [after], PARTS))
    browser.press("n")
    browser.evaluate(FRAMES_LATER)
    assert point(browser, 0.2, 1)[0] == "g (model.py)"
    assert point(browser, 0.2, 1)[-1] == "−50.0 % at equal totals"


# -- heat map and picture ----------------------------------------------------------------------------------


def test_the_heat_map_has_axes_and_says_what_its_colours_are(browser: BrowserSession, opened: Open) -> None:
    rows = [(("a",), 10), (("a",), 10), (("b",), 10)]
    opened(heat_map([profile(rows, times=[START, START, START + 29 * SECOND])], PARTS))
    ticks = "[...document.querySelectorAll('#heat-{} span')].map((each) => each.textContent)"
    assert browser.evaluate(ticks.format("y")) == ["0 ms", "200 ms", "400 ms", "600 ms", "800 ms"]
    assert browser.evaluate(ticks.format("x"))[:3] == ["0 s", "2 s", "4 s"]
    places = (
        "(() => { const x = (id) => document.querySelector(id).getBoundingClientRect();"
        " return [x('#heat-x span:nth-child(3)').left - x('#heat-map').left, x('#heat-map').width,"
        " x('#heat-map').bottom - (x('#heat-y span:nth-child(2)').top + x('#heat-y span:nth-child(2)').bottom) / 2,"
        " x('#heat-map').height]; })()"
    )
    left, width, up, height = browser.evaluate(places)
    assert left == pytest.approx(4 / 30 * width, abs=1)
    assert up == pytest.approx(0.2 * height, abs=1)
    assert (
        browser.evaluate("document.getElementById('heat-legend').textContent") == "02 observations in 20 ms"
    )


@pytest.mark.parametrize("width", [600, 1600])
def test_the_svg_is_as_wide_as_the_window(browser: BrowserSession, tmp_path: Path, width: int) -> None:
    (tmp_path / "page.svg").write_bytes(flame_svg([profile(STACKS)]))
    browser.resize(width, 500)
    browser.open((tmp_path / "page.svg").as_uri())
    box = (
        "(() => { const b = document.querySelector('g.f rect').getBoundingClientRect(); return b.width; })()"
    )
    assert browser.evaluate(box) == pytest.approx(width, abs=20)  # less a bar to scroll by


@pytest.mark.parametrize("key", "oni?")
def test_keys_do_no_harm_where_nothing_was_observed(browser: BrowserSession, opened: Open, key: str) -> None:
    opened(flame_graph([], PARTS))
    browser.press(key)
    browser.evaluate(FRAMES_LATER)
    assert browser.evaluate(STATUS).startswith("Nothing was observed")
