"""A hook of MkDocs: links from the manual to files that are not of it.

In: a page's Markdown. Out: the same, with such a link as its text and the file's path from the repository's root: the
site has no such file, and the repository no address. In the repository the links work as they are.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any, Final

_LINK: Final = re.compile(r"\[([^][]*)\]\((\.\./[^()#\s]*)(?:#[^()\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called for each page; ``page.file.src_uri`` is its path in ``docs/``."""
    folder = posixpath.dirname(page.file.src_uri)
    return _LINK.sub(lambda found: _shown(found, folder), markdown)


def _shown(found: re.Match[str], folder: str) -> str:
    path = posixpath.normpath(posixpath.join(folder, found[2]))
    if not path.startswith("../"):
        return found[0]
    path = path.removeprefix("../")
    return f"`{path}`" if found[1] in (path, posixpath.basename(path)) else f"{found[1]} (`{path}`)"
