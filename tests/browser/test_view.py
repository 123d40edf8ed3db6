"""The viewer's page in Chromium: what is listed, where bars are, where links lead, what hostile data do, live data."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import GOLDEN, OTELGPU, Page, run
from tests.rig.browser_session import BrowserSession
from tests.rig.spans import read_spans
from tests.unit.view.otlp_lines import MS, span, traces

SERVER = 2

ROWS_OF = (
    "[...document.querySelectorAll('{}')].map((row) => [...row.children].map((cell) => cell.textContent))"
)
ATTRIBUTES = ROWS_OF.format("#details tr")
CELLS = ROWS_OF.format(".rows .row")
TITLES = "[...document.querySelectorAll('.head button')].map((button) => button.textContent)"
LABELS = "[...document.querySelectorAll('.line .label')].map((label) => label.textContent)"
BARS = """Object.fromEntries([...document.querySelectorAll('.track .bar')].map((bar) => {
  const [box, track] = [bar.getBoundingClientRect(), bar.closest('.track').getBoundingClientRect()];
  return [bar.dataset.span, [box.left - track.left - 1, box.width, track.width - 1]];
}))"""
MARK = """(() => {
  const boxes = [".line .mark.last", ".track"].map((each) => document.querySelector(each).getBoundingClientRect());
  const [mark, track] = boxes;
  return [mark.left - track.left - 1, track.width - 1];
})()"""
UNNAMED = """[...document.querySelectorAll("button:not([aria-hidden]), input, canvas, [role]")]
  .filter((each) => !["rowgroup", "none", "row", "gridcell", "status"].includes(each.getAttribute("role")))
  .filter((each) => !(each.getAttribute("aria-label") || each.textContent.trim() || each.title))
  .map((each) => each.outerHTML)"""
HEADING = "document.querySelector('#details h3')?.textContent"
FACTS = "document.querySelector('.facts').textContent"


@pytest.fixture
def golden(tmp_path: Path) -> Callable[[str], list[dict[str, Any]]]:
    """The spans of a stored capture, as `otelgpu replay` reports them: not as the viewer reads them."""

    def spans(name: str) -> list[dict[str, Any]]:
        lines = tmp_path / f"{name}.jsonl"
        run("replay", "--quiet", GOLDEN / f"{name}.capture", "-o", lines)
        return list(read_spans(lines))

    return spans


def column(browser: BrowserSession, title: str) -> list[str]:
    index = [each.rstrip(" ▴▾") for each in browser.evaluate(TITLES)].index(title)
    return [cells[index] for cells in browser.evaluate(CELLS)]


def choose(browser: BrowserSession, selector: str, name: str) -> None:
    """Click something that leads to a span, and wait for it."""
    browser.click(selector)
    browser.wait(f"{HEADING} === {json.dumps(name)}")


def milliseconds(shown: str) -> float:
    number, unit = shown.split(" ")
    return float(number) * {"µs": 1e-3, "ms": 1.0, "s": 1e3}[unit]


def check_bars(browser: BrowserSession, spans: list[dict[str, Any]]) -> int:
    """Each bar that is drawn is where its span's times put it, within a pixel; how many there are."""
    times = {each["spanId"]: (int(each["startTimeUnixNano"]), int(each["endTimeUnixNano"])) for each in spans}
    begin, end = min(start for start, _ in times.values()), max(last for _, last in times.values())
    bars = browser.evaluate(BARS)
    for identity, (left, width, track) in bars.items():
        start, last = times[identity]
        assert left == pytest.approx((start - begin) / (end - begin) * track, abs=1), identity
        assert width == pytest.approx(max((last - start) / (end - begin) * track, 2), abs=1), identity
    return len(bars)


