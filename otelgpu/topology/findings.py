"""Facts that mark a place: Xids, errors that were counted, ports that are down, GPUs and ranks that are absent. Pure.

A mark says which signal it is of. What is usual is no mark: a job that is seen in part, a port that was never up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from otelgpu.engine.hardware_names import ERRORS
from otelgpu.families.gpu.devices.metrics import STATUS
from otelgpu.families.rdma.names import QUEUE_PAIR_STATUS
from otelgpu.families.rdma.port_counters import UP
from otelgpu.topology.gathering import Facts, Fault
from otelgpu.topology.graph import (
    FAULTY,
    MISSING,
    NOTICE,
    Communicator,
    Mark,
    Node,
    communicator_place,
    gpu_place,
    nic_place,
    node_place,
)
from otelgpu.topology.queue_pairs import End

STALE_NS: Final = 120_000_000_000
"""A GPU that its node's newest readings are so much later than is not there any more; they come every ten seconds."""
LIKE: Final = 3
"""Nodes that have as many GPUs of a model, at least, for one that has fewer to lack some."""
_FATAL: Final = frozenset(("uncorrected", "port_down", "link_downed", "port_rate_downgrade"))
_SURVIVED: Final = frozenset(("application", "notice", "non-fatal"))
_MOST_NAMED: Final = 8


def marks_of(
    facts: Facts, nodes: Sequence[Node], communicators: Sequence[Communicator]
) -> tuple[list[Mark], list[str]]:
    """Marks, and sentences of what is not sure to be missing."""
    marks = [
        *_faults(facts),
        *_errors(facts),
        *_states(facts),
        *_ports(facts),
        *_broken(facts),
        *_gone(facts),
        *_fewer(nodes),
    ]
    unsure = []
    for each in communicators:
        seen = {member.rank for member in each.members if member.rank < each.ranks}
        if len(seen) >= each.ranks:
            continue
        if len(seen) * 2 <= each.ranks:  # which also bounds what is listed by what was seen
            unsure.append(
                f"communicator {each.id} has {each.ranks} ranks, of which {len(seen)} are in the input"
            )
            continue
        absent = [rank for rank in range(each.ranks) if rank not in seen]
        text = f"{_ranks(absent)} of {each.ranks} of communicator {each.id} {_was(absent)} not seen"
        marks.append(Mark(kind=MISSING, place=communicator_place(each.id), text=text, source="nccl.rank"))
    if len(unsure) > _MOST_NAMED:
        unsure = [
            *unsure[:_MOST_NAMED],
            f"{len(unsure) - _MOST_NAMED} more communicators are in the input in part",
        ]
    return marks, unsure


def _faults(facts: Facts) -> Iterator[Mark]:
    by_address = {(host, gpu.pci_bus_id.lower()): uuid for (host, uuid), gpu in facts.devices.gpus.items()}
    for fault in facts.faults.values():
        seconds = fault.time_ns / 1e9
        yield Mark(
            kind=NOTICE if fault.klass in _SURVIVED else FAULTY,
            place=_place_of(facts, fault, by_address),
            text=": ".join(filter(None, (fault.name, fault.text))),
            source=fault.name,
            next=fault.hint,
            first_s=seconds,
            last_s=seconds,
        )


def _place_of(facts: Facts, fault: Fault, by_address: dict[tuple[str, str], str]) -> str:
    place = fault.host, fault.device
    if fault.is_network and place in facts.devices.nics:
        return nic_place(*place)
    if place in facts.devices.gpus:
        return gpu_place(*place)
    uuid = by_address.get((fault.host, fault.device.lower())) if fault.device else None
    return gpu_place(fault.host, uuid) if uuid is not None else node_place(fault.host)


