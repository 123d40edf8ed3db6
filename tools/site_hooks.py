"""Hooks of MkDocs: what the manual leaves to a folder's listing, and links to files that are not of it.

A family that is added has a page in ``docs/reference/signals/`` and edits no other: so the navigation names that
folder, and pages link to it, as GitHub shows it. The site has no listings and no files beside the manual, and the
repository has no address.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

_LINK: Final = re.compile(r"\[([^][]*)\]\(([\w./-]+)(#[^()\s]*)?\)")


def on_config(config: Any) -> Any:
    """Called once. A folder in the navigation (``name/``) becomes its pages."""
    config.nav = _expanded(config.nav, Path(config.docs_dir))
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called for each page; ``page.file.src_uri`` is its path in ``docs/``.

    A link to a folder leads to the page of its name, and one that leaves the manual becomes its text and the file's
    path from the repository's root.
    """
    folder = posixpath.dirname(page.file.src_uri)
    return _LINK.sub(lambda found: _shown(found, folder), markdown)


def _expanded(entries: list[Any], docs: Path) -> list[Any]:
    found: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict):
            found.append(
                {title: _expanded(of, docs) if isinstance(of, list) else of for title, of in entry.items()}
            )
        elif entry.endswith("/"):
            found += sorted(str(path.relative_to(docs)) for path in (docs / entry).glob("*.md"))
        else:
            found.append(entry)
    return found


def _shown(found: re.Match[str], folder: str) -> str:
    text, target, anchor = found[1], found[2], found[3] or ""
    path = posixpath.normpath(posixpath.join(folder, target))
    if path.startswith("../"):
        path = path.removeprefix("../")
        return f"`{path}`" if text in (path, posixpath.basename(path)) else f"{text} (`{path}`)"
    if target.endswith("/"):
        return f"[{text}]({target.rstrip('/')}.md)"
    return f"[{text}]({target}{anchor})"