def test_requests_are_listed_with_the_spans_values(
    browser: BrowserSession, page: Page, golden: Callable[[str], list[dict[str, Any]]]
) -> None:
    requests = sorted(
        (each for each in golden("llm_session") if each["kind"] == SERVER),
        key=lambda each: int(each["startTimeUnixNano"]),
    )
    browser.open(page(GOLDEN / "llm_session.capture"))
    assert column(browser, "Request") == [each["name"] for each in requests]
    key = "gen_ai.latency.time_to_first_token"
    for shown, each in zip(column(browser, "TTFT"), requests, strict=True):
        if key in each["attributes"]:
            assert milliseconds(shown) == pytest.approx(each["attributes"][key] * 1e3, rel=0.01)
        else:
            assert shown == "–"
    failed = sum(each["status"].get("code") == 2 for each in requests)
    assert (
        browser.evaluate("document.getElementById('count').textContent")
        == f"{len(requests)}, {failed} failed"
    )
    shown = browser.evaluate(
        "[...document.querySelectorAll('#card-ttft .quantiles > span')].map((each) => each.textContent)"
    )
    assert [part.split(" ")[0] for part in shown] == ["p50", "p95", "p99"]


def test_a_click_shows_the_trace_with_bars_where_they_belong(
    browser: BrowserSession, page: Page, golden: Callable[[str], list[dict[str, Any]]]
) -> None:
    spans = golden("llm_session")
    [request] = (
        each for each in spans if "otelgpu.gen_ai.chunks" in each["attributes"] and each["kind"] == SERVER
    )
    trace = [each for each in spans if each["traceId"] == request["traceId"]]
    browser.open(page(GOLDEN / "llm_session.capture"))
    choose(browser, ".rows .row:nth-child(1)", request["name"])
    assert check_bars(browser, trace) == len(trace)
    reported = dict(browser.evaluate(ATTRIBUTES))
    assert reported["gen_ai.response.id"] == request["attributes"]["gen_ai.response.id"]
    folded = next(each for each in trace if each["attributes"].get("otelgpu.count") == 2)
    assert any(folded["name"] in label and "×2" in label for label in browser.evaluate(LABELS))


def test_zooming_keeps_bars_where_they_belong(browser: BrowserSession, page: Page) -> None:
    spans = [span(1, at=0, ns=100 * MS), span(2, "inside", parent=1, at=50 * MS, ns=10 * MS)]
    browser.open(page(traces(*spans, scope="mine")))
    browser.click(".rows .row")
    browser.click(".line:nth-child(2) .label")
    browser.evaluate("document.querySelector('.tree').focus()")
    browser.press("z")  # to the span: it fills the track
    left, width, track = browser.evaluate(BARS)["0000000000000002"]
    assert (left, width) == (pytest.approx(0, abs=1), pytest.approx(track, abs=1))
    browser.press("0")
    left, width, track = browser.evaluate(BARS)["0000000000000002"]
    assert (left, width) == (pytest.approx(0.5 * track, abs=1), pytest.approx(0.1 * track, abs=1))


# -- steps and links -------------------------------------------------------------------------------------


def engine() -> list[bytes]:
    """Two requests, and three steps that served them, linked both ways."""

    def link(trace: int, number: int, **given: Any) -> dict[str, Any]:
        words = [{"key": key, "value": {"intValue": str(plain)}} for key, plain in given.items()]
        return {"traceId": f"{trace:032x}", "spanId": f"{number:016x}", "attributes": words}

    requests = [
        span(
            of,
            f"chat m{of}",
            trace=of,
            at=of * MS,
            ns=40 * MS,
            kind=SERVER,
            links=[link(10 + n, 10 + n) for n in range(3)],
        )
        for of in (1, 2)
    ]
    steps = [
        span(
            10 + n,
            "engine.step",
            trace=10 + n,
            at=(10 + 10 * n) * MS,
            ns=5 * MS,
            given={"otelgpu.step.number": n + 1, "otelgpu.step.wait.duration": 0.001},
            links=[link(of, of, **{"otelgpu.step.tokens": 1}) for of in (1, 2)],
        )
        for n in range(3)
    ]
    return [traces(*requests), traces(*steps, scope="otelgpu.engine", **{"service.name": "core"})]


