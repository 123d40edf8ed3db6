"""Live attacks: somebody of another user, in a container of its own, against an agent and a victim beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.stage import Stage, opened_stage
from tests.kernel.conftest import kernel as kernel
from tests.rig.marks import mark_folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_folder(items, Path(__file__).parent, pytest.mark.kernel)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """An agent that observes two containers; what it exports is in ``tmp_path``."""
    with opened_stage(tmp_path) as made:
        yield made
