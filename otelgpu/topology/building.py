"""Facts → the graph. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from otelgpu.topology.affinity import affinity
from otelgpu.topology.findings import marks_of
from otelgpu.topology.gathering import BEYOND, Facts, Group
from otelgpu.topology.graph import (
    KINDS,
    Affinity,
    Communicator,
    Mark,
    Member,
    Node,
    Process,
    QueuePair,
    Topology,
    gpu_place,
    node_place,
    rank_place,
)
from otelgpu.topology.owners import Owner
from otelgpu.topology.queue_pairs import homes


def build(
    facts: Facts,
    verdicts: Sequence[Mark] = (),
    *,
    limits: Sequence[str] = (),
    rejected: Mapping[str, int] | None = None,
) -> Topology:
    """The graph of what was gathered; ``verdicts`` are marks that others made. Places and ranks are in order."""
    facts.queue_pairs.match()
    calls = facts.services.calls()
    _rank_by_communicator(facts)
    nodes, places = _nodes(facts, {name for call in calls for name in (call.client, call.server)})
    pairs = _queue_pairs(facts, places)
    communicators = [
        _communicator(facts, name, group, places) for name, group in sorted(facts.groups.items())
    ]
    found, unsure = marks_of(facts, nodes, communicators)
    found += _placed(verdicts, nodes)
    counted = dict(rejected or {}) | ({BEYOND: facts.all_beyond} if facts.all_beyond else {})
    worst = {kind: rank for rank, kind in enumerate(KINDS)}
    return Topology(
        nodes=nodes,
        queue_pairs=pairs,
        communicators=communicators,
        calls=calls,
        marks=sorted(found, key=lambda mark: (worst.get(mark.kind, 0), mark.place, mark.text)),
        limits=[*limits, *unsure, *_lacking(nodes, pairs)],
        rejected=counted,
    )


def _rank_by_communicator(facts: Facts) -> None:
    """Of a process whose launcher did not say it: its rank in the largest communicator that it is in."""
    for _, group in sorted(facts.groups.items(), key=lambda item: (-item[1].ranks, item[0])):
        for rank, member in group.members.items():
            if isinstance(member, int) and facts.owners.processes[member].rank < 0:
                facts.owners.processes[member].rank = rank


def _nodes(facts: Facts, services: set[str]) -> tuple[list[Node], dict[int, int]]:
    """All of them by name, and where each owner's process is in its node's."""
    nodes = {
        host: Node(name=host, rack=place.rack, cluster=place.cluster)
        for host, place in sorted(facts.owners.nodes.items())
    }
    for (host, _), gpu in sorted(
        facts.devices.gpus.items(), key=lambda item: (item[0][0], _number(item[1].name))
    ):
        nodes[host].gpus.append(gpu)
    for (host, _), nic in sorted(facts.devices.nics.items()):
        nic.ports.sort(key=lambda port: port.number)
        nodes[host].nics.append(nic)
    wanted = _of_interest(facts, services)
    places: dict[int, int] = {}
    for owner in sorted(
        facts.owners.processes, key=lambda each: (each.host, each.rank < 0, each.rank, each.pid)
    ):
        if owner.number in wanted:
            node = nodes[owner.host]
            places[owner.number] = len(node.processes)
            node.processes.append(_process(facts, owner))
    _add_ranks_of_tables(facts, nodes)
    for node in nodes.values():
        node.affinities = _affinities(node)
    return list(nodes.values()), places


def _of_interest(facts: Facts, services: set[str]) -> set[int]:
    """Processes that have a rank, a device, a queue pair or a place in a communicator, or call another service."""
    wanted = {each.number for each in facts.owners.processes if each.rank >= 0 or each.service in services}
    wanted |= facts.devices.uses.keys() | facts.devices.calls.keys()
    wanted |= {end.owner for end in facts.queue_pairs.ends}
    return wanted | {
        member
        for group in facts.groups.values()
        for member in group.members.values()
        if isinstance(member, int)
    }


def _process(facts: Facts, owner: Owner) -> Process:
    return Process(
        service=owner.service,
        pid=owner.pid,
        namespace=owner.namespace,
        pod=owner.pod,
        job=owner.job,
        rank=owner.rank,
        gpus=_gpus_of(facts, owner),
    )


def _gpus_of(facts: Facts, owner: Owner) -> list[str]:
    """Those that it holds memory on; else the one it can call, or that its local rank is for. All of its node."""
    there = facts.devices.gpus
    used = [uuid for uuid in facts.devices.uses.get(owner.number, ()) if (owner.host, uuid) in there]
    if used:
        return sorted(used)
    ordinals = facts.devices.calls.get(owner.number, {})
    callable_ = [uuid for _, uuid in sorted(ordinals.items()) if (owner.host, uuid) in there]
    if len(callable_) == 1:
        return callable_
    own = ordinals.get(owner.local_rank, "")
    return [own] if (owner.host, own) in there else []


def _add_ranks_of_tables(facts: Facts, nodes: Mapping[str, Node]) -> None:
    known = {
        (host, each.rank): each for host, node in nodes.items() for each in node.processes if each.rank >= 0
    }
    for (job, rank), host in sorted(facts.rank_hosts.items()):
        process = known.get((host, rank))
        if process is not None and process.job in ("", job):
            process.job = job
        else:
            nodes[host].processes.append(Process(job=job, rank=rank))


def _affinities(node: Node) -> list[Affinity]:
    found = (
        Affinity(
            gpu=gpu.id,
            nic=nic.id,
            path=affinity(gpu.pci_path, gpu.numa_node, nic.pci_path, nic.numa_node),
        )
        for gpu in node.gpus
        for nic in node.nics
    )
    return [each for each in found if each.path]


def _queue_pairs(facts: Facts, places: Mapping[int, int]) -> list[QueuePair]:
    owners, ends = facts.owners.processes, facts.queue_pairs.ends
    hosts = [owner.host for owner in owners]
    home = homes(ends, hosts)
    found = []
    for end in ends:
        peer = ends[end.peer] if end.peer >= 0 else None
        found.append(
            QueuePair(
                node=hosts[end.owner],
                process=places[end.owner],
                device=end.device,
                number=end.number,
                port=end.port,
                type=end.type,
                state=end.state,
                gid=end.gid,
                peer_gid=end.peer_gid,
                peer_number=end.peer_number,
                communicator=end.communicator,
                peer=end.peer,
                peer_node=hosts[peer.owner] if peer is not None else home.get(end.peer_gid, ""),
                peer_pod=owners[peer.owner].pod if peer is not None else end.peer_pod,
            )
        )
    return found


def _placed(verdicts: Sequence[Mark], nodes: Sequence[Node]) -> list[Mark]:
    """Marks of ranks are of the GPUs that they use, or where these are not known of their nodes, once each."""
    where: dict[str, list[str]] = {}
    for node in nodes:
        for process in node.processes:
            places = [gpu_place(node.name, uuid) for uuid in process.gpus] or [node_place(node.name)]
            where.setdefault(rank_place(process.job, process.rank), []).extend(places)
    placed = (
        structs.replace(mark, place=place)
        for mark in verdicts
        for place in where.get(mark.place, () if mark.place.startswith("rank:") else (mark.place,))
    )
    return list(dict.fromkeys(placed))


def _communicator(facts: Facts, name: str, group: Group, places: Mapping[int, int]) -> Communicator:
    members = [
        Member(rank=rank, node=facts.owners.processes[member].host, process=places[member])
        if isinstance(member, int)
        else Member(rank=rank, node=member)
        for rank, member in sorted(group.members.items())
    ]
    return Communicator(id=name, ranks=group.ranks, job=group.job, members=members)


def _lacking(nodes: Sequence[Node], pairs: Sequence[QueuePair]) -> list[str]:
    """What no signal of the input says, in sentences."""
    found = []
    gpus = [gpu for node in nodes for gpu in node.gpus]
    if nodes and not gpus:
        found.append("no GPU is named: agents report them where NVML can be read (hw.status)")
    unplaced = sum(1 for gpu in gpus if not gpu.pci_path and not gpu.parent)
    if unplaced:
        found.append(
            f"of {unplaced} of {len(gpus)} GPUs the place on the PCIe bus is not known (otelgpu.hw.location)"
        )
    if any(len(node.gpus) > 1 for node in nodes) and not any(
        gpu.nvlinks for node in nodes for gpu in node.gpus
    ):
        found.append("no NVLinks are known (otelgpu.gpu.nvlink.links)")
    open_ends = sum(1 for pair in pairs if pair.peer < 0 and pair.peer_number)
    if open_ends:
        found.append(f"of {open_ends} queue pairs the other end was not seen, or cannot be told from others")
    return found


def _number(name: str) -> tuple[int, str]:
    """``gpu10`` after ``gpu9``."""
    digits = name.removeprefix("gpu")
    return (int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 9 else 1 << 30, name)
