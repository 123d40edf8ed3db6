"""docs/how-to/operations.md: its words about reloads and the endpoint are the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otelgpu.cli.reload import LIVE
from otelgpu.config import Config

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "operations.md").read_text()


def test_every_setting_is_either_live_or_named_nowhere_as_such() -> None:
    listed = re.search(r"<!-- generated: reloaded settings -->(.*?)<!-- end -->", TEXT, re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"`(\w+)`", listed[1])) == LIVE
    assert set(Config.__struct_fields__) >= LIVE


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_every_path_is_described(path: str) -> None:
    assert f"| `{path}` |" in TEXT