def _errors(facts: Facts) -> Iterator[Mark]:
    told = {(fault.host, fault.device) for fault in facts.faults.values()}
    for (host, device, kind, more), series in sorted(facts.devices.errors.items()):
        if not series.grown or (kind.startswith(("xid", "sxid")) and (host, device) in told):
            continue
        is_fatal = kind in _FATAL or kind.startswith(("xid", "sxid"))
        is_gpu = (host, device) in facts.devices.gpus
        times = f"{series.grown:,.0f} {'error' if series.grown == 1 else 'errors'}"
        yield Mark(
            kind=FAULTY if is_fatal else NOTICE,
            place=gpu_place(host, device) if is_gpu else nic_place(host, device),
            text=f"{times} of kind {kind}{f' ({more})' if more else ''}",
            source=ERRORS.name,
            first_s=series.first_ns / 1e9,
            last_s=series.last_ns / 1e9,
        )


def _states(facts: Facts) -> Iterator[Mark]:
    for (host, device), seen in sorted(facts.devices.seen.items()):
        if seen.state != "ok" and (host, device) in facts.devices.gpus:
            yield Mark(
                kind=FAULTY if seen.state == "failed" else NOTICE,
                place=gpu_place(host, device),
                text=f"the GPU is {seen.state}",
                source=STATUS.name,
                last_s=seen.state_ns / 1e9,
            )


def _ports(facts: Facts) -> Iterator[Mark]:
    """Ports that were up and are not."""
    for (host, device, number), port in sorted(facts.devices.ports.items()):
        if port.up is False and (host, device, number) in facts.devices.was_up:
            yield Mark(
                kind=FAULTY, place=nic_place(host, device), text=f"port {number} went down", source=UP.name
            )


def _broken(facts: Facts) -> Iterator[Mark]:
    by_device: dict[tuple[str, str], list[End]] = defaultdict(list)
    for end in facts.queue_pairs.ends:
        if end.is_broken:
            by_device[facts.owners.processes[end.owner].host, end.device].append(end)
    for (host, device), ends in sorted(by_device.items()):
        first = min(ends, key=lambda end: end.last_ns)
        why = first.error or first.state
        count = f"{len(ends)} queue pairs" if len(ends) > 1 else "a queue pair"
        yield Mark(
            kind=FAULTY,
            place=nic_place(host, device),
            text=f"{count} failed, number {first.number} first: {why}",
            source=QUEUE_PAIR_STATUS.name,
            first_s=first.last_ns / 1e9,
            last_s=max(end.last_ns for end in ends) / 1e9,
        )


def _gone(facts: Facts) -> Iterator[Mark]:
    """GPUs that were read before and are not any more, while others of the node are."""
    newest: dict[str, int] = defaultdict(int)
    for (host, _), seen in facts.devices.seen.items():
        newest[host] = max(newest[host], seen.last_ns)
    for (host, device), seen in sorted(facts.devices.seen.items()):
        late_ns = newest[host] - seen.last_ns
        if late_ns > STALE_NS and (host, device) in facts.devices.gpus:
            yield Mark(
                kind=MISSING,
                place=gpu_place(host, device),
                text=f"was last read {late_ns / 1e9:.0f} s before the node's newest reading",
                source=STATUS.name,
                last_s=seen.last_ns / 1e9,
            )


def _fewer(nodes: Sequence[Node]) -> Iterator[Mark]:
    """Nodes with fewer GPUs of a model than nearly all that have it."""
    counts = {node.name: Counter(gpu.model for gpu in node.gpus if not gpu.parent) for node in nodes}
    for model in sorted({model for each in counts.values() for model in each}):
        usual, likes = Counter(each[model] for each in counts.values() if each[model]).most_common(1)[0]
        having = sum(1 for each in counts.values() if each[model])
        if likes < LIKE or likes * 10 < having * 8:
            continue
        for name, each in sorted(counts.items()):
            if 0 < each[model] < usual:
                yield Mark(
                    kind=MISSING,
                    place=node_place(name),
                    text=f"{each[model]} GPUs ({model or 'model not known'}), where {likes} others have {usual}",
                    source=STATUS.name,
                )


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:_MOST_NAMED])) + (", …" if len(ranks) > _MOST_NAMED else "")
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"


def _was(ranks: Sequence[int]) -> str:
    return "was" if len(ranks) == 1 else "were"
