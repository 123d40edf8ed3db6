"""Tests against real backends; where one was not built, each is skipped with the command that builds it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.collector import Collector, missing_collector, running_collector


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = missing_collector()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.backends)
            if missing is not None:
                item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    """A Collector of the test's own, with nothing in its files."""
    with running_collector(tmp_path) as running:
        yield running
