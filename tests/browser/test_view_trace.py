"""The viewer's lower half in Chromium: the keyboard from the begin, finding, sums by name, axis, legend, ranks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import GOLDEN, Page
from tests.browser.test_view import ATTRIBUTES, CELLS, HEADING, LABELS, ROWS_OF, SERVER, choose, column
from tests.rig.browser_session import BrowserSession
from tests.unit.view.otlp_lines import MS, span, traces

FOUND = "document.getElementById('found').textContent"
TICKS = "[...document.querySelectorAll('.axis span')].map((tick) => tick.textContent)"
EMPTY = "document.querySelector('#table .empty').textContent"
DRAWN = "[...new Set([...document.querySelectorAll('.track .bar')].map((bar) => bar.className.replace(' chosen', '')))]"
EXPLAINED = "[...document.querySelectorAll('.legend i')].map((sample) => sample.className)"
LEGEND_HEIGHTS = (
    "(({ scrollHeight, clientHeight }) => [scrollHeight, clientHeight])(document.querySelector('.legend'))"
)
SUMS = (
    "[...document.querySelectorAll('#groups .row')].map((row) => Object.fromEntries([...row.children].map("
    "(cell, at) => [document.querySelectorAll('#groups .head button')[at].textContent, cell.textContent])))"
)


def request() -> list[bytes]:
    """A request with five launches of 1 to 5 ms, and another without any."""
    launches = [
        span(10 + n, "cudaLaunchKernel k", parent=1, at=10 * n * MS, ns=n * MS, given={"cuda.stream": n})
        for n in range(1, 6)
    ]
    requests = [
        span(1, "chat one", ns=100 * MS, kind=SERVER),
        span(2, "chat two", trace=2, at=MS, kind=SERVER),
    ]
    return [traces(*requests), traces(*launches, scope="otelgpu.cuda")]


def test_keys_work_without_a_click_and_the_first_line_is_chosen(browser: BrowserSession, page: Page) -> None:
    browser.open(page(*request()))
    browser.wait(f"{HEADING} === 'chat one'")
    assert browser.evaluate("document.querySelector('.row.selected').getAttribute('aria-rowindex')") == "2"
    assert browser.evaluate("document.getElementById('back').disabled")  # it was nobody's step
    browser.press("j")
    browser.wait(f"{HEADING} === 'chat two'")
    browser.evaluate("document.activeElement.blur()")
    browser.press("k")
    browser.wait(f"{HEADING} === 'chat one'")


def test_spans_are_found_in_the_trace_one_after_the_other(browser: BrowserSession, page: Page) -> None:
    browser.open(page(*request()))
    browser.press("Enter")  # into the trace
    browser.press("/")
    browser.write("launch duration>3ms")
    assert browser.evaluate(FOUND) == "2"
    browser.press("Enter")
    seen = []
    for key in ("n", "n", "N", "N"):
        seen.append((browser.evaluate(FOUND), dict(browser.evaluate(ATTRIBUTES))["cuda.stream"]))
        browser.press(key)
    assert seen == [("1 of 2", "4"), ("2 of 2", "5"), ("1 of 2", "4"), ("2 of 2", "5")]
    marked = "[...document.querySelectorAll('.line.found .label')].map((label) => label.textContent)"
    assert browser.evaluate(marked) == ["cudaLaunchKernel k"] * 2
    browser.press("/")
    browser.write("nowhere")
    assert browser.evaluate(FOUND) == "none"
    browser.press("Escape")
    assert browser.evaluate(FOUND) == ""


def test_a_span_that_is_found_is_shown_though_it_was_closed(browser: BrowserSession, page: Page) -> None:
    browser.open(page(*request()))
    browser.press("Enter")
    browser.press("ArrowLeft")
    assert len(browser.evaluate(LABELS)) == 1
    browser.press("/")
    browser.write("cuda.stream=3")
    browser.press("Enter")
    browser.wait(f"{HEADING} === 'cudaLaunchKernel k'")
    assert len(browser.evaluate(LABELS)) == 6


def test_what_is_under_a_span_is_summed_by_name(browser: BrowserSession, page: Page) -> None:
    browser.open(page(*request()))
    browser.press("g")
    sums = {each["Name"]: each for each in browser.evaluate(SUMS)}
    launches = sums["cudaLaunchKernel k"]
    assert [
        launches[key] for key in ("Count", "Sum ▾", "Sum", "p50", "p95", "Longest") if key in launches
    ] == [
        *("5", "15.0 ms", "3.00 ms", "4.80 ms", "5.00 ms"),
    ]
    browser.click("#zoom-in")  # 25 to 75 ms: those that begin at 30, 40 and 50
    sums = {each["Name"]: each["Count"] for each in browser.evaluate(SUMS)}
    assert sums == {"cudaLaunchKernel k": "3"}
    browser.click("#groups .row")
    assert browser.evaluate(FOUND) == "1 of 5"
    browser.press("g")
    assert browser.evaluate("document.activeElement.getAttribute('role')") == "tree"


def test_percentiles_are_not_reported_of_calls_that_are_folded(browser: BrowserSession, page: Page) -> None:
    folded = {"otelgpu.count": 4, "otelgpu.host.duration": 0.002, "otelgpu.host.duration.max": 0.001}
    browser.open(
        page(
            traces(span(1, "chat", ns=9 * MS, kind=SERVER)),
            traces(span(2, "cudaMemset", parent=1, given=folded), scope="otelgpu.cuda"),
        )
    )
    browser.press("g")
    [of_call] = [each for each in browser.evaluate(SUMS) if each["Name"] == "cudaMemset"]
    assert [of_call[key] for key in ("Count", "Mean", "p50", "Longest")] == ["4", "0.500 ms", "–", "1.00 ms"]


@pytest.mark.parametrize("capture", ["llm_session", "training_job"])
def test_all_colours_that_are_drawn_are_in_the_legend(
    browser: BrowserSession, page: Page, capture: str
) -> None:
    browser.open(page(GOLDEN / f"{capture}.capture"))
    for tab in "123":
        browser.press(tab)
        drawn: list[str] = browser.evaluate(DRAWN)
        explained = set(browser.evaluate(EXPLAINED))
        assert {names.removesuffix(" bad") for names in drawn} <= explained
        assert ("bar bad" in explained) is any(names.endswith(" bad") for names in drawn)
        needed, given = browser.evaluate(LEGEND_HEIGHTS)
        assert needed <= given


def test_ticks_can_be_told_apart_at_any_zoom(browser: BrowserSession, page: Page) -> None:
    browser.open(
        page(
            traces(
                span(1, "chat", ns=5_000 * MS, kind=SERVER),
                span(2, "in", parent=1, at=1_234_567_000, ns=4_000),
            )
        )
    )
    assert browser.evaluate(TICKS) == ["0", "1 s", "2 s", "3 s", "4 s"]
    browser.press("Enter")
    browser.press("ArrowDown")
    browser.press("z")  # a millionth of the trace, the least there is
    edge, *ticks = browser.evaluate(TICKS)
    assert edge == "1.23456700 s"
    assert ticks == ["+1 µs", "+2 µs", "+3 µs", "+4 µs"]


def test_one_column_has_one_unit(browser: BrowserSession, page: Page) -> None:
    given = [
        span(n, f"chat {n}", trace=n, at=n * MS, ns=ns, kind=SERVER)
        for n, ns in ((1, 950_000), (2, 12_000_000), (3, 7_000))
    ]
    browser.open(page(traces(*given)))
    assert column(browser, "Duration") == ["0.950 ms", "12.0 ms", "0.00700 ms"]


def test_empty_lists_say_what_to_do(browser: BrowserSession, page: Page) -> None:
    browser.open(page(*request()))
    browser.press("/")
    browser.write("nowhere")
    assert browser.evaluate(EMPTY) == "No line matches the filter. Clear it"
    browser.click("#table .empty button")
    assert len(browser.evaluate(CELLS)) == 2
    browser.open("about:blank")
    browser.open(page(b'{"resourceSpans": []}\n'))
    assert "sudo otelgpu run" in browser.evaluate(EMPTY)
    browser.open("about:blank")
    browser.open(page(GOLDEN / "training_job.capture") + "#/requests")
    assert "observe the server's process" in browser.evaluate(EMPTY)


# -- ranks -------------------------------------------------------------------------------------------------


def test_training_steps_are_of_ranks_and_stand_beside_those_of_the_other_ranks(
    browser: BrowserSession, page: Page
) -> None:
    browser.open(page(GOLDEN / "training_job.capture") + "#/training")
    assert column(browser, "Rank") == ["0", "1", "2"] * 2
    assert column(browser, "Step") == ["6"] * 3 + ["7"] * 3
    labels: list[str] = browser.evaluate(LABELS)
    assert [label.strip("▾ ") for label in labels[:3]] == [
        "rank 0  training step",
        "rank 1, the same step",
        "rank 2, the same step",
    ]
    rows: list[list[Any]] = browser.evaluate(ROWS_OF.format(".by-rank tbody tr"))
    assert [row[:3] for row in rows] == [[rank, "+0", "544 ms"] for rank in "012"]
    choose(browser, ".by-rank tr:nth-child(3) .link", "training step")
    assert browser.evaluate("document.querySelector('.line.selected .label').textContent").endswith(
        "rank 2  training step"
    )