def test_a_link_leads_to_the_step_and_its_link_to_the_other_request_and_back(
    browser: BrowserSession, page: Page
) -> None:
    browser.open(page(*engine()))
    choose(browser, ".rows .row:nth-child(1)", "chat m1")
    assert browser.evaluate(LABELS)[1] == "3 engine steps that served it"
    choose(browser, "#details .link[data-span='000000000000000b']", "engine.step")
    assert (
        browser.evaluate("document.querySelector('[role=tab][aria-selected=true]').dataset.list") == "steps"
    )
    assert column(browser, "Step") == ["1", "2", "3"]
    assert browser.evaluate("document.querySelector('.row.selected').children[1].textContent") == "2"
    choose(browser, "#details .link[data-span='0000000000000002']", "chat m2")
    choose(browser, "#back", "engine.step")
    browser.evaluate("document.querySelector('.tree').focus()")
    browser.press("Backspace")
    browser.wait(f"{HEADING} === 'chat m1'")
    assert browser.evaluate("document.getElementById('back').disabled")


def test_steps_are_bars_on_a_line_of_the_request_that_they_served(
    browser: BrowserSession, page: Page
) -> None:
    browser.open(page(*engine()))
    choose(browser, ".rows .row:nth-child(1)", "chat m1")
    bars = browser.evaluate(BARS)
    for n in range(3):  # the request is 40 ms long and starts at 1 ms
        left, width, track = bars[f"{10 + n:016x}"]
        assert (left, width) == (
            pytest.approx((9 + 10 * n) / 40 * track, abs=1),
            pytest.approx(5 / 40 * track, abs=1),
        )
    choose(browser, ".lane .bar[data-span='000000000000000c']", "engine.step")
    assert browser.evaluate("document.querySelector('.histogram')") is not None


def test_gaps_of_a_request_are_those_between_its_steps(browser: BrowserSession, page: Page) -> None:
    lines = engine()
    extra = [
        span(
            20 + n,
            "engine.step",
            trace=20 + n,
            at=(60 + 20 * n) * MS,
            ns=MS,
            given={"otelgpu.step.number": 9},
            links=[{"traceId": f"{1:032x}", "spanId": f"{1:016x}"}],
        )
        for n in range(2)
    ]
    browser.open(page(*lines, traces(*extra, scope="otelgpu.engine")))
    choose(browser, ".rows .row:nth-child(1)", "chat m1")
    # Ends at 15, 25, 35, 61 and 81 ms.
    assert "4 gaps between the ends" in browser.evaluate("document.querySelector('.gaps').textContent")
    assert "10.0 ms to 26.0 ms" in browser.evaluate("document.querySelector('.gaps').textContent")


def test_where_the_time_of_a_training_step_went_is_shown_whole(
    browser: BrowserSession, page: Page, golden: Callable[[str], list[dict[str, Any]]]
) -> None:
    steps = sorted(
        (each for each in golden("training_job") if each["name"] == "training step"),
        key=lambda each: int(each["startTimeUnixNano"]),
    )
    browser.open(page(GOLDEN / "training_job.capture") + "#/training")
    titles = {"Data-loader stall": "data_loader_stall", "Host overhead": "host_overhead", "Waits": "wait"}
    for title, part in titles.items():
        wanted = [each["attributes"][f"otelgpu.step.{part}.duration"] * 1e3 for each in steps]
        assert [milliseconds(shown) for shown in column(browser, title)] == pytest.approx(wanted, rel=0.01)
    choose(browser, ".rows .row:nth-child(1)", "training step")
    words = browser.evaluate("[...document.querySelectorAll('.stacked li')].map((each) => each.textContent)")
    shown = [milliseconds(number) for each in words for number in re.findall(r"([\d.]+ \S+) \(", each)]
    whole = (int(steps[0]["endTimeUnixNano"]) - int(steps[0]["startTimeUnixNano"])) / 1e6
    assert len(shown) >= 4
    assert sum(shown) == pytest.approx(whole, rel=0.01)


