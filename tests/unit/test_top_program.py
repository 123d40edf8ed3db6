"""The program of `otelgpu top`, driven by keys and a mouse without a terminal; what is on the screen, as text."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from rich.style import Style
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import DataTable

from otelgpu.cli.top.app import TopApp
from otelgpu.cli.top.tables import RateTable
from otelgpu.engine.presentation import AGENT
from otelgpu.engine.top_views import top_views
from otelgpu.render.top.frames import Failure, Frame, Report, encoded
from tests.rig.top_frames import PIDS, frame, setup

pytestmark = pytest.mark.slow

SMALL, LARGE = (80, 24), (120, 40)
LIMIT_S = 40.0


@dataclass(frozen=True)
class Driven:
    """The program, and the ends of its pipes."""

    app: TopApp
    pilot: Pilot[None]
    reports: int
    log: int

    def screen(self) -> str:
        lines = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in line).rstrip() for line in lines)

    def lines(self) -> list[str]:
        return self.screen().split("\n")

    def line(self, text: str) -> str:
        """The first line with a text."""
        return next(line for line in self.lines() if text in line)

    async def send(self, *reports: Report) -> None:
        """From another thread: a pipe takes less than some frames are."""
        for report in reports:
            await asyncio.to_thread(self._write, encoded(report))

    def _write(self, line: bytes) -> None:
        while line:
            line = line[os.write(self.reports, line) :]

    async def shows(self, *texts: str) -> None:
        await self.until(lambda: all(text in self.screen() for text in texts), f"{texts}")

    async def until(self, holds: Callable[[], bool], what: str = "it") -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                while not holds():
                    await self.pilot.pause(0.01)
        except TimeoutError:
            raise AssertionError(f"{what} does not come:\n{self.screen()}") from None

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()


@asynccontextmanager
async def driven(size: tuple[int, int] = SMALL) -> AsyncIterator[Driven]:
    reports, report = os.pipe()
    log, logged = os.pipe()
    app = TopApp(reports=reports, log=log)
    try:
        async with app.run_test(size=size) as pilot:
            yield Driven(app, pilot, report, logged)
    finally:
        os.close(report)
        os.close(logged)


def run(scenario: Callable[[Driven], Awaitable[None]], size: tuple[int, int] = SMALL) -> TopApp:
    async def whole() -> TopApp:
        async with driven(size) as program:
            await scenario(program)
            return program.app

    return asyncio.run(whole())


async def started(program: Driven, view: str | None = None, **more: Any) -> None:
    await program.send(setup(view), frame(**more))
    await program.until(lambda: program.app._shelf.frame is not None)
    await program.pilot.pause()


@pytest.mark.parametrize("turns", [0, 1, 2, 4, 8, 16, 32, 64])
def test_it_can_be_ended_while_its_tabs_are_made(turns: int) -> None:
    """``turns``: of the event loop, since they began to be made."""

    async def scenario(program: Driven) -> None:
        made = asyncio.create_task(program.app._take(setup()))
        for _ in range(turns):
            await asyncio.sleep(0)
        program.app.exit()
        await made
        await program.until(lambda: not program.app.is_running)

    app = run(scenario)
    assert app.return_code == 0


def test_something_is_drawn_before_there_is_anything() -> None:
    async def scenario(program: Driven) -> None:
        await program.shows("otelgpu top", "starting …", "q Quit")
        await program.press("1", "tab", "slash", "s", "space", "less_than_sign", "t", "escape")  # to no avail
        await program.send(setup())
        await program.shows("loading probes …", "1 Requests", "5 Processes")

    run(scenario)


def test_it_begins_with_what_there_is() -> None:
    async def scenario(program: Driven) -> None:
        await started(program, only="nccl")
        await program.shows("NCCL communicators", "communicator-2", "calls/s")
        assert "CUDA processes" not in program.screen()

    run(scenario)


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["80x24", "120x40"])
def test_no_title_is_cut_by_the_edge(size: tuple[int, int]) -> None:
    async def scenario(program: Driven) -> None:
        await started(program, "requests", lost=1.0)
        for number, view in enumerate(top_views().values(), 1):
            if view.name not in ("requests", "rdma", "agent"):  # test_top_screen.py has them all
                continue
            await program.press(f"{number}")
            await program.shows(view.top_tables[0].title, "▼")
            titles = [title for table in view.top_tables for _, title in table.keys.values()]
            titles += [column.title for table in view.top_tables for column in table.columns]
            known = {"▼", "trend", *(word for title in titles for word in title.split())}
            for line in program.lines():
                assert "▼" not in line or set(line.split()) <= known
                assert len(line) <= size[0]

    run(scenario, size)


def test_the_headline_has_the_time_and_what_is_lost() -> None:
    async def scenario(program: Driven) -> None:
        await started(program)
        await program.shows("lost 0/s", "3 processes")
        await program.send(frame(lost=12.5))
        await program.shows("lost 12.5/s")
        assert program.app._shelf.frame is not None
        await program.press("6")
        await program.shows("ring_full", "What was lost")

    run(scenario)


def test_views_are_changed_by_tab_by_number_and_by_mouse() -> None:
    async def scenario(program: Driven) -> None:
        await started(program, "requests")
        await program.shows("Generations by model")
        await program.press("tab")
        await program.shows("CUDA processes")
        await program.press("shift+tab")
        await program.shows("Generations by model")
        await program.press("4")
        await program.shows("RDMA queue pairs", "RDMA ports")
        await program.pilot.click("#processes")
        await program.shows("Processes  3")

    run(scenario)


def order(program: Driven) -> list[str]:
    return [word for line in program.lines() for word in line.split() if word.startswith("service-")]


def test_rows_are_sorted_by_keys_and_by_a_click() -> None:
    async def scenario(program: Driven) -> None:
        await started(program, "processes")
        await program.until(lambda: order(program) == ["service-2", "service-1", "service-0"])
        assert "CPU ▼" in program.screen()
        await program.press("r")
        await program.until(lambda: order(program) == ["service-0", "service-1", "service-2"])
        assert "CPU ▲" in program.screen()
        await program.press("greater_than_sign")
        await program.shows("GPU ▼")
        await program.press("less_than_sign", "less_than_sign")
        await program.shows("program ▼")
        await program.press("s")
        await program.shows("Sort by", "probed  (probed_files)")
        await program.press("end", "enter")
        await program.shows("lost/s ▼")  # which had no room before
        title = program.lines().index(program.line("service    pid"))
        await program.pilot.click(offset=(3, title))
        await program.shows("service ▼")
        assert order(program) == ["service-0", "service-1", "service-2"]

    run(scenario)


def test_columns_without_room_are_counted_and_come_by_the_arrows() -> None:
    async def scenario(program: Driven) -> None:
        await started(program, "cuda")
        await program.shows(" more")
        assert "err/s" not in program.screen()
        await program.press(*["right"] * 4)
        await program.shows("err/s", "← ", "launches/s ▼")
        await program.press(*["left"] * 4)
        await program.until(lambda: "err/s" not in program.screen())

    run(scenario)


def test_a_filter_keeps_the_rows_with_its_words() -> None:
    async def scenario(program: Driven) -> None:
        await started(program, "processes")
        await program.press("slash", *"SERVICE-1 102")
        await program.shows("1 of 3")
        assert order(program) == ["service-1"]
        await program.press("enter")
        await program.shows("/SERVICE-1 102")
        await program.press("escape")
        await program.until(lambda: len(order(program)) == 3)
        await program.press("slash", *"nobody", "enter")
        await program.shows("nothing like that")

    run(scenario)


def test_a_process_has_all_that_is_its_own_on_one_screen() -> None:
    async def scenario(program: Driven) -> None:
        await started(program, "processes")
        await program.press("enter")
        await program.shows("Process 103  service-2", "CUDA processes", "HTTP requests by route")
        assert "102" not in program.screen()
        await program.send(frame(scale=1000.0))
        await program.shows("3000")
        await program.press("escape")
        await program.shows("1 Requests", "Processes  3")
        await program.press("3", "enter")
        await program.shows("this row is of no single process")

    run(scenario, LARGE)


def test_a_pause_stays_with_its_frame_and_misses_none() -> None:
    async def scenario(program: Driven) -> None:
        await started(program, "cuda")
        await program.press("space")
        await program.shows("paused")
        await program.send(frame(scale=1000.0))
        await program.until(lambda: program.app._latest != program.app._shelf.frame)
        assert "3000" not in program.screen()
        await program.press("space")
        await program.shows("3000")
        assert "paused" not in program.screen()
        assert "▁█" in program.screen()  # its trend has both

    run(scenario, LARGE)


def test_the_cursor_stays_on_its_row() -> None:
    async def scenario(program: Driven) -> None:
        await started(program, "processes")
        await program.press("down")
        await program.press("r")
        await program.press("r", "enter")
        await program.shows("Process 102")

    run(scenario)


def test_keys_are_explained_and_messages_kept() -> None:
    async def scenario(program: Driven) -> None:
        await started(program)
        os.write(program.log, b"otelgpu: WARNING: one \x1b[2J line\n")
        await program.shows("WARNING: one")
        await program.press("question_mark")
        await program.shows("Shift+Tab", "the column to the left")
        await program.press("q")  # closes what lies above, no more
        await program.press("m")
        await program.shows("WARNING: one \N{REPLACEMENT CHARACTER}[2J line")
        await program.press("escape")
        await program.shows("1 Requests")

    run(scenario)


def test_another_size_is_filled() -> None:
    async def scenario(program: Driven) -> None:
        await started(program, "cuda")
        await program.shows(" more")
        await program.pilot.resize_terminal(160, 40)
        await program.shows("err/s")
        assert " more" not in program.line("CUDA processes")
        await program.pilot.resize_terminal(40, 10)
        await program.until(lambda: "err/s" not in program.screen())
        assert all(len(line) <= 40 for line in program.lines())

    run(scenario)


def test_more_rows_than_lines_are_scrolled_through() -> None:
    async def scenario(program: Driven) -> None:
        await started(program, "processes", rows=600, only="processes")
        await program.shows("the first 500 of 600", "service-599")
        await program.press("end")
        await program.shows("service-100")

    run(scenario)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_it_ends_by_a_key(key: str) -> None:
    async def scenario(program: Driven) -> None:
        await program.shows("starting …")
        await program.pilot.press(key)

    ended = run(scenario)
    assert (ended.return_code, ended.failure) == (0, None)


def test_why_it_cannot_observe_is_on_the_screen() -> None:
    failure = Failure(text="otelgpu: cannot load cuda.bpf.o: no BTF\nhint of what to do", exit_code=1)

    async def scenario(program: Driven) -> None:
        await started(program)
        await program.send(failure)
        await program.shows("ended", "cannot load cuda.bpf.o: no BTF", "hint of what to do")
        os.write(program.log, b"some other line\n")
        await program.press("tab", "q")

    assert run(scenario).failure == failure


def test_what_is_typed_wrongly_ends_it() -> None:
    failure = Failure(text="Usage: otelgpu top …", exit_code=2)

    async def whole() -> None:
        async with driven() as program:
            await program.send(failure)
            os.dup2(os.open(os.devnull, os.O_WRONLY), program.reports)  # the observer has ended
            async with asyncio.timeout(LIMIT_S):
                while program.app.is_running:
                    await asyncio.sleep(0.01)
            assert program.app.failure == failure

    asyncio.run(whole())


def test_a_frame_of_a_thousand_rows_comes_whole() -> None:
    async def scenario(program: Driven) -> None:
        await program.send(setup("processes"))
        whole: Frame = frame(rows=1000, only="processes")
        await program.send(whole)
        await program.until(lambda: program.app._latest == whole)

    run(scenario)


async def drawn(program: Driven, report: Frame) -> None:
    await program.send(report)
    await program.until(lambda: program.app._shelf.frame == report)
    await program.pilot.pause()


def strips(program: Driven) -> list[list[tuple[str, Style | None]]]:
    """What is on the screen, with its colours."""
    lines = program.app.screen._compositor.render_strips()
    return [[(segment.text, segment.style) for segment in line] for line in lines]


def test_cells_that_are_kept_look_as_if_they_were_drawn_anew() -> None:
    async def scenario(program: Driven) -> None:
        await started(program, view=AGENT, scale=1)
        for scale, lost in ((3, 0.0), (44, 2.0), (45, 0.0), (46, 7.0)):
            await drawn(program, frame(scale=scale, lost=lost))
            kept = strips(program)
            for table in program.app.query(RateTable):
                table.notify_style_update()
                table.refresh()
            await program.pilot.pause()
            assert strips(program) == kept

    run(scenario, LARGE)


def test_of_a_frame_that_says_the_same_no_cell_is_rendered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[tuple[object, ...]] = []
    whole = DataTable._render_cell

    def counted(self: DataTable[Text], *arguments: Any) -> Any:
        rendered.append(arguments)
        return whole(self, *arguments)

    monkeypatch.setattr(DataTable, "_render_cell", counted)

    async def scenario(program: Driven) -> None:
        await started(program, view="cuda", scale=11)
        assert rendered
        for scale in (11, 12):  # the same, and other numbers as wide
            rendered.clear()
            await drawn(program, frame(scale=scale))
            trends = {place[:2] for place in rendered}
            assert len(trends) == len(rendered) <= 2 * len(PIDS)  # the trend of each row grows

    run(scenario, SMALL)
