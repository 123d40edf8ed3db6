"""What `otelgpu top` puts on a screen, before anything draws it: columns, lines, order, trends, the headline."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from otelgpu.engine.presentation import AGENT, PROCESSES, TopTable
from otelgpu.engine.top_views import top_views
from otelgpu.render.top.board import Choices
from otelgpu.render.top.frames import Failure, Report, decoded, encoded
from otelgpu.render.top.headline import Status, headline
from otelgpu.render.top.history import KEPT, History, sparkline
from otelgpu.render.top.layout import GAP, Layout, Shown, cell, fitted, heights
from otelgpu.render.top.processes import ObservedProcess, joined
from otelgpu.render.top.rows import Row
from otelgpu.render.top.values import cells, matching
from tests.rig.top_frames import frame, made, setup

TABLES = [(view.name, table) for view in top_views().values() for table in view.top_tables]


def table(view: str, name: str) -> TopTable:
    return next(each for each in top_views()[view].top_tables if each.name == name)


def laid_out(top_table: TopTable, width: int, *, sort: str = "", first: int = 0) -> Layout:
    rows = [cells(top_table, made(top_table, place, 1.0)) for place in range(3)]
    return fitted(top_table, rows, width, sort=sort or top_table.sort, first=first)


@pytest.mark.parametrize("width", [79, 119, 200])
@pytest.mark.parametrize(("view", "top_table"), TABLES, ids=[f"{view}-{each.name}" for view, each in TABLES])
def test_columns_that_are_shown_fit_and_no_title_is_cut(view: str, top_table: TopTable, width: int) -> None:
    layout = laid_out(top_table, width)
    assert sum(shown.width + GAP for shown in layout.columns) + (layout.trend and layout.trend + GAP) <= width
    assert all(cell(shown.title, shown).strip() == shown.title for shown in layout.columns)
    keys = len(top_table.keys)
    assert [shown.place for shown in layout.columns[:keys]] == list(range(keys))
    assert layout.before + layout.behind + len(layout.columns) == keys + len(top_table.columns)


def test_the_column_that_rows_are_sorted_by_is_there_wherever_it_stands() -> None:
    pairs = table("rdma", "queue_pairs")
    for column in pairs.columns:
        assert column.key in [shown.key for shown in laid_out(pairs, 79, sort=column.key).columns]


def test_every_column_can_be_scrolled_to() -> None:
    pairs = table("rdma", "queue_pairs")
    seen = {
        shown.key for first in range(len(pairs.columns)) for shown in laid_out(pairs, 79, first=first).columns
    }
    assert {column.key for column in pairs.columns} <= seen


def test_columns_do_not_shrink_while_somebody_reads() -> None:
    routes = table("requests", "routes")
    rows = [cells(routes, made(routes, 0, 123456.0))]
    wide = fitted(routes, rows, 119, sort="requests_per_s")
    least = {shown.key: shown.width for shown in wide.columns}
    again = fitted(routes, [cells(routes, made(routes, 0, 1.0))], 119, sort="requests_per_s", least=least)
    assert {shown.key: shown.width for shown in again.columns} == least


@pytest.mark.parametrize(
    ("text", "right", "written"),
    [
        ("abc", False, "abc   "),
        ("abc", True, "   abc"),
        ("abcdefgh", False, "abcde…"),
        ("日本語文字", False, "日本 …"),
    ],
)
def test_a_cell_is_as_wide_as_its_column(text: str, right: bool, written: str) -> None:
    shown = Shown(key="", title="", place=0, width=6, right=right)
    assert cell(text, shown) == written
    assert cell_len(written) == 6


@pytest.mark.parametrize(
    ("wanted", "available", "given"),
    [
        ([3, 20, 20], 23, [3, 10, 10]),
        ([3, 4], 20, [3, 4]),
        ([5, 5, 5], 2, [1, 1, 0]),
        ([], 9, []),
        ([7], 0, [0]),
    ],
)
def test_lines_are_shared_fairly(wanted: list[int], available: int, given: list[int]) -> None:
    assert heights(wanted, available) == given


def test_a_sparkline_is_as_high_as_its_highest_value_and_has_gaps() -> None:
    assert sparkline([0, 1, None, 4], 6) == "  ▁▃ █"
    assert sparkline([1, 2, 3], 2) == "▆█"
    assert (sparkline([0.0, 0.0], 3), sparkline([], 3), sparkline([1], 0)) == (" ▁▁", "   ", "")


def test_a_row_has_its_last_figures_and_none_when_it_is_gone() -> None:
    processes = table("cuda", "processes")
    history = History(processes)
    rows = [made(processes, place, 1.0) for place in range(2)]
    for value in range(KEPT + 5):
        history.add([row | {"launches_per_s": value} for row in rows])
    history.add([rows[0] | {"launches_per_s": None}])
    assert history.of(rows[0]) == [*range(6, KEPT + 5), None]
    assert history.of(rows[1]) == []


def test_each_table_has_an_order_of_its_own() -> None:
    choices, processes = Choices(sort="errors_per_s"), table("cuda", "processes")
    rows = [made(processes, place, 1.0) for place in range(3)]
    assert choices.order("cuda", processes).sort == "errors_per_s"
    assert (
        choices.order(PROCESSES, table(PROCESSES, PROCESSES)).sort == "cpu_share"
    )  # which has no such column
    assert [row["pid"] for row in choices.rows("cuda", processes, rows)] == [103, 102, 101]
    choices.sort_by("cuda", processes, "pid")
    choices.sort_by("cuda", processes, "pid")
    assert [row["pid"] for row in choices.rows("cuda", processes, rows)] == [101, 102, 103]
    choices.move_sort("cuda", processes, -1)
    assert choices.order("cuda", processes).sort == "service"
    assert [row["service"] for row in choices.rows("cuda", processes, rows)] == [
        "service-0",
        "service-1",
        "service-2",
    ]
    choices.move_sort("cuda", processes, -1)
    assert choices.order("cuda", processes).sort == processes.columns[-1].key
    assert [row["pid"] for row in choices.rows("cuda", processes, rows, pid=102)] == [102]
    choices.scroll("cuda", processes, -1)
    assert choices.order("cuda", processes).first == 0


def test_a_filter_is_of_keys_and_texts() -> None:
    pairs = table("rdma", "queue_pairs")
    rows = [made(pairs, place, 7.0) for place in range(3)]
    assert matching(pairs, rows, "STATE-1  service") == [rows[1]]
    assert matching(pairs, rows, "14") == []  # a figure of row 1: filters are for what rows are
    assert matching(pairs, rows, " ") == rows


def test_processes_are_those_of_metrics_and_those_that_are_observed() -> None:
    processes = table(PROCESSES, PROCESSES)
    rows: list[Row] = [made(processes, 0, 1.0), made(processes, 0, 2.0) | {"service": "before it was named"}]
    before = {
        101: ObservedProcess(pid=101, program="python3", cpu_s=1.0, start_time_ns=5),
        7: ObservedProcess(pid=7, program="old", cpu_s=1.0, start_time_ns=5),
    }
    after = {
        101: ObservedProcess(pid=101, program="python3", cpu_s=2.0, start_time_ns=5, probed_files=3),
        7: ObservedProcess(pid=7, program="new", cpu_s=9.0, start_time_ns=6),  # the number is another's now
        8: ObservedProcess(pid=8, program=""),
    }
    found = joined(processes, rows, before, after, 2.0)
    assert [(row["pid"], row["program"], row["cpu_share"]) for row in found] == [
        (101, "python3", 0.5),
        (101, "python3", 0.5),
        (7, "new", None),
        (8, None, None),
    ]
    assert (found[0]["probed_files"], found[2]["requests_per_s"]) == (3, None)


def test_the_headline_says_what_is_waited_for_lost_and_ended() -> None:
    def texts(*given: object, **status: object) -> list[str]:
        return [text for text, _ in headline(*given, Status(**status))]  # type: ignore[arg-type]

    assert texts(None, before="starting …") == ["otelgpu top", "starting …"]
    assert texts(None, failed=True) == ["otelgpu top", "ended"]
    assert texts(frame(lost=0.5), time="12:00:00", paused=True, filter="x") == [
        "otelgpu top",
        "12:00:00",
        "paused",
        "/x",
        "lost 0.5/s",
        "3 processes",
        "agent 600 % 6 B",
    ]
    nothing = frame(rows=0)
    assert nothing.figure(AGENT, "losses", "lost_per_s") is None
    assert texts(nothing)[-1] == "agent - -"


@pytest.mark.parametrize(
    "report",
    [setup("cuda", "pid"), frame(), Failure(text="x\ny", exit_code=1)],
    ids=["setup", "frame", "failure"],
)
def test_reports_are_lines_and_come_as_they_were_sent(report: Report) -> None:
    line = encoded(report)
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert decoded(line) == report