# -- collectives, device time, losses ---------------------------------------------------------------------


def test_a_collective_has_its_ranks_as_lines_and_the_last_is_marked(
    browser: BrowserSession, page: Page, golden: Callable[[str], list[dict[str, Any]]]
) -> None:
    spans = golden("training_job")
    roots = sorted(
        (each for each in spans if each["attributes"].get("nccl.phase") == "collective"),
        key=lambda each: int(each["startTimeUnixNano"]),
    )
    browser.open(page(GOLDEN / "training_job.capture") + "#/collectives")
    assert column(browser, "Operation") == [each["name"] for each in roots]
    browser.click(".rows .row:nth-child(2)")
    trace = [each for each in spans if each["traceId"] == roots[1]["traceId"]]
    labels = browser.evaluate(LABELS)
    assert [label.strip("▾ ") for label in labels[:3]] == [
        "AllReduce",
        "rank 0  ncclAllReduce",
        "rank 1  ncclAllReduce",
    ]
    assert labels[3].startswith("rank 2  ncclAllReducelast, +6.00 ms")
    assert len(labels) == 4  # waits are on their ranks' lines
    assert check_bars(browser, trace) == len(trace) == 7
    left, track = browser.evaluate(MARK)
    last = max(
        int(each["startTimeUnixNano"]) for each in trace if each["attributes"]["nccl.phase"] == "enqueue"
    )
    begin = min(int(each["startTimeUnixNano"]) for each in trace)
    whole = max(int(each["endTimeUnixNano"]) for each in trace) - begin
    assert left == pytest.approx((last - begin) / whole * track, abs=1.5)


def test_time_on_the_device_is_reported_from_host_time(browser: BrowserSession, page: Page) -> None:
    request = traces(span(1, "POST /", kind=SERVER, ns=9 * MS))
    host = traces(span(2, "cudaLaunchKernel axpy", parent=1), scope="otelgpu.cuda")
    device = traces(span(3, "axpy", parent=1, at=2 * MS), scope="otelgpu.device_time")
    browser.open(page(request, host, device))
    choose(browser, ".rows .row", "POST /")
    marked = "[...document.querySelectorAll('.tag.gpu')].map((tag) => tag.closest('.label').textContent)"
    assert browser.evaluate(marked) == ["axpyGPU"]
    choose(browser, ".line:nth-child(3) .label", "axpy")
    assert "time on the GPU" in browser.evaluate(FACTS)
    choose(browser, ".line:nth-child(2) .label", "cudaLaunchKernel axpy")
    assert "host time" in browser.evaluate(FACTS)


def test_what_was_not_seen_is_reported(browser: BrowserSession, page: Page) -> None:
    browser.open(page(GOLDEN / "llm_session.capture") + "#/unseen")
    rows = browser.evaluate(ROWS_OF.format(".losses tbody tr"))
    assert ["cuda", "ring_full", "3"] in [[*row[:2], row[3]] for row in rows]
    browser.open("about:blank")
    browser.open(page(traces(span(1)), b"{garbage\n", traces(span(2, traceId="no"))) + "#/unseen")
    reported = browser.evaluate("document.getElementById('unseen').textContent")
    assert "1 lines that are no OTLP/JSON were passed over" in reported
    assert "1 spans that could not be read were left out" in reported


# -- hostile data -----------------------------------------------------------------------------------------

INJECTIONS = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "<svg/onload=alert(3)>",
    "javascript:alert(4)",
    "'\"><iframe srcdoc='<script>parent.alert(5)</script>'></iframe>",
    "{{program}}\u2028<!--",
)


