from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.view.page_program import PageProgram


@pytest.fixture(scope="session")
def program() -> Iterator[PageProgram]:
    running = PageProgram()
    yield running
    running.close()
