"""Heat maps: when observations were made, a column for each second, a cell for each 20 ms. Pure.

In: batches with times. Out: the page of :mod:`~otelgpu.render.flame_graph` with a map above the graph; a
rectangle in the map selects the graph of that time. Besides the tree, the page has the observations as counts
of (cell, node).

Example: an observation 12.345 s after the first second began is in column 12, row 17 (340 to 360 ms). Source of
the form: https://www.brendangregg.com/blog/2018-11-08/flamescope-pattern-recognition.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from otelgpu.model.codes import combine, examples
from otelgpu.model.profiles import ProfileColumns
from otelgpu.render.flame_graph import observed_columns, written
from otelgpu.render.observed import observed_nodes
from otelgpu.render.page_columns import column
from otelgpu.render.stack_tree import StackTree, fold, trees_of
from otelgpu.render.stacks import Codes, Values
from otelgpu.view.page import Parts

SECOND_NS: Final = 1_000_000_000
CELL_MS: Final = 20
ROWS: Final = 1000 // CELL_MS
MOST_COLUMNS: Final = 3600
"""An hour; of more, the last."""


def heat_map(batches: Sequence[ProfileColumns], parts: Parts, *, title: str = "Profile") -> bytes:
    """A page with a map and a flame graph for each sample type. Types without times have the graph only."""
    types = []
    for of, some in trees_of(batches):
        tree = fold(of)
        heat = cells(tree, some)
        types.append(observed_columns(tree, some) | ({"heat": heat} if heat else {}))
    types.sort(key=lambda each: "heat" not in each)
    return written(parts, title, types)


def cells(tree: StackTree, batches: Sequence[ProfileColumns]) -> dict[str, Any] | None:
    """Observations by cell and node, for the page; None where no batch has times.

    ``cell`` is column times rows plus row, ``count`` how many there were, ``value`` their sum, left out where each
    counts the same, ``each``.
    """
    timed = [
        (batch, of_batch)
        for batch, of_batch in zip(batches, observed_nodes(tree, batches), strict=True)
        if batch.time_unix_ns is not None
    ]
    if not timed:
        return None
    times = np.concatenate([batch.time_unix_ns for batch, _ in timed if batch.time_unix_ns is not None])
    nodes: Codes = np.concatenate([of_batch for _, of_batch in timed])
    values: Values = np.maximum(np.concatenate([batch.value for batch, _ in timed]).astype(np.float64), 0)
    first, last = int(times.min()) // SECOND_NS, int(times.max()) // SECOND_NS
    begin = max(first, last - MOST_COLUMNS + 1)
    kept = times >= np.uint64(begin * SECOND_NS)
    left_out = (
        len(times) - int(np.count_nonzero(kept)) + sum(len(b) for b in batches if b.time_unix_ns is None)
    )
    times, nodes, values = times[kept], nodes[kept], values[kept]
    cell = ((times - np.uint64(begin * SECOND_NS)) // np.uint64(CELL_MS * 1_000_000)).astype(np.intp)
    width = last - begin + 1
    code, size = combine([(cell, width * ROWS), (nodes, len(tree))], len(cell))
    example = examples(code, size)
    count = np.bincount(code, minlength=size)
    sums = np.bincount(code, weights=values, minlength=size)
    is_even = bool((values == values[0]).all())
    note = f"{len(times):,} observations in {width:,} s; drag over cells to see their flame graph"
    return {
        "columns": width,
        "rows": ROWS,
        "cell_ms": CELL_MS,
        "begin_unix_s": begin,
        "cell": column(cell[example], "I"),
        "node": column(nodes[example], "I"),
        "count": column(count, "I"),
        "value": "" if is_even else column(sums, "d"),
        "each": float(values[0]) if is_even else 0.0,
        "left_out": left_out,
        "note": f"{note}; {left_out:,} have no place in it" if left_out else note,
    }