@pytest.mark.parametrize("text", INJECTIONS)
def test_hostile_values_are_shown_as_they_are_and_do_nothing(
    browser: BrowserSession, page: Page, text: str
) -> None:
    reported = {"otelgpu.count": text, "otelgpu.step.number": text, "otelgpu.operations.dropped": text}
    reported |= {"gen_ai.request.model": text, "error.type": text, "http.response.status_code": text}
    words = [{"key": text, "value": {"stringValue": text}}]
    line = traces(
        span(
            1,
            text,
            kind=SERVER,
            given={text: text} | reported,
            status={"code": 2, "message": text},
            events=[{"name": text, "timeUnixNano": "1", "attributes": words}],
            links=[{"traceId": "e" * 32, "spanId": "e" * 16, "attributes": words}],
        ),
        span(
            2, text, parent=1, given={"nccl.rank": text, "otelgpu.phase": text} | reported, status={"code": 2}
        ),
        **{"service.name": text, "host.name": text},
    )
    calls = traces(
        span(3, text, parent=1, given={"nccl.phase": "enqueue", "nccl.rank": text}), scope="otelgpu.nccl"
    )
    url = page(line, calls)
    browser.open(url)
    browser.requests.clear()
    choose(browser, ".row.error", text)
    assert text in column(browser, "Request")
    assert (
        browser.evaluate(
            "document.querySelectorAll('img, iframe, a, object, embed, svg:not(.histogram)').length"
        )
        == 0
    )
    assert browser.evaluate("document.scripts.length") == 2  # about, and the program
    for tab in ("calls", "unseen", "others"):
        browser.evaluate(f"document.getElementById('tab-{tab}')?.click()")
    assert browser.requests == []


# -- keyboard, filter, size --------------------------------------------------------------------------------


def test_it_can_be_used_by_keyboard_alone(browser: BrowserSession, page: Page) -> None:
    requests = [
        span(
            n,
            f"chat m{n}",
            trace=n,
            at=n * MS,
            kind=SERVER,
            given={"gen_ai.latency.time_to_first_token": n / 100},
        )
        for n in range(1, 31)
    ]
    browser.open(
        page(traces(*requests), traces(span(99, "cudaMalloc", trace=30, parent=30), scope="otelgpu.cuda"))
    )
    browser.press("/")
    browser.write("ttft>=250ms")
    assert column(browser, "Request") == [f"chat m{n}" for n in range(25, 31)]
    browser.press("Enter")
    browser.wait(f"{HEADING} === 'chat m25'")
    for _ in range(9):  # past the end: it stays there
        browser.press("j")
    browser.wait(f"{HEADING} === 'chat m30'")
    browser.press("Enter")
    browser.press("ArrowDown")
    browser.wait(f"{HEADING} === 'cudaMalloc'")
    assert browser.evaluate("document.activeElement.getAttribute('role')") == "tree"
    assert browser.evaluate(
        "document.getElementById(document.activeElement.getAttribute('aria-activedescendant')).textContent"
    ).startswith("cudaMalloc")
    browser.press("ArrowUp")
    browser.press("ArrowLeft")  # closes what is under the request
    assert len(browser.evaluate(LABELS)) == 1
    browser.press("ArrowRight")
    assert len(browser.evaluate(LABELS)) == 2
    browser.press("2")
    browser.wait("document.querySelector('[role=tab][aria-selected=true]').dataset.list !== 'requests'")
    browser.press("?")
    browser.wait("document.getElementById('help').open")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("error", ["chat beta"]),
        ("chat alph", ["chat alpha"]),
        ("cuda.stream=7", ["chat alpha"]),
        ("tokens<5", ["chat beta"]),
        ("nothing", []),
        ("duration>1s", ["chat gamma"]),
    ],
)
def test_the_filter_finds(browser: BrowserSession, page: Page, query: str, found: list[str]) -> None:
    given = [
        span(
            1, "chat alpha", trace=1, kind=SERVER, given={"cuda.stream": 7, "gen_ai.usage.output_tokens": 9}
        ),
        span(
            2, "chat beta", trace=2, kind=SERVER, given={"gen_ai.usage.output_tokens": 4}, status={"code": 2}
        ),
        span(3, "chat gamma", trace=3, kind=SERVER, ns=2000 * MS),
    ]
    browser.open(page(traces(*given)))
    browser.press("/")
    browser.write(query)
    assert [cells[1] for cells in browser.evaluate(CELLS)] == found


