"""Marks for all tests of a folder, as its conftest.py sets them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest


def mark_folder(
    items: Iterable[pytest.Item], folder: Path, mark: pytest.MarkDecorator, missing: str | None = None
) -> None:
    """Mark the tests below ``folder``; with ``missing``, what there is not and what to do, they are skipped."""
    for item in items:
        if folder in item.path.parents:
            item.add_marker(mark)
            if missing is not None:
                item.add_marker(pytest.mark.skip(reason=missing))
