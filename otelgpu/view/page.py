"""One HTML page of the viewer's files and its data: no other file, no network. Pure.

Scripts and styles are named by their hashes in the page's content security policy, so nothing else in it can run or
load, whatever names and attributes hold. Data are JSON in ``script`` elements that are no scripts; the program puts
text into the page as text, never as HTML.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

SCRIPTS: Final = (
    *("columns.js", "shown.js", "traces.js", "ranks.js", "lists.js", "sums.js", "format.js", "filter.js"),
    *("dom.js", "charts.js", "table.js", "timeline.js", "waterfall.js", "details.js", "overview.js"),
    *("empty.js", "help.js", "find.js", "pane.js", "splitter.js", "app.js"),
)
"""In the order in which they become one."""

# In JSON these occur in strings only. "<" opens "</script>" and "<!--"; the other two were line ends in JavaScript.
_ESCAPES: Final = (("<", "\\u003c"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))

_FRAME: Final = '<iframe id="profile" title="Flame graphs" hidden srcdoc="{}"></iframe>'
_PLACE: Final = re.compile(r"\{\{(\w+)\}\}")


class Parts(Struct, frozen=True, kw_only=True):
    """The text of the files in ``page/``."""

    index: str
    style: str
    scripts: Sequence[str]  # of SCRIPTS


class Page(Struct, frozen=True, kw_only=True):
    """What comes before and after the data, which may be long."""

    before: str
    after: str
    policy: str
    script: str  # as policies name it, by its hash
    style: str


class Framed(Struct, frozen=True, kw_only=True):
    """A whole page that stands within another, whose policy holds for it too."""

    page: Page
    text: str


def page(
    parts: Parts,
    source: str,
    *,
    live: bool = False,
    shown: Mapping[str, Any] | None = None,
    framed: Framed | None = None,
) -> Page:
    """A page about ``source``, a file's name. ``live``: it asks where it came from for more data.

    ``shown``: what its program is given of the families (:mod:`otelgpu.view.shown`), for one that asks. ``framed``: the
    page of its flame graphs, for one that has a place for it.
    """
    program = f'"use strict";\n(() => {{\n{"".join(parts.scripts)}\n}})();\n'
    script, style = f"'{_hash(program)}'", f"'{_hash(parts.style)}'"
    policy = "; ".join(
        (
            "default-src 'none'",
            " ".join(("script-src", script, *([framed.page.script] if framed else []))),
            " ".join(("style-src", style, *([framed.page.style] if framed else []))),
            "img-src data:",  # its icon
            "connect-src 'self'" if live else "connect-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    texts = {
        "policy": html.escape(policy),
        "title": html.escape(source),
        "style": parts.style,
        "profile": _FRAME.format(html.escape(framed.text)) if framed else "",
        "source": embedded({"name": source, "live": live} | ({"shown": shown} if shown is not None else {})),
    }
    above, _, below = parts.index.partition("{{data}}")
    before = _PLACE.sub(lambda place: texts[place[1]], above)
    after = below.replace("{{program}}", program)
    return Page(before=before, after=after, policy=policy, script=script, style=style)


def data_element(batch: dict[str, Any]) -> str:
    """A batch of columns as an element of the page."""
    return f'<script type="application/json" class="batch">{embedded(batch)}</script>\n'


def embedded(value: Any) -> str:
    """JSON that may stand in a ``script`` element."""
    text = msgspec.json.encode(value).decode()
    for character, escape in _ESCAPES:
        text = text.replace(character, escape)
    return text


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
