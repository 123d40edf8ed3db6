"""A trace in the terminal: its spans as a tree, in order of time, with what one wants to know of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from rich.tree import Tree

from tests.rig.spans import Span

_CHILDREN: Final = 8
_FACTS: Final = (
    "gen_ai.usage.output_tokens",
    "otelgpu.count",
    "cuda.size",
    "cuda.launch.calls",
    "nccl.rank",
    "nccl.ranks.seen",
    "nccl.arrival.last_rank",
    "nccl.arrival.lateness",
)


def trace_tree(spans: Iterable[Span], title: str) -> Tree:
    """The spans of one trace, cut after a few children of each. Those whose parent is not among them are on top."""
    in_order = sorted(spans, key=lambda span: span["start"])
    known = {span["spanId"] for span in in_order}
    children: dict[str, list[Span]] = defaultdict(list)
    for span in in_order:
        parent = span.get("parentSpanId", "")
        children[parent if parent in known else ""].append(span)

    def grow(branch: Tree, parent: str) -> None:
        for span in children[parent][:_CHILDREN]:
            grow(branch.add(_label(span), highlight=False), span["spanId"])
        if len(children[parent]) > _CHILDREN:
            branch.add(f"… {len(children[parent]) - _CHILDREN} more")

    tree = Tree(f"[bold]{title}[/bold]")
    grow(tree, "")
    return tree


def _label(span: Span) -> str:
    facts = " ".join(f"{key}={span['attributes'][key]}" for key in _FACTS if key in span["attributes"])
    return f"{span['name']}  {(span['end'] - span['start']) / 1e6:.3f} ms  [dim]{facts}[/dim]"
