"""The graph as lines of a terminal: clusters, racks, nodes, and what is in each; what is fine is collapsed. Pure.

A line is (depth, text, kind of its worst mark or ""). Texts hold names of the input: who prints
them makes them printable.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from otelgpu.topology.affinity import WORDS
from otelgpu.topology.graph import (
    KINDS,
    Gpu,
    Mark,
    Nic,
    Node,
    Process,
    QueuePair,
    Topology,
    communicator_place,
    gpu_place,
    nic_place,
    node_place,
)
from otelgpu.topology.graph import node_of as node_of_place

Line = tuple[int, str, str]

MOST_OPEN: Final = 4
"""Nodes that are shown whole, where none is named; of more only what is marked."""
MOST_MARKED: Final = 20
_MOST_LISTED: Final = 12
_NEAREST: Final = tuple(WORDS)


def lines(topology: Topology, *, expand: Sequence[str] = (), everything: bool = False) -> Iterator[Line]:
    """``expand``: names of nodes to show whole; with ``everything`` all are."""
    shown = _Shown(topology, expand, everything=everything)
    nodes = sorted(topology.nodes, key=_where)
    groups = [(where, list(some)) for where, some in groupby(nodes, key=_where_but_name)]
    fine = [each for each in groups if each[0][1] and not any(map(shown.is_open, each[1]))]
    if len(fine) <= MOST_OPEN:
        fine = []
    for (cluster, rack), inside in groups:
        if ((cluster, rack), inside) in fine:
            continue
        called = rack if rack.startswith("rack") else f"rack {rack}"
        name = ", ".join(word for word in (cluster and f"cluster {cluster}", rack and called) if word)
        if name:
            yield 0, f"{name}: {_counted(inside)}", shown.worst(inside)
        for node in inside:
            if shown.is_open(node):
                yield from _node(shown, node, 1 if name else 0)
        closed = [node for node in inside if not shown.is_open(node)]
        if closed:
            kind = shown.worst(closed)
            yield 1 if name else 0, f"{_names([node.name for node in closed])}: {_counted(closed)}", kind
    if fine:
        inside = [node for _, some in fine for node in some]
        names = _names([rack for (_, rack), _ in fine])
        yield 0, f"{names}: {len(fine)} racks with nothing marked, {_counted(inside)}", ""
    yield from _elsewhere(topology, shown.marks)


class _Shown:
    """What is open, and what is wrong where."""

    def __init__(self, topology: Topology, expand: Sequence[str], *, everything: bool) -> None:
        self.topology, self.marks = topology, by_place(topology.marks)
        self.pairs: dict[str, list[QueuePair]] = defaultdict(list)
        for pair in topology.queue_pairs:
            self.pairs[pair.node].append(pair)
        kinds: dict[str, list[str]] = defaultdict(list)
        for mark in topology.marks:
            kinds[node_of_place(mark.place)].append(mark.kind)
        self._worst = {node: _worst(some) for node, some in kinds.items()}
        names = [node.name for node in topology.nodes]
        is_small = not expand and len(names) <= MOST_OPEN
        self._whole = set(names if everything or is_small else expand)
        marked = [] if expand else [name for name in names if self._worst.get(name)]
        self._open = self._whole | set(marked[:MOST_MARKED])

    def is_open(self, node: Node) -> bool:
        """Whether it has lines of its own."""
        return node.name in self._open

    def is_whole(self, node: Node) -> bool:
        """Whether all of it is shown, or only what is marked."""
        return node.name in self._whole

    def worst(self, nodes: Sequence[Node]) -> str:
        """The worst kind of mark in any of them."""
        return _worst([self._worst.get(node.name, "") for node in nodes])


def _where(node: Node) -> tuple[str, str, str]:
    return node.cluster, node.rack, node.name


def _where_but_name(node: Node) -> tuple[str, str]:
    return node.cluster, node.rack


def by_place(marks: Sequence[Mark]) -> Mapping[str, Sequence[Mark]]:
    """Marks of each place."""
    found: dict[str, list[Mark]] = defaultdict(list)
    for mark in marks:
        found[mark.place].append(mark)
    return found


def _node(shown: _Shown, node: Node, depth: int) -> Iterator[Line]:
    marks, is_whole = shown.marks, shown.is_whole(node)
    yield depth, f"{node.name}: {_counted([node])}", shown.worst([node])
    yield from _marked(marks, node_place(node.name), depth + 1)
    users: dict[str, list[Process]] = defaultdict(list)
    for process in node.processes:
        for uuid in process.gpus:
            users[uuid].append(process)
    pairs: dict[str, list[QueuePair]] = defaultdict(list)
    for pair in shown.pairs[node.name] if is_whole else ():
        pairs[pair.device].append(pair)
    for gpu in node.gpus:
        place = gpu_place(node.name, gpu.id)
        if is_whole or place in marks:
            names = [_called(each) for each in users.get(gpu.id, ())]
            yield depth + 1, _gpu_text(node, gpu, names), _worst_of(marks.get(place, ()))
            yield from _marked(marks, place, depth + 2)
    for nic in node.nics:
        place = nic_place(node.name, nic.id)
        if is_whole or place in marks:
            yield depth + 1, _nic_text(nic), _worst_of(marks.get(place, ()))
            yield from _marked(marks, place, depth + 2)
        yield from _connections(pairs.pop(nic.id, ()), shown.topology, node, depth + 2)
    for some in pairs.values():
        yield from _connections(some, shown.topology, node, depth + 1)
    without = [process for process in node.processes if not process.gpus] if is_whole else []
    for process in without[:_MOST_LISTED]:
        yield depth + 1, _called(process), ""
    if len(without) > _MOST_LISTED:
        yield depth + 1, f"{len(without) - _MOST_LISTED} more processes", ""


def _gpu_text(node: Node, gpu: Gpu, names: Sequence[str]) -> str:
    numa = f"NUMA {gpu.numa_node}" if gpu.numa_node >= 0 else ""
    links = f"NVLink {sum(gpu.nvlinks.values())}" if gpu.nvlinks else ""
    parts = filter(None, (gpu.model, gpu.pci_bus_id, numa, links, _nearest(node, gpu.id), *names))
    return f"{gpu.name or gpu.id}  {', '.join(parts)}".rstrip()


def _nic_text(nic: Nic) -> str:
    numa = f"NUMA {nic.numa_node}" if nic.numa_node >= 0 else ""
    ports = [f"port {port.number} {_state(port.up, port.bytes_per_s)}".rstrip() for port in nic.ports]
    return f"{nic.id}  {', '.join(filter(None, (nic.pci_bus_id, numa, *ports)))}".rstrip()


def _connections(pairs: Sequence[QueuePair], topology: Topology, node: Node, depth: int) -> Iterator[Line]:
    """Queue pairs of a device by both pods and the other end's node and device."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for pair in pairs:
        own = node.processes[pair.process]
        other = topology.queue_pairs[pair.peer] if pair.peer >= 0 else None
        where = pair.peer_node or pair.peer_gid or "other end not known"
        device = f" {other.device}" if other is not None else ""
        pod = f" ({pair.peer_pod})" if pair.peer_pod else ""
        counts[own.pod or own.service, f"{where}{device}{pod}", pair.communicator] += 1
    listed = sorted(counts.items())
    for (own_name, where, communicator), count in listed[:_MOST_LISTED]:
        of = f", communicator {communicator}" if communicator else ""
        noun = "queue pair" if count == 1 else "queue pairs"
        yield depth, f"{own_name or 'process'} ↔ {where}: {count} {noun}{of}", ""
    if len(listed) > _MOST_LISTED:
        yield depth, f"{len(listed) - _MOST_LISTED} more connections", ""


