"""A trace in the terminal: its spans as a tree, in order of time, with what one wants to know of each.

``python -m examples.trace_tree FILE``: of all requests in a file of OTLP/JSON the one whose first token came last.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.tree import Tree

from tests.rig.spans import Span, read_spans

_CHILDREN: Final = 8
_FIRST_TOKEN: Final = "gen_ai.latency.time_to_first_token"
_FACTS: Final = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "otelgpu.count",
    "cuda.grid.x",
    "cuda.size",
    "cuda.launch.calls",
    "nccl.rank",
    "nccl.ranks.seen",
    "nccl.arrival.last_rank",
    "nccl.arrival.lateness",
)


def trace_tree(spans: Iterable[Span], title: str) -> Tree:
    """The spans of one trace; of each one's children the longest. Those whose parent is not among them are on top."""
    in_order = sorted(spans, key=lambda span: span["start"])
    known = {span["spanId"] for span in in_order}
    children: dict[str, list[Span]] = defaultdict(list)
    for span in in_order:
        parent = span.get("parentSpanId", "")
        children[parent if parent in known else ""].append(span)

    def grow(branch: Tree, parent: str) -> None:
        longest = sorted(children[parent], key=_duration_ns)[-_CHILDREN:]
        for span in sorted(longest, key=lambda span: span["start"]):
            grow(branch.add(_label(span), highlight=False), span["spanId"])
        if len(children[parent]) > _CHILDREN:
            branch.add(f"… {len(children[parent]) - _CHILDREN} more")

    tree = Tree(f"[bold]{title}[/bold]")
    grow(tree, "")
    return tree


def _label(span: Span) -> str:
    facts = " ".join(f"{key}={span['attributes'][key]}" for key in _FACTS if key in span["attributes"])
    return f"{span['name']}  {_duration_ns(span) / 1e6:.3f} ms  [dim]{facts}[/dim]"


def _duration_ns(span: Span) -> int:
    return int(span["end"]) - int(span["start"])


def slowest_first_token(spans: Iterable[Span]) -> list[Span]:
    """The spans of that trace; none where no request has a first token."""
    traces: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        traces[span["traceId"]].append(span)
    found = max(traces.values(), key=lambda trace: max(map(_first_token_s, trace)), default=[])
    return found if any(map(_first_token_s, found)) else []


def _first_token_s(span: Mapping[str, Any]) -> float:
    return float(span["attributes"].get(_FIRST_TOKEN, 0))


def main() -> None:
    """Show it."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.trace_tree", description=__doc__.splitlines()[0]
    )
    parser.add_argument("file", type=Path, help="as --export file:PATH writes it")
    spans = slowest_first_token(read_spans(parser.parse_args().file))
    if not spans:
        raise SystemExit("no request with a first token in it")
    first_token_ms = max(map(_first_token_s, spans)) * 1000
    Console(highlight=False).print(trace_tree(spans, f"first token after {first_token_ms:.1f} ms"))


if __name__ == "__main__":
    main()
