"""The page of a diagnosis in Chromium: the verdict in words, and the map of ranks by steps."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from otelgpu.cli.commands import cli
from tests.rig.browser_session import BrowserSession
from tests.rig.jobs.shape import Shape
from tests.rig.jobs.simulation import simulate
from tests.rig.jobs.table import write

duckdb = pytest.importorskip("duckdb")

HOSTILE = "</script><img src=x onerror=alert(1)>"
STATUS = "document.getElementById('status').textContent"


@pytest.fixture
def opened(browser: BrowserSession, tmp_path: Path) -> BrowserSession:
    job, ops, page = tmp_path / "job.parquet", tmp_path / "ops.parquet", tmp_path / "page.html"
    write(job, simulate("slow compute", 4, Shape(steps=40, replicas=4, ranks_per_host=2, unit_s=0.01)))
    duckdb.sql(f"SELECT * REPLACE (host || '{HOSTILE}' AS host) FROM '{job}'").write_parquet(str(ops))
    result = CliRunner().invoke(cli, ["diagnose", "ranks", str(ops), "-o", str(page)])
    assert result.exit_code == 3, result.output
    browser.open(page.as_uri())
    browser.wait(STATUS)
    return browser


def test_the_verdict_is_in_words_and_names_are_text(opened: BrowserSession) -> None:
    sentence = opened.evaluate("document.querySelector('.verdict h3').textContent")
    assert sentence.startswith("Slow rank ")
    assert HOSTILE in sentence
    assert opened.evaluate("document.querySelectorAll('img').length") == 0


def test_keys_move_over_the_map_and_show_a_rank(opened: BrowserSession) -> None:
    opened.evaluate("document.getElementById('map').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        opened.press(key)
    assert opened.evaluate(STATUS).startswith("rank 2 (host-1")
    assert ", step 1: all kinds " in opened.evaluate(STATUS)
    assert "compute" in opened.evaluate("document.getElementById('breakdown').textContent")


def test_the_map_has_a_pixel_for_each_rank_and_step(opened: BrowserSession) -> None:
    assert opened.evaluate("[map => [map.width, map.height]][0](document.getElementById('map'))") == [40, 4]


def test_ranks_steps_and_colours_have_their_labels(opened: BrowserSession) -> None:
    texts = "[...document.querySelectorAll('#{} span')].map(each => each.textContent).join(' ')"
    assert opened.evaluate(texts.format("ranks")) == "0 1 2 3"
    steps = [int(text) for text in opened.evaluate(texts.format("steps")).split()]
    assert steps[0] == 0
    assert len({later - earlier for earlier, later in pairwise(steps)}) == 1
    assert len(opened.evaluate(texts.format("legend")).split(" ms")) == 5


def test_a_rank_that_takes_twice_as_long_is_red_and_its_peers_are_pale(opened: BrowserSession) -> None:
    step = "[...document.getElementById('map').getContext('2d').getImageData(20, 0, 1, 4).data]"
    named = int(opened.evaluate("document.querySelector('.verdict h3').textContent").split()[2])
    found = opened.evaluate(step)
    for rank, (red, blue) in enumerate(zip(found[::4], found[2::4], strict=True)):
        assert (red - blue > 60) == (rank == named), found
