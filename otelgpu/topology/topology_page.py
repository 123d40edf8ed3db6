"""The page of a topology: a tile for each node, and of the chosen one its devices and connections. Pure.

In: the graph. Out: one HTML page that loads nothing. Queue pairs are summed up by device and other end: the page of a
thousand nodes has a row for each pair of devices and pods, not for each queue pair.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import msgspec

from otelgpu.render.page_columns import clean
from otelgpu.topology.affinity import WORDS
from otelgpu.topology.graph import KINDS, Node, Topology
from otelgpu.topology.graph import node_of as node_of_place
from otelgpu.view.page import Parts, data_element, page

MOST_CONNECTIONS: Final = 200_000
MOST_MEMBERS: Final = 100_000
"""Beyond, the first are in the page, and it says so."""


def topology_page(topology: Topology, parts: Parts, *, title: str) -> bytes:
    """``parts``: the files of ``page/`` beside this module, and those that pages of diagnoses have."""
    made = page(parts, clean(title))
    data = {
        "nodes": [_node(node) for node in topology.nodes],
        "connections": _connections(topology)[:MOST_CONNECTIONS],
        "queue_pairs": len(topology.queue_pairs),
        "communicators": _communicators(topology),
        "calls": msgspec.to_builtins(topology.calls),
        "marks": [msgspec.to_builtins(mark) | {"node": node_of_place(mark.place)} for mark in topology.marks],
        "kinds": dict(KINDS),
        "paths": dict(WORDS),
        "limits": [*topology.limits, *_cut(topology)],
        "rejected": dict(topology.rejected),
    }
    return f"{made.before}{data_element(data)}{made.after}".encode("utf-8", "replace")


def _node(node: Node) -> dict[str, Any]:
    """Without what the page does not show. ``affinity``: a row for each GPU, of places in ``paths``, −1: not known."""
    numbers = {path: number for number, path in enumerate(WORDS)}
    known = {(each.gpu, each.nic): numbers[each.path] for each in node.affinities}
    shown: dict[str, Any] = msgspec.to_builtins(node)
    if known:
        shown["affinity"] = [[known.get((gpu.id, nic.id), -1) for nic in node.nics] for gpu in node.gpus]
    shown.pop("affinities", None)
    for device in (*shown.get("gpus", ()), *shown.get("nics", ())):
        device.pop("pci_path", None)
    return shown


def _connections(topology: Topology) -> list[list[Any]]:
    """(node, device, own process, other node, other device, other pod or GID, communicator, how many, failed)."""
    places = {node.name: place for place, node in enumerate(topology.nodes)}
    counts: Counter[tuple[Any, ...]] = Counter()
    failed: Counter[tuple[Any, ...]] = Counter()
    for pair in topology.queue_pairs:
        other = topology.queue_pairs[pair.peer] if pair.peer >= 0 else None
        key = (
            places[pair.node],
            pair.device,
            pair.process,
            places.get(pair.peer_node, -1),
            other.device if other is not None else "",
            pair.peer_pod or (pair.peer_gid if other is None else ""),
            pair.communicator,
        )
        counts[key] += 1
        failed[key] += pair.state in ("error", "send_queue_error")
    return [[*key, count, failed[key]] for key, count in counts.items()]


def _communicators(topology: Topology) -> list[dict[str, Any]]:
    """Members as runs of ranks on a node: (place of the node, first rank, last rank)."""
    places = {node.name: place for place, node in enumerate(topology.nodes)}
    found, left = [], MOST_MEMBERS
    for each in topology.communicators:
        runs: list[list[int]] = []
        for member in each.members:
            node = places[member.node]
            if runs and runs[-1][0] == node and runs[-1][2] == member.rank - 1:
                runs[-1][2] = member.rank
            else:
                runs.append([node, member.rank, member.rank])
        left -= len(runs)
        shown = {"id": each.id, "ranks": each.ranks, "job": each.job, "seen": len(each.members)}
        found.append(shown | {"runs": runs if left >= 0 else []})
    return found


def _cut(topology: Topology) -> list[str]:
    more = len(_connections(topology)) - MOST_CONNECTIONS
    return [f"{more} connections are not in the page: see --json"] if more > 0 else []
