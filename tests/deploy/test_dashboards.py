"""deploy/grafana/dashboards by Grafana's own schema; what they ask is tried in tests/backends/test_dashboards.py."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.backends.programs import CACHE, missing_program
from tests.deploy.manifests import DEPLOY

SCHEMA = CACHE / "grafana_schema"
FILES = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))


def refused(*files: Path) -> str:
    """What Grafana's schema has against them."""
    if missing := missing_program("grafana_schema", SCHEMA, "grafana/go.mod"):
        pytest.skip(missing)
    done = subprocess.run([SCHEMA, *files], capture_output=True, text=True, timeout=60, check=False)
    return done.stderr if done.returncode else ""


def test_they_are_dashboards_by_grafanas_schema() -> None:
    assert len(FILES) == 6
    assert not refused(*FILES)


def spoil(panel: dict[str, Any]) -> None:
    panel["targets"][0]["exprr"] = "up"


def mistype(panel: dict[str, Any]) -> None:
    panel["options"]["tooltip"]["mode"] = 7


@pytest.mark.parametrize("change", [spoil, mistype])
def test_what_is_none_is_refused(tmp_path: Path, change: Any) -> None:
    content = json.loads(FILES[0].read_text())
    change(content["panels"][1])
    (tmp_path / "board.json").write_text(json.dumps(content))
    assert refused(tmp_path / "board.json")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.stem))
def test_panels_lie_side_by_side(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(path.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
