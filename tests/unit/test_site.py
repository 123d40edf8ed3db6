"""The manual as a site: each page has its place in the navigation, and what leaves the manual is no link there."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.document import DOCS, ROOT
from tools.site_links import on_page_markdown

CONFIGURATION = ROOT / "mkdocs.yml"


def test_the_navigation_has_every_page_once() -> None:
    navigation = CONFIGURATION.read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"- (?:\w+: )?([\w/-]+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_every_page_begins_with_its_title() -> None:
    assert [path for path in DOCS.rglob("*.md") if not path.read_text().startswith("# ")] == []


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        ("[steps](../reference/steps.md#training)", "[steps](../reference/steps.md#training)"),
        ("[SECURITY.md](../../SECURITY.md)", "`SECURITY.md`"),
        ("[the parser](../../otelgpu/a.py#x)", "the parser (`otelgpu/a.py`)"),
        ("[there](https://opentelemetry.io/docs/)", "[there](https://opentelemetry.io/docs/)"),
    ],
)
def test_links_out_of_the_manual_are_paths(link: str, shown: str) -> None:
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
