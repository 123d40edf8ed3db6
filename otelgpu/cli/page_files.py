"""The files of pages, as they are installed: of flame graphs and heat maps, and of diagnoses."""

from __future__ import annotations

from importlib import resources

from otelgpu.render.flame_graph import SCRIPTS
from otelgpu.view.page import Parts


def page_files() -> Parts:
    """The text of ``otelgpu/render/page``."""
    folder = resources.files("otelgpu.render").joinpath("page")

    def text(name: str) -> str:
        return folder.joinpath(name).read_text(encoding="utf-8")

    return Parts(index=text("index.html"), style=text("style.css"), scripts=[text(name) for name in SCRIPTS])


def rank_page_files() -> Parts:
    """The text of ``otelgpu/diagnose/ranks/page``."""
    folder = resources.files("otelgpu.diagnose.ranks").joinpath("page")
    index, style, script = (
        folder.joinpath(name).read_text(encoding="utf-8") for name in ("index.html", "style.css", "map.js")
    )
    return Parts(index=index, style=style, scripts=[script])
