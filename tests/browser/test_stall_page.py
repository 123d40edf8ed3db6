"""The page of a diagnosis of stalls in Chromium: the verdict in words, and a bar for each step."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from otelgpu.cli.commands import cli
from tests.rig.browser_session import BrowserSession
from tests.unit.diagnose.test_stall_observations import job, written

HOSTILE = "</script><img src=x onerror=alert(1)>"
STATUS = "document.getElementById('status').textContent"


@pytest.fixture
def opened(browser: BrowserSession, tmp_path: Path) -> BrowserSession:
    page, profile = tmp_path / "page.html", written(tmp_path / "profile.jsonl", job(file=HOSTILE))
    result = CliRunner().invoke(cli, ["diagnose", "stall", str(profile), "-o", str(page)])
    assert result.exit_code == 3, result.output
    browser.open(page.as_uri())
    browser.wait(STATUS)
    return browser


def test_the_verdict_is_in_words_and_names_are_text(opened: BrowserSession) -> None:
    sentence = opened.evaluate("document.querySelector('.verdict h3').textContent")
    assert sentence.startswith("Stall: python3 (PID 4242), main thread (TID 4242), writes 50.0 MB to ")
    assert HOSTILE in sentence
    assert opened.evaluate("document.querySelectorAll('img').length") == 0
    assert "ThreadPoolExecutor" in opened.evaluate("document.querySelector('.verdict pre').textContent")


def test_arrow_keys_say_what_each_step_went_into(opened: BrowserSession) -> None:
    assert opened.evaluate(STATUS).startswith("step 0: 80.0 ms; sleep 20.0 ms")
    opened.evaluate(
        "for (let at = 0; at < 4; at++) document.querySelector('#plot canvas')"
        ".dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown'}))"
    )
    assert opened.evaluate(STATUS) == "step 4: 180 ms; sleep 20.0 ms, file_write 100 ms"


def test_the_table_has_a_row_for_each_cause(opened: BrowserSession) -> None:
    rows = opened.evaluate(
        "[...document.querySelectorAll('#spent tr')].map((row) => row.cells[0].textContent)"
    )
    assert rows == ["cause", "sleep", "file_write", "running"]
