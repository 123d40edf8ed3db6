"""Tests in a real browser; where there is none, each is skipped with the command that installs it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from otelgpu.cli.commands import cli
from tests.rig.browser import missing_browser
from tests.rig.browser_session import BrowserSession, browser_session
from tests.rig.marks import mark_folder

OTELGPU: Final = Path(sys.executable).with_name("otelgpu")
GOLDEN: Final = Path(__file__).resolve().parents[1] / "golden"
Page = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_folder(items, Path(__file__).parent, pytest.mark.backends, missing_browser())


@pytest.fixture(scope="session")
def _running() -> Iterator[BrowserSession]:
    with browser_session() as session:
        yield session


@pytest.fixture
def browser(_running: BrowserSession) -> Iterator[BrowserSession]:
    """A tab; nothing in it may complain."""
    _running.resize(1400, 900)
    _running.open("about:blank")
    _running.complaints.clear()
    _running.requests.clear()
    yield _running
    assert _running.complaints == []


def run(*words: str | Path) -> None:
    """A command in this process: to start another one takes longer than to make a page."""
    done = CliRunner().invoke(cli, list(map(str, words)))
    assert done.exit_code == 0, done.output


@pytest.fixture
def page(tmp_path: Path) -> Page:
    """A page of lines, or of a file or capture; its address."""

    def made(*given: bytes | Path) -> str:
        source = tmp_path / "given.jsonl"
        if isinstance(given[0], Path):
            source = given[0]
        else:
            source.write_bytes(b"".join(line for line in given if isinstance(line, bytes)))
        run("view", source, "--no-open", "-o", tmp_path / "page.html")
        return (tmp_path / "page.html").as_uri()

    return made
