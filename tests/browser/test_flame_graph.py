"""The flame graph's page in Chromium: where frames are, what clicks, keys and searches do, how two profiles look.

Frames are drawn, not elements: a test points at where a frame must be by its share and depth, and reads what
the page says.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otelgpu.render.flame_graph import differential, flame_graph
from otelgpu.render.flame_svg import flame_svg
from tests.rig.browser_session import BrowserSession
from tests.unit.render.profile_columns import GPU, HOSTILE, PARTS, profile
from tests.unit.render.test_flame_graph import profile_of_many

ROW = 18
STACKS = {
    ("main", "py:generate:42", "cudaLaunchKernel"): 500,
    ("main", "py:load:7", "k:vfs_read"): 250,
    ("main", "py:load:8"): 150,
    ("other",): 100,
}
TIP = "[...document.querySelectorAll('#tip:not([hidden]) p')].map((line) => line.textContent)"
STATUS = "document.getElementById('status').textContent"
MATCHED = "document.getElementById('matched').textContent"
LEGEND = "[...document.querySelectorAll('#legend li')].map((item) => item.textContent)"
TABLE = (
    "[...document.querySelectorAll('#side-table tbody tr')]"
    ".map((row) => [...row.children].map((cell) => cell.textContent))"
)
CHOOSE = (
    "((s, at) => { s.selectedIndex = at; s.dispatchEvent(new Event('change')); })"
    "(document.getElementById('%s'), %d)"
)
COPY = """const copied = (from, x, y) => {
  const to = document.createElement("canvas"), context = to.getContext("2d", { willReadFrequently: true });
  to.width = to.height = 1;
  context.drawImage(from, -Math.round(x), -Math.round(y));
  return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
};"""
FRAMES_LATER = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"

Open = Callable[[bytes], None]


@pytest.fixture
def opened(browser: BrowserSession, tmp_path: Path) -> Open:
    """Show a page."""

    def show(page: bytes) -> None:
        (tmp_path / "page.html").write_bytes(page)
        browser.open((tmp_path / "page.html").as_uri())
        browser.wait(STATUS)

    return show


def place(browser: BrowserSession, share: float, depth: int, *, icicle: bool = False) -> dict[str, float]:
    """Where in the window the row ``depth`` is, at ``share`` of the width."""
    box = browser.evaluate(
        "(() => { const b = document.getElementById('flame').getBoundingClientRect();"
        " return {x: b.x, y: b.y, width: b.width, height: b.height}; })()"
    )
    row = depth * ROW + ROW / 2
    return {"x": box["x"] + share * box["width"], "y": box["y"] + (row if icicle else box["height"] - row)}


def point(browser: BrowserSession, share: float, depth: int, **how: bool) -> list[str]:
    """Move the mouse there; what the tip says."""
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", **place(browser, share, depth, **how))
    browser.evaluate(FRAMES_LATER)
    reported: list[str] = browser.evaluate(TIP)
    return reported


def click(browser: BrowserSession, share: float, depth: int, **how: bool) -> None:
    at = place(browser, share, depth, **how)
    for kind in ("mousePressed", "mouseReleased"):
        browser.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)
    browser.evaluate(FRAMES_LATER)


def pixel(browser: BrowserSession, share: float, depth: int) -> list[int]:
    """The colour on the canvas there, at the upper edge of the row, where there is no text."""
    at = place(browser, share, depth)
    return browser.evaluate(  # type: ignore[no-any-return]
        f"(() => {{ {COPY} const c = document.getElementById('flame'), b = c.getBoundingClientRect();"
        f" return copied(c, {at['x']} - b.x, {at['y']} - b.y - 7); }})()"
    )


def test_frames_are_where_their_shares_put_them(browser: BrowserSession, opened: Open) -> None:
    opened(flame_graph([profile(STACKS)], PARTS, title="a run"))
    assert point(browser, 0.5, 0)[0] == "all"
    assert point(browser, 0.02, 1)[0] == "main"
    assert point(browser, 0.89, 1)[0] == "main"
    assert point(browser, 0.91, 1)[0] == "other"
    assert point(browser, 0.49, 2)[0] == "generate (model.py:42)"
    assert point(browser, 0.51, 2)[0] == "load (model.py:7)"
    assert point(browser, 0.74, 3) == [
        *("vfs_read", "[kernel]", "250 ns, 25.0 % of all", "self 250 ns"),
    ]
    assert point(browser, 0.76, 2)[0] == "load (model.py:8)"
    assert point(browser, 0.95, 2) == []


def test_a_click_zooms_and_reset_shows_all_again(browser: BrowserSession, opened: Open) -> None:
    opened(flame_graph([profile(STACKS)], PARTS))
    click(browser, 0.6, 2)  # load:7, a quarter
    assert point(browser, 0.01, 2)[0] == "load (model.py:7)"
    assert point(browser, 0.99, 3)[:1] == ["vfs_read"]
    assert "100.0 % of what is shown" in point(browser, 0.5, 3)
    assert point(browser, 0.5, 1)[0] == "main"  # its caller, as wide
    assert browser.evaluate(TABLE) == [
        ["vfs_read", "100.0 %", "100.0 %"],
        ["load (model.py:7)", "0 %", "100.0 %"],
    ]
    click(browser, 0.5, 0)
    assert point(browser, 0.95, 1)[0] == "other"
    click(browser, 0.6, 2)
    browser.click("#reset")
    assert point(browser, 0.95, 1)[0] == "other"


def test_icicles_hang_from_the_top(browser: BrowserSession, opened: Open) -> None:
    opened(flame_graph([profile(STACKS)], PARTS))
    browser.click("#invert")
    browser.evaluate(FRAMES_LATER)
    assert point(browser, 0.49, 2, icicle=True)[0] == "generate (model.py:42)"
    assert browser.evaluate("document.getElementById('invert').getAttribute('aria-pressed')") == "true"


def test_a_search_says_what_share_is_under_it(browser: BrowserSession, opened: Open) -> None:
    opened(flame_graph([profile(STACKS | {("main", "py:load:8", "py:load:9"): 0})], PARTS))
    browser.press("/")
    browser.write("LOAD")
    browser.wait(f"{MATCHED} === '40.0 % under 2 frames'")
    browser.evaluate(FRAMES_LATER)
    assert pixel(browser, 0.6, 2) == [0xE5, 0x8B, 0xE0]
    assert pixel(browser, 0.3, 2) != [0xE5, 0x8B, 0xE0]
    browser.press("Escape")
    browser.wait(f"{MATCHED} === ''")


def test_a_search_for_nothing_there_says_so(browser: BrowserSession, opened: Open) -> None:
    opened(flame_graph([profile(STACKS)], PARTS))
    browser.click("#search")
    browser.write("(nowhere[")
    browser.wait(f"{MATCHED} === 'no frame matches'")


def test_the_keyboard_is_enough(browser: BrowserSession, opened: Open) -> None:
    opened(flame_graph([profile(STACKS)], PARTS))
    browser.evaluate("document.getElementById('flame').focus()")
    said = []
    for key in ("ArrowUp", "ArrowUp", "ArrowRight", "ArrowUp", "ArrowDown", "Enter"):
        browser.press(key)
        said.append(browser.evaluate(STATUS).split(" · ")[0])
    assert said == [
        *(
            "main",
            "generate (model.py:42)",
            "load (model.py:7)",
            "vfs_read",
            "load (model.py:7)",
            "load (model.py:7)",
        ),
    ]
    assert point(browser, 0.99, 2)[0] == "load (model.py:7)"
    browser.press("Escape")
    browser.evaluate(FRAMES_LATER)
    assert point(browser, 0.95, 1)[0] == "other"


def test_colours_report_types_of_frames(browser: BrowserSession, opened: Open) -> None:
    device = profile({("main", "py:generate:42", "cudaLaunchKernel", "gpu:flash_fwd"): 3000}, type_=GPU)
    opened(flame_graph([profile(STACKS), device], PARTS))
    assert browser.evaluate(LEGEND) == ["Python", "native", "kernel", "GPU"]
    types = "[...document.getElementById('type').options].map((each) => each.text)"
    assert browser.evaluate(types) == [
        *("cpu + gpu (nanoseconds)", "cpu (nanoseconds)", "gpu_kernel_time (nanoseconds)"),
    ]
    # Under the launch, the kernel is as wide as it ran: 3000 of 4000.
    assert point(browser, 0.5, 4)[0] == "GPU: flash_fwd"
    assert point(browser, 0.74, 4)[0] == "GPU: flash_fwd"
    assert point(browser, 0.78, 4) == []
    colours = {
        tuple(pixel(browser, share, depth)) for share, depth in ((0.5, 4), (0.5, 3), (0.5, 2), (0.9, 3))
    }
    assert len(colours) == 4


def test_another_type_can_be_chosen(browser: BrowserSession, opened: Open) -> None:
    opened(flame_graph([profile(STACKS), profile({("launch", "gpu:k"): 7}, type_=GPU)], PARTS))
    browser.evaluate(CHOOSE % ("type", 2))
    browser.evaluate(FRAMES_LATER)
    assert point(browser, 0.5, 2)[:1] == ["GPU: k"]
    assert browser.evaluate(LEGEND) == ["native", "GPU"]


def test_the_table_has_own_and_total_shares_and_leads_to_frames(
    browser: BrowserSession, opened: Open
) -> None:
    recursive = {("main", "f", "f", "f"): 60, ("main", "g"): 40}
    opened(flame_graph([profile(recursive)], PARTS))
    assert browser.evaluate(TABLE) == [
        *(["f", "60.0 %", "60.0 %"], ["g", "40.0 %", "40.0 %"], ["main", "0 %", "100.0 %"]),
    ]
    browser.click("#side-table th:last-child button")
    assert browser.evaluate(TABLE)[0] == ["main", "0 %", "100.0 %"]
    browser.click("#side-table tbody tr:nth-child(2) button")
    browser.wait(f"{MATCHED} === '60.0 % under 1 frames'")


def test_what_is_too_narrow_is_counted(browser: BrowserSession, opened: Open) -> None:
    rows: dict[tuple[str, ...], int] = {("main", f"n{i}"): 1 for i in range(300)}
    rows["main", "wide"] = 10_000_000
    opened(flame_graph([profile_of_many(rows)], PARTS))
    assert browser.evaluate("document.getElementById('note').textContent") == "300 frames too narrow to draw"


def test_frames_that_the_page_was_not_given_are_named_as_such(browser: BrowserSession, opened: Open) -> None:
    rows: dict[tuple[str, ...], int] = {("main", f"n{i}"): 1 for i in range(100_000)}
    rows["main", "wide"] = 900_000
    opened(flame_graph([profile_of_many(rows)], PARTS))
    assert point(browser, 0.95, 2)[0] == "(100,000 narrower frames)"
    assert point(browser, 0.5, 2)[0] == "wide"


# -- two profiles ----------------------------------------------------------------------------------------


def test_a_difference_says_both_and_is_red_for_more_and_blue_for_less(
    browser: BrowserSession, opened: Open
) -> None:
    before, after = (
        profile({("same",): 50, ("less",): 50}),
        profile({("same",): 100, ("less",): 50, ("more",): 50}),
    )
    opened(differential([before], [after], PARTS, labels=("rank 0", "rank 1")))
    # Widths of the second: less 50, more 50, same 100 of 200.
    reported = point(browser, 0.1, 1)
    assert reported[0] == "less"
    assert reported[-2:] == ["rank 0 50 ns (50.0 %) → rank 1 50 ns (25.0 %)", "−50.0 % at equal totals"]
    assert point(browser, 0.3, 1)[-1] == "new at equal totals"
    assert point(browser, 0.75, 1)[-1] == "±0.0 % at equal totals"
    less, more, same = (pixel(browser, share, 1) for share in (0.1, 0.3, 0.75))
    assert less[2] > less[0]
    assert more[0] > more[2]
    assert same == [243, 243, 243]


def test_totals_can_be_taken_as_they_are_and_the_other_side_drawn(
    browser: BrowserSession, opened: Open
) -> None:
    opened(differential([profile({("same",): 50, ("gone",): 50})], [profile({("same",): 100})], PARTS))
    assert point(browser, 0.9, 1)[-1] == "+100.0 % at equal totals"  # from half of all to all
    browser.click("#equal")
    browser.evaluate(FRAMES_LATER)
    assert point(browser, 0.9, 1)[-1] == "+100.0 %"
    browser.evaluate(CHOOSE % ("side", 0))
    browser.evaluate(FRAMES_LATER)
    assert point(browser, 0.2, 1)[0] == "gone"
    assert point(browser, 0.2, 1)[-1].startswith("−100.0 %")


def test_a_side_without_values_can_be_compared(browser: BrowserSession, opened: Open) -> None:
    opened(differential([], [profile({("a",): 5})], PARTS))
    assert point(browser, 0.5, 1)[-1].startswith("new")
    opened(differential([profile({("a",): 5})], [], PARTS))
    assert browser.evaluate("document.getElementById('side').options.length") == 3


# -- whatever comes --------------------------------------------------------------------------------------


def test_hostile_names_do_nothing(browser: BrowserSession, opened: Open) -> None:
    opened(flame_graph([profile([((name, "leaf"), 100) for name in HOSTILE])], PARTS, title=HOSTILE[0]))
    count = len(HOSTILE)
    shown = {point(browser, (at + 0.5) / count, 1)[0] for at in range(count)}
    assert shown == {name.encode("utf-8", "replace").decode() for name in HOSTILE}
    browser.click("#search")
    browser.write("<script>")
    browser.wait(MATCHED)
    assert browser.evaluate("document.querySelectorAll('script').length") == 3
    assert browser.evaluate("document.querySelectorAll('img').length") == 0


def test_nothing_observed_says_so(browser: BrowserSession, opened: Open) -> None:
    opened(flame_graph([], PARTS))
    assert browser.evaluate(STATUS).startswith("Nothing was observed: ")


def test_a_very_deep_stack_is_scrolled_to(browser: BrowserSession, opened: Open) -> None:
    opened(flame_graph([profile({tuple(f"f{i}" for i in range(2000)): 1})], PARTS))
    assert point(browser, 0.5, 0)[0] == "all"
    browser.evaluate("document.getElementById('scroll').scrollTop = 0")
    browser.evaluate(FRAMES_LATER)
    browser.click("#invert")
    browser.evaluate(FRAMES_LATER)
    browser.evaluate("document.getElementById('scroll').scrollTop = 1e9")
    browser.evaluate(FRAMES_LATER)
    box = browser.evaluate("document.getElementById('flame').getBoundingClientRect().bottom")
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=300, y=box - ROW / 2 - 1)
    browser.evaluate(FRAMES_LATER)
    assert browser.evaluate(TIP)[0] == "f1999"


def test_a_million_samples_are_drawn_at_once(browser: BrowserSession, opened: Open) -> None:
    from tests.bench.bench_flame_graph import profile_of_samples

    opened(flame_graph([profile_of_samples(1_000_000, 20_000)], PARTS))
    spent = browser.evaluate(
        "new Promise((done) => { const began = performance.now(); document.getElementById('invert').click();"
        " requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began))); })"
    )
    assert spent < 5_000, json.dumps(spent)  # it takes some tens of milliseconds; the machine may be shared


def test_controls_have_names(browser: BrowserSession, opened: Open) -> None:
    opened(differential([profile(STACKS)], [profile(STACKS)], PARTS))
    nameless: list[Any] = browser.evaluate(
        "[...document.querySelectorAll('button, input, select, canvas')].filter((each) =>"
        " !(each.getAttribute('aria-label') || each.textContent.trim() || each.closest('label')))"
        ".map((each) => each.outerHTML)"
    )
    assert nameless == []


# -- the picture -----------------------------------------------------------------------------------------

SHOWN = """[...document.querySelectorAll("g.f")].filter((g) => g.style.display !== "none")"""
BOXES = f"""Object.fromEntries({SHOWN}.map((g) => {{
  const r = g.querySelector("rect");
  return [g.dataset.name, [Math.round(r.getAttribute("x")), Math.round(r.getAttribute("width"))]];
}}))"""
SAID = "document.getElementById('said').textContent"


def test_the_svg_zooms_searches_and_resets(browser: BrowserSession, tmp_path: Path) -> None:
    (tmp_path / "page.svg").write_bytes(flame_svg([profile(STACKS)], title=HOSTILE[0]))
    browser.open((tmp_path / "page.svg").as_uri())
    assert browser.evaluate(BOXES)["load (model.py:7)"] == [600, 300]
    browser.click("g.f[data-name='load (model.py:7)'] rect")
    assert browser.evaluate(BOXES) == {
        name: [0, 1200] for name in ("all", "main", "load (model.py:7)", "vfs_read")
    }
    assert "250 ns (25.00 %)" in browser.evaluate(SAID)
    browser.press("Escape")
    assert browser.evaluate(BOXES)["other"] == [1080, 120]
    browser.evaluate("window.prompt = () => 'load'")
    browser.click("#search")
    assert browser.evaluate(SAID) == '40.0 % under frames with "load"'
    assert browser.evaluate("document.querySelectorAll('g.m').length") == 2
    assert browser.evaluate("document.querySelectorAll('script').length") == 1
