"""The manual as a site: each page has its place in the navigation, and what leaves the manual is no link there."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tools.document import DOCS, ROOT
from tools.site_hooks import on_config, on_page_markdown

CONFIGURATION = ROOT / "mkdocs.yml"


def pages_of(entries: list[Any]) -> list[str]:
    """The pages of a navigation, in its order."""
    found = []
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            found += pages_of(value) if isinstance(value, list) else [value]
    return found


def test_the_navigation_has_every_page_once() -> None:
    text = CONFIGURATION.read_text().partition("\nnav:\n")[2]  # before it stand names of functions
    config = on_config(SimpleNamespace(nav=yaml.safe_load(text), docs_dir=str(DOCS)))
    assert sorted(pages_of(config.nav)) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_every_page_begins_with_its_title() -> None:
    assert [path for path in DOCS.rglob("*.md") if not path.read_text().startswith("# ")] == []


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        ("[steps](../reference/steps.md#training)", "[steps](../reference/steps.md#training)"),
        ("[each family](../reference/signals/)", "[each family](../reference/signals.md)"),
        ("[SECURITY.md](../../SECURITY.md)", "`SECURITY.md`"),
        ("[the parser](../../otelgpu/a.py#x)", "the parser (`otelgpu/a.py`)"),
        ("[there](https://opentelemetry.io/docs/)", "[there](https://opentelemetry.io/docs/)"),
    ],
)
def test_links_that_the_site_has_no_page_for_lead_on_or_are_paths(link: str, shown: str) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="explanation/security.md"))
    assert on_page_markdown(link, page=page) == shown


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("needs mkdocs: make setup")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--strict",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert built.returncode == 0, built.stdout + built.stderr
    assert (tmp_path / "site" / "explanation" / "architecture" / "index.html").is_file()
