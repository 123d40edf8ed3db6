"""HTML as a browser would see it: elements with their attributes and text, and comments."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser


class Elements(HTMLParser):
    """Those of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.comments: list[str] = []
        self.inside = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        self.found.append((tag, dict(attrs), []))
        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        """An element ends: what follows is of none."""
        self.inside = False

    def handle_data(self, data: str) -> None:
        """Text."""
        if self.inside:
            self.found[-1][2].append(data)

    def handle_comment(self, data: str) -> None:
        """A comment."""
        self.comments.append(data)

    def of(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        """Attributes and text of each element of that name."""
        return [(attributes, "".join(text)) for name, attributes, text in self.found if name == tag]


def policy_hash(text: str) -> str:
    """How a content security policy names a script or a style by what it says."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
