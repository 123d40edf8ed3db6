"""``--update-golden``: write what the program gives now instead of comparing with what is stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the stored files of tests/golden")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare text with a stored file line by line, or store it."""

    def check(name: str, text: str) -> None:
        path = FOLDER / name
        if request.config.getoption("--update-golden", default=False):
            path.write_text(text, encoding="utf-8")
            return
        stored = path.read_text(encoding="utf-8") if path.exists() else ""
        assert text.splitlines() == stored.splitlines(), (
            f"{path} is different. When the change is meant: "
            "python -m pytest tests/golden --update-golden, and commit the difference"
        )

    return check
