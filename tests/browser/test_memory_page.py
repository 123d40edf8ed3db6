"""The page of a diagnosis of memory in Chromium: the verdict in words, bars of categories, names as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from otelgpu.cli.page_files import memory_page_files
from otelgpu.diagnose.memory.diagnosis import diagnose
from otelgpu.diagnose.memory.memory_page import memory_page
from otelgpu.diagnose.memory.observations import DEVICE, Place
from tests.rig.browser_session import BrowserSession
from tests.unit.diagnose.test_memory import MIB, process_of, python, seen

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def opened(browser: BrowserSession, tmp_path: Path) -> BrowserSession:
    place = Place(DEVICE, 0, "device", (python(HOSTILE), python("main")))
    report = diagnose(seen(process_of([at * MIB for at in range(1, 11)], place, beside=30 * MIB)))
    path = tmp_path / "page.html"
    path.write_bytes(memory_page(report, memory_page_files(), title=HOSTILE))
    browser.open(path.as_uri())
    browser.wait("document.querySelector('#devices h2').textContent")
    return browser


def test_the_verdict_is_in_words_and_names_are_text(opened: BrowserSession) -> None:
    sentence = opened.evaluate("document.querySelector('.verdict h3').textContent")
    assert sentence.startswith("Memory grows: train.py (PID 7) holds 9.0 MiB more of device 0 by ")
    assert HOSTILE in sentence
    assert opened.evaluate("document.querySelectorAll('img').length") == 0


def test_bars_are_as_wide_as_the_categories_are_large(opened: BrowserSession) -> None:
    widths = opened.evaluate(
        "[...document.querySelectorAll('.held')[0].children].map((part) => part.style.width)"
    )
    assert widths == ["75%", "25%"]
    assert opened.evaluate("document.querySelector('.held').getAttribute('aria-label')") == (
        "weights 30.0 MiB, unknown 10.0 MiB"
    )


def test_tables_have_the_categories_and_places(opened: BrowserSession) -> None:
    rows = opened.evaluate(
        "[...document.querySelectorAll('#devices table')]"
        ".map((table) => [...table.rows].map((row) => row.cells[0].textContent))"
    )
    assert rows[0] == ["category", "weights", "unknown"]
    assert rows[1] == ["place", "load_weights (train.py:1)", f"{HOSTILE} (train.py:1) ← main (train.py:1)"]
