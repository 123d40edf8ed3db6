"""Flame graphs as one HTML page that needs nothing else: of a profile, and of two that are compared. Pure.

In: batches, and the text of the files in ``page/``. Out: the page. Trees go into it as columns
(:mod:`~otelgpu.render.page_columns`), frames as a table. The page's program lays out, filters, searches and zooms; the
most it is given of a tree is bounded (:data:`MOST_NODES`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from otelgpu.model.profiles import ProfileColumns
from otelgpu.render.flame_chart import chart
from otelgpu.render.frames import Frame, Kind
from otelgpu.render.observed import first_seen, threads
from otelgpu.render.page_columns import clean, column
from otelgpu.render.stack_tree import StackTree, differences, fold, trees_of
from otelgpu.view.page import Framed, Page, Parts, data_element, page

SCRIPTS: Final = (
    "columns.js",
    "tree.js",
    "shape.js",
    "threads.js",
    "format.js",
    "colours.js",
    "flame.js",
    "chart.js",
    "heat.js",
    "table.js",
    "state.js",
    "app.js",
)
"""In the order in which they become one."""

KINDS: Final = tuple(Kind)


def flame_graph(batches: Sequence[ProfileColumns], parts: Parts, *, title: str = "Profile") -> bytes:
    """A page with a flame graph for each sample type."""
    return written(parts, title, [observed_columns(fold(of), some) for of, some in trees_of(batches)])


def differential(
    before: Sequence[ProfileColumns],
    after: Sequence[ProfileColumns],
    parts: Parts,
    *,
    labels: tuple[str, str] = ("before", "after"),
    title: str = "",
    normalise: bool = True,
) -> bytes:
    """A page that compares two profiles: as wide as one of them, coloured by what became more and what less.

    ``normalise``: the page opens with the first as if it had the total of the second; it can be switched.
    """
    facts = {"labels": list(map(clean, labels)), "normalise": normalise}
    some = [columns(fold(of)) | facts for of in differences(before, after)]
    return written(parts, title or f"{labels[0]} → {labels[1]}", some)


def framed(batches: Sequence[ProfileColumns], parts: Parts, *, title: str) -> Framed | None:
    """The same page to stand within another; None where nothing was observed."""
    types = [observed_columns(fold(of), some) for of, some in trees_of(batches)]
    if not types:
        return None
    made = page(parts, clean(title))
    return Framed(page=made, text=_whole(made, types))


def written(parts: Parts, title: str, types: Sequence[dict[str, Any]]) -> bytes:
    """The page around trees in columns."""
    return _whole(page(parts, clean(title)), types).encode("utf-8", "replace")


def _whole(made: Page, types: Sequence[dict[str, Any]]) -> str:
    return f"{made.before}{''.join(map(data_element, types))}{made.after}"


def observed_columns(tree: StackTree, batches: Sequence[ProfileColumns]) -> dict[str, Any]:
    """A tree of one profile, with what the page filters and orders it by."""
    made = columns(tree)
    first = first_seen(tree, batches)
    if first is not None:
        made["first"] = column(first, "d")
    if by_thread := threads(tree, batches):
        made["threads"] = by_thread
    if in_time := chart(tree, batches):
        made["chart"] = in_time
    return made


def columns(tree: StackTree) -> dict[str, Any]:
    """A tree as the page's program reads it. Totals, parents and places follow from depths and own values."""
    used = np.unique(tree.frame[1:])
    number = np.zeros(len(tree.frames) + 1, dtype=np.intp)
    number[used] = np.arange(len(used))
    frames = [tree.frames[code] for code in used.tolist()]
    return {
        "type": clean(tree.type.type),
        "unit": clean(tree.type.unit),
        "observations": tree.observations,
        "negative": tree.negative,
        "depth": column(tree.depth, "H" if int(tree.depth.max()) < 1 << 16 else "I"),
        "frame": column(number[tree.frame], "I"),
        "own": [column(np.rint(tree.own[:, side]), "d") for side in range(tree.own.shape[1])],
        "folded": column(tree.folded, "I") if tree.folded.any() else "",
        "frames": frame_columns(frames),
    }


def frame_columns(frames: Sequence[Frame]) -> dict[str, Any]:
    """A table of frames: labels, kinds as positions in :data:`KINDS`, files as positions in ``files``."""
    files = {file: code for code, file in enumerate(dict.fromkeys(frame.file for frame in frames))}
    return {
        "label": [clean(frame.label) for frame in frames],
        "kind": column(np.array([KINDS.index(frame.kind) for frame in frames], dtype=np.uint8), "B"),
        "file": column(np.array([files[frame.file] for frame in frames], dtype=np.uint32), "I"),
        "line": column(np.array([frame.line & 0xFFFF_FFFF for frame in frames], dtype=np.uint32), "I"),
        "files": [clean(file) for file in files],
        "kinds": [kind.value for kind in KINDS],
    }
