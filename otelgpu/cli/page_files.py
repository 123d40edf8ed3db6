"""The files of pages, as they are installed: of flame graphs and heat maps, of diagnoses and of the topology."""

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
    return _diagnosis("otelgpu.diagnose.ranks", "map.js")


def stall_page_files() -> Parts:
    """The text of ``otelgpu/diagnose/stall/page``."""
    return _diagnosis("otelgpu.diagnose.stall", "steps.js")


def memory_page_files() -> Parts:
    """The text of ``otelgpu/diagnose/memory/page``."""
    return _diagnosis("otelgpu.diagnose.memory", "held.js")


def topology_page_files() -> Parts:
    """The text of ``otelgpu/topology/page``."""
    return _diagnosis("otelgpu.topology", "topology.js")


def utilization_page_files() -> Parts:
    """The text of ``otelgpu/diagnose/utilization/page``."""
    return _diagnosis("otelgpu.diagnose.utilization", "figures.js")


def _diagnosis(package: str, script: str) -> Parts:
    """A page of its own, in the frame and style and with the functions that all pages of diagnoses have."""
    shared = resources.files("otelgpu.diagnose").joinpath("page")
    folder = resources.files(package).joinpath("page")
    frame, main = shared.joinpath("frame.html"), folder.joinpath("main.html")
    return Parts(
        index=frame.read_text(encoding="utf-8").replace("{{main}}", main.read_text(encoding="utf-8")),
        style="".join(each.joinpath("style.css").read_text(encoding="utf-8") for each in (shared, folder)),
        scripts=[
            shared.joinpath("verdicts.js").read_text(encoding="utf-8"),
            folder.joinpath(script).read_text(encoding="utf-8"),
        ],
    )
