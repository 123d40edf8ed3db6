"""No dead link: between pages and into them, from all of the repository, and in what the program prints."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tools.document import DOCS, ROOT

INDEX = DOCS / "index.md"
SOURCES = ("otelgpu", "bpf", "tools", "tests", "examples", "collector-config", "deploy")
"""Folders whose comments and messages name pages by their path from the root."""
SUFFIXES = {".py", ".c", ".h", ".cpp", ".js", ".json", ".sh", ".yaml", ".service", ".toml", ".1", ".txt"}

_LINK = re.compile(r"\]\(([^()#\s]*)(?:#([^()\s]+))?\)")
_NAMED = re.compile(r"(?<![\w/.-])(docs/[\w/-]+\.(?:md|schema\.json))(?:#([\w-]+))?")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_GENERATED_IN_TESTS = {"docs/reference/signals/gpu-hip.md", "docs/reference/signals/noop_records.md"}


def pages() -> list[Path]:
    """All Markdown that is the project's: the manual, and what lies beside the code."""
    roots = [path for path in ROOT.glob("*.md") if not path.is_symlink()]
    beside = [path for folder in (*SOURCES, "changelog.d") for path in (ROOT / folder).rglob("*.md")]
    return [*roots, *DOCS.rglob("*.md"), *beside]


@cache
def anchors(page: Path) -> frozenset[str]:
    """What a page's headings are called in addresses, by GitHub and by the site alike."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return frozenset(
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    )


def dead_links(page: Path, text: str) -> list[str]:
    """Those of ``text``, read as if it stood in ``page``."""
    # A release joins the fragments in CHANGELOG.md.
    folder = ROOT if page.parent.name == "changelog.d" else page.parent
    found = []
    for target, anchor in _LINK.findall(_CODE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue  # another site's
        path = (folder / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            found.append(f"{target}#{anchor}" if anchor else target)
    return found


def test_links_lead_somewhere() -> None:
    found = {str(page.relative_to(ROOT)): dead_links(page, page.read_text()) for page in pages()}
    assert len(found) > 100
    assert {page: dead for page, dead in found.items() if dead} == {}


def test_a_dead_link_or_anchor_is_found() -> None:
    text = "[a](no-such.md) [b](index.md#no-such) [c](index.md) [d](https://no-such.example) `[e](no.md)`"
    assert dead_links(INDEX, text) == ["no-such.md", "index.md#no-such"]


def test_pages_that_the_code_names_exist() -> None:
    files = [ROOT / "Makefile", ROOT / "pyproject.toml", *pages(), *(DOCS / "man").glob("*.1")]
    files += [path for each in SOURCES for path in (ROOT / each).rglob("*") if path.suffix in SUFFIXES]
    dead, seen = [], 0
    for path in files:
        for target, anchor in _NAMED.findall(path.read_text(errors="replace")):
            seen += 1
            page = ROOT / target
            if target in _GENERATED_IN_TESTS or (page.exists() and (not anchor or anchor in anchors(page))):
                continue
            dead.append(f"{path.relative_to(ROOT)}: {target}#{anchor}")
    assert seen > 100  # the pattern still finds them
    assert dead == []


def test_every_page_is_reached_from_the_index() -> None:
    reached, todo = set(), [INDEX]
    while todo:
        page = todo.pop()
        todo += page.glob("*.md") if page.is_dir() else ()  # a link to a folder is one to what it lists
        if page in reached or not page.is_relative_to(DOCS) or page.suffix != ".md" or not page.is_file():
            continue
        reached.add(page)
        todo += [(page.parent / target).resolve() for target, _ in _LINK.findall(page.read_text()) if target]
    assert set(DOCS.rglob("*.md")) - reached == set()
