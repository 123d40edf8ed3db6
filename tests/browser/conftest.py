"""Tests in a real browser; where there is none, each is skipped with the command that installs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.browser import missing_browser
from tests.rig.browser_session import BrowserSession, browser_session
from tests.rig.marks import mark_folder


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
