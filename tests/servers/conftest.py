"""Real servers are observed by an agent in the running kernel; where that cannot work, each skip proves why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel.conftest import kernel as kernel
from tests.rig.marks import mark_folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_folder(items, Path(__file__).parent, pytest.mark.kernel)