def _elsewhere(topology: Topology, marks: Mapping[str, Sequence[Mark]]) -> Iterator[Line]:
    if topology.communicators:
        yield 0, f"communicators: {len(topology.communicators)}", ""
        ordered = sorted(
            topology.communicators, key=lambda each: (communicator_place(each.id) not in marks, -each.ranks)
        )
        for each in ordered[:_MOST_LISTED]:
            nodes = len({member.node for member in each.members})
            ranks = (
                f"{len(each.members)} of {each.ranks} ranks" if each.ranks else f"{len(each.members)} ranks"
            )
            place = communicator_place(each.id)
            yield (
                1,
                f"{each.id}: {ranks} on {nodes} node{'s' if nodes > 1 else ''}",
                _worst_of(marks.get(place, ())),
            )
            yield from _marked(marks, place, 2)
        if len(ordered) > _MOST_LISTED:
            yield 1, f"{len(ordered) - _MOST_LISTED} more", ""
    if topology.calls:
        yield 0, "services", ""
        for call in topology.calls[: 2 * _MOST_LISTED]:
            errors = f", {call.errors} failed" if call.errors else ""
            mean = f", {call.mean_s * 1e3:.1f} ms on average" if call.mean_s else ""
            yield 1, f"{call.client} → {call.server}: {call.calls} requests{errors}{mean}", ""
        if len(topology.calls) > 2 * _MOST_LISTED:
            yield 1, f"{len(topology.calls) - 2 * _MOST_LISTED} more", ""


def _marked(marks: Mapping[str, Sequence[Mark]], place: str, depth: int) -> Iterator[Line]:
    for mark in marks.get(place, ()):
        yield depth, f"{mark.kind}: {mark.text} [{mark.source}]", mark.kind
        if mark.next:
            yield depth + 1, f"next: {mark.next}", ""


def _nearest(node: Node, uuid: str) -> str:
    mine = [each for each in node.affinities if each.gpu == uuid]
    if not mine:
        return ""
    best = min(mine, key=lambda each: _NEAREST.index(each.path)).path
    return f"{best} {' '.join(each.nic for each in mine if each.path == best)}"


def _called(process: Process) -> str:
    where = f"{process.namespace}/{process.pod}" if process.pod else process.service
    rank = (
        f"rank {process.rank}" + (f" of job {process.job}" if process.job else "")
        if process.rank >= 0
        else ""
    )
    pid = f"PID {process.pid}" if process.pid else ""
    return ", ".join(filter(None, (rank, where, pid)))


def _state(up: bool | None, bytes_per_s: float) -> str:
    state = {True: "up", False: "down", None: ""}[up]
    return f"{state} {bytes_per_s * 8e-9:.0f} Gbit/s" if bytes_per_s else state


def _counted(nodes: Sequence[Node]) -> str:
    gpus, nics = sum(len(node.gpus) for node in nodes), sum(len(node.nics) for node in nodes)
    ranks = sum(1 for node in nodes for each in node.processes if each.rank >= 0)
    parts = [
        f"{count} {noun}{'' if count == 1 else 's'}"
        for count, noun in ((gpus, "GPU"), (nics, "NIC"), (ranks, "rank"))
        if count
    ]
    return ", ".join([f"{len(nodes)} nodes", *parts] if len(nodes) > 1 else parts or ["no devices known"])


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def _worst(kinds: Sequence[str]) -> str:
    return next((kind for kind in KINDS if kind in kinds), "")


def _worst_of(marks: Sequence[Mark]) -> str:
    return _worst([mark.kind for mark in marks])
