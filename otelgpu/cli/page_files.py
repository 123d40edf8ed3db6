"""The files of the page that flame graphs and heat maps are drawn by, as they are installed."""

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
