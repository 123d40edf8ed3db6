"""Flame graphs as one SVG: a picture in a document, and with its script a page of its own. Pure.

In: batches. Out: bytes. Frames narrower than :data:`NARROWEST` of the picture are folded into one box and
counted. The first sample type is drawn, or both of CPU and device; of others a page reports
(:mod:`~otelgpu.render.flame_graph`).

Names are text content and escaped; the script reads numbers from attributes and text from ``title`` elements.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from otelgpu.model.profiles import ProfileColumns
from otelgpu.render.frames import Kind
from otelgpu.render.page_columns import clean
from otelgpu.render.stack_tree import StackTree, differences, fold, trees

WIDTH: Final = 1200
ROW: Final = 17
TOP: Final = 52
NARROWEST: Final = 0.4 / WIDTH
MOST_BOXES: Final = 20_000
_LETTER: Final = 6.2
"""Pixels of a letter of the font, at most."""

_COLOURS: Final = {
    Kind.PYTHON: "#8fc7f2",
    Kind.NATIVE: "#f4b981",
    Kind.KERNEL: "#f0dc82",
    Kind.GPU: "#84d9b3",
    Kind.PROCESS: "#cdd3da",
    Kind.MISSING: "#d9b8c4",
    Kind.FOLDED: "#e3e6ea",
}
_NOT_IN_XML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")

_STYLE: Final = """
text { font-size: 10px; fill: #16202a; pointer-events: none }
.h { font-size: 13px }
.b { cursor: pointer; pointer-events: all; text-decoration: underline }
g.f { cursor: pointer }
g.f:hover rect, g.f:focus rect { stroke: #16202a }
g.m rect { fill: #e58be0 }
"""

# Zoom by click or Enter, search by the field of the page's own (prompt), reset by Escape or the button.
_SCRIPT: Final = """
(() => {
  const all = [...document.querySelectorAll("g.f")];
  const width = %d, letter = %s;
  const said = document.getElementById("said");
  // As wide as the window, and as high as that makes it: what is below is scrolled to.
  const root = document.documentElement;
  const fit = () => { root.style.height = `${innerWidth * root.viewBox.baseVal.height / width}px`; };
  window.addEventListener("resize", fit);
  fit();
  const place = (g, left, scale) => {
    const [from, wide] = [+g.dataset.x, +g.dataset.w];
    const [x, w] = [Math.max((from - left) * scale, 0), Math.min((from + wide - left) * scale, width)];
    const shown = w - x >= 0.3;
    g.style.display = shown ? "" : "none";
    if (!shown) return;
    const [box, text] = [g.querySelector("rect"), g.querySelector("text")];
    box.setAttribute("x", x);
    box.setAttribute("width", Math.max(w - x - 0.5, 0.3));
    text.setAttribute("x", x + 3);
    const name = g.dataset.name ?? "", room = Math.floor((w - x - 6) / letter);
    text.textContent = room < 3 ? "" : name.length > room ? name.slice(0, room - 1) + "…" : name;
  };
  const zoom = (g) => {
    const [left, wide] = g ? [+g.dataset.x, +g.dataset.w] : [0, width];
    for (const each of all) place(each, left, width / wide);
    said.textContent = g ? g.querySelector("title").textContent.replaceAll("\\n", " · ") : "";
  };
  const search = () => {
    const wanted = (prompt("Search frames") ?? "").toLowerCase();
    let [until, sum] = [[], 0];
    for (const g of all) {
      const is = wanted && g.dataset.name.toLowerCase().includes(wanted);
      g.classList.toggle("m", Boolean(is));
      if (!is) continue;
      const [from, end] = [+g.dataset.x, +g.dataset.x + +g.dataset.w];
      if (!until.some(([one, other]) => from >= one - 1e-6 && end <= other + 1e-6)) {
        until.push([from, end]);
        sum += end - from;
      }
    }
    said.textContent = wanted ? `${(100 * sum / width).toFixed(1)} %% under frames with "${wanted}"` : "";
  };
  for (const g of all) {
    g.addEventListener("click", () => zoom(g));
    g.addEventListener("keydown", (event) => event.key === "Enter" && zoom(g));
  }
  document.getElementById("reset").addEventListener("click", () => zoom(null));
  document.getElementById("search").addEventListener("click", search);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") zoom(null);
    if (event.key === "/") search();
  });
})();
"""


def flame_svg(batches: Sequence[ProfileColumns], *, title: str = "Profile") -> bytes:
    """The picture of the first sample type."""
    made = trees(batches)
    return drawn(fold(made[0], most=MOST_BOXES, least_share=NARROWEST), title) if made else drawn(None, title)


def differential_svg(
    before: Sequence[ProfileColumns],
    after: Sequence[ProfileColumns],
    *,
    labels: tuple[str, str] = ("before", "after"),
    title: str = "",
    normalise: bool = True,
) -> bytes:
    """The picture of two profiles: as wide as the second is, red where it has more, blue where less."""
    title = title or f"{labels[0]} → {labels[1]}"
    made = differences(before, after)
    if not made:
        return drawn(None, title)
    tree = fold(made[0], most=MOST_BOXES, least_share=NARROWEST)
    return drawn(tree, title, labels=labels, normalise=normalise)


def drawn(
    tree: StackTree | None, title: str, *, labels: tuple[str, str] | None = None, normalise: bool = True
) -> bytes:
    """A tree as SVG."""
    levels = int(tree.depth.max()) + 1 if tree is not None else 1
    height = TOP + levels * ROW + 8
    boxes = _boxes(tree, labels, normalise, height) if tree is not None and tree.total[0].any() else []
    what = f"{tree.type.type} ({tree.type.unit})" if tree is not None else "nothing was observed"
    observed = f", {tree.observations:,} observations" if tree is not None else ""
    folded = int(tree.folded.sum()) if tree is not None else 0
    note = f"; {folded:,} frames too narrow to draw" if folded else ""
    script = (_SCRIPT % (WIDTH, _LETTER)).replace("]]>", "]] >")
    parts = [
        '<?xml version="1.0" encoding="UTF-8"?>\n',
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="100%"',
        f' role="img" aria-label="{escaped(title)}" font-family="ui-monospace, DejaVu Sans Mono, monospace">\n',
        f"<style>{_STYLE}</style>\n",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n',
        f'<text x="8" y="18" class="h">{escaped(title)}</text>\n',
        f'<text x="8" y="34">{escaped(f"{what}{observed}{note}")}</text>\n',
        '<text id="said" x="8" y="47"></text>\n',
        f'<text id="search" class="b" x="{WIDTH - 110}" y="18">Search</text>',
        f'<text id="reset" class="b" x="{WIDTH - 50}" y="18">Reset</text>\n',
        *boxes,
        f"<script><![CDATA[{script}]]></script>\n</svg>\n",
    ]
    return "".join(parts).encode("utf-8", "replace")


def _boxes(tree: StackTree, labels: tuple[str, str] | None, normalise: bool, height: int) -> list[str]:
    side = tree.total.shape[1] - 1
    if tree.total[0, side] <= 0:
        side = 0  # there is nothing on the other
    total = tree.total[:, side]
    start = _starts(tree, total)
    scale = WIDTH / total[0]
    both = tree.total.copy()
    if labels is not None and normalise and (tree.total[0] > 0).all():
        both[:, 0] *= both[0, 1] / both[0, 0]
    left, wide = (start * scale), (total * scale)
    boxes = []
    rows = zip(
        tree.frame.tolist(),
        tree.depth.tolist(),
        np.round(left, 3).tolist(),
        np.round(wide, 3).tolist(),
        tree.folded.tolist(),
        both.tolist(),
        tree.total.tolist(),
        tree.own[:, side].tolist(),
        strict=True,
    )
    for frame, depth, x, width, folded, shown, values, own in rows:
        if width < WIDTH * NARROWEST / 2:
            continue
        if depth == 0:
            label, kind, place = "all", Kind.PROCESS, ""
        else:
            of = tree.frames[frame]
            label, kind = of.label, of.kind
            place = f"{of.file}:{of.line}" if of.line else of.file
        if folded:
            label = f"({folded:,} narrower frames)"
        colour = _COLOURS[kind] if labels is None else change_colour(shown[0], shown[1])
        y = height - 8 - (depth + 1) * ROW
        share = 100 * values[side] / tree.total[0, side]
        reported = [
            label,
            place,
            f"{quantity(values[side], tree.type.unit)} ({share:.2f} %), self {quantity(own, tree.type.unit)}",
        ]
        if labels is not None:
            reported[2] = ", ".join(
                f"{name} {quantity(value, tree.type.unit)} ({100 * value / whole if whole else 0:.2f} %)"
                for name, value, whole in zip(labels, values, tree.total[0].tolist(), strict=True)
            )
        room = int((width - 6) / _LETTER)
        text = "" if room < 3 else label if len(label) <= room else f"{label[: room - 1]}…"
        boxes.append(
            f'<g class="f" tabindex="0" data-x="{x}" data-w="{width}" data-name="{escaped(label)}">'
            f"<title>{escaped(chr(10).join(filter(None, reported)))}</title>"
            f'<rect x="{x}" y="{y}" width="{max(width - 0.5, 0.3):.3f}" height="{ROW - 1}" fill="{colour}"/>'
            f'<text x="{x + 3:.3f}" y="{y + 12}">{escaped(text)}</text></g>\n'
        )
    return boxes


def _starts(
    tree: StackTree, total: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Where each node begins: where its parent does, and behind the siblings before it."""
    start = np.zeros(len(tree))
    filled = np.zeros(len(tree))
    parents, totals = tree.parent.tolist(), total.tolist()
    starts, filled_list = start.tolist(), filled.tolist()
    for node in range(1, len(tree)):
        parent = parents[node]
        starts[node] = filled_list[node] = filled_list[parent]
        filled_list[parent] += totals[node]
    return np.array(starts)


def change_colour(before: float, after: float) -> str:
    """From blue (gone) over grey (equal) to red (new)."""
    most = max(before, after)
    share = (after - before) / most if most > 0 else 0.0
    towards = (255, 118, 100) if share > 0 else (104, 164, 255)
    red, green, blue = (round(243 + (each - 243) * abs(share)) for each in towards)
    return f"#{red:02x}{green:02x}{blue:02x}"


def quantity(value: float, unit: str) -> str:
    """A value with its unit, as it is read."""
    steps = {
        "nanoseconds": ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")),
        "bytes": ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    }.get(unit)
    if steps is None:
        return f"{round(value):,} {unit}"
    size, name = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    return f"{value / size:.{0 if size == 1 else 2}f} {name}"


def escaped(text: str) -> str:
    """Text for an element or an attribute; what XML cannot hold becomes U+FFFD."""
    return html.escape(_NOT_IN_XML.sub("\ufffd", clean(text)))