@pytest.mark.alone(reason="a page of 23 MB: both processors for some ten seconds")
def test_of_300_000_spans_only_what_is_seen_is_in_the_document(browser: BrowserSession, page: Page) -> None:
    lines = [
        traces(
            span(1, "chat m", trace=trace, at=trace * MS, kind=SERVER),
            *(
                span(10 + n, f"k{n % 50}", trace=trace, parent=1, at=trace * MS + n, ns=1)
                for n in range(3_000)
            ),
        )
        for trace in range(1, 101)
    ]
    browser.open(page(*lines))
    browser.wait("document.querySelector('#count').textContent === '100'")
    browser.wait(f"{HEADING} === 'chat m'")
    assert browser.evaluate("document.querySelectorAll('.rows .row').length") < 100
    browser.evaluate("document.querySelector('.grid').scrollTop = 1e9")
    browser.wait("document.querySelector('.rows .row:last-child').getAttribute('aria-rowindex') === '101'")
    choose(browser, ".rows .row:last-child", "chat m")
    assert browser.evaluate("document.querySelectorAll('.line').length") < 60
    browser.evaluate("document.querySelector('.view').scrollTop = 1e9")
    last = "document.querySelector('.line:last-child').getAttribute('aria-posinset')"
    browser.wait(f"{last} === '3001'")
    assert browser.evaluate("document.querySelectorAll('.line').length") < 60


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (1400, True), (800, False), (500, True)])
def test_nothing_is_wider_than_the_window_and_everything_has_a_name(
    browser: BrowserSession, page: Page, width: int, dark: bool
) -> None:
    browser.resize(width, 900, dark=dark)
    browser.open(page(*engine()))
    browser.click(".rows .row")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(UNNAMED) == []
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") is not dark


# -- live --------------------------------------------------------------------------------------------------


@contextmanager
def serving(file: Path) -> Iterator[str]:
    running = subprocess.Popen(
        [OTELGPU, "view", "--live", "--no-open", file],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert running.stdout is not None
    try:
        yield running.stdout.readline().strip()
    finally:
        running.terminate()
        running.communicate(timeout=20)


def test_a_live_page_gets_what_the_file_gets(browser: BrowserSession, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    with serving(file) as url:
        browser.open(url)
        browser.wait("document.getElementById('live').textContent === 'waiting for the file'")
        file.write_bytes(traces(span(1, "chat one", trace=1, kind=SERVER)))
        browser.wait("document.querySelectorAll('.rows .row').length === 1")
        browser.click(".rows .row")
        with file.open("ab") as more:
            more.write(traces(span(2, "chat two", trace=2, at=5 * MS, kind=SERVER)))
            more.write(traces(span(3, "cudaMalloc", trace=1, parent=1), scope="otelgpu.cuda"))
        browser.wait("document.querySelectorAll('.rows .row').length === 2")
        assert column(browser, "Request") == ["chat two", "chat one"]  # the newest first
        assert browser.evaluate(HEADING) == "chat one"  # what is looked at stays
        browser.wait("document.querySelectorAll('.line').length === 2")
        file.unlink()
        file.write_bytes(traces(span(4, "chat new", trace=4, kind=SERVER)))
        browser.wait(f"JSON.stringify({CELLS}).includes('chat new')")
        assert column(browser, "Request") == ["chat new"]
    browser.wait("document.getElementById('live').className === 'lost'")
    browser.complaints.clear()  # a refused connection is one to the browser, and meant here
