"""What ``otelgpu topology --json`` says, as types. Pure. Documented in docs/reference/topology.md.

Places are named by text: ``node:HOST``, ``gpu:HOST/UUID``, ``nic:HOST/DEVICE``, ``communicator:HASH``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

FAULTY: Final = "faulty"
MISSING: Final = "missing"
SLOW: Final = "slow"
NOTICE: Final = "notice"

KINDS: Final[Mapping[str, str]] = {
    FAULTY: "hardware, a link or a queue pair that reported an error, is down or failed",
    MISSING: "what others of its kind have, or what was there before, and is not seen",
    SLOW: "a verdict says that others wait for it",
    NOTICE: "something was counted that work survives: corrected errors, retries, clocks held down",
}
"""Kinds of marks, worst first."""


class Mark(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``place`` is what is wrong; ``source``: the signal or verdict that says so.

    ``next``: what to do, where the source says it. First and last time in Unix seconds, 0: not known.
    """

    kind: str
    place: str
    text: str
    source: str
    next: str = ""
    first_s: float = 0.0
    last_s: float = 0.0


class Gpu(Struct, kw_only=True, omit_defaults=True):
    """``nvlinks``: uuid of another GPU, or ``switch`` → active links. ``numa_node`` −1: not known."""

    id: str
    name: str = ""
    model: str = ""
    parent: str = ""
    pci_bus_id: str = ""
    pci_path: str = ""
    numa_node: int = -1
    nvlinks: dict[str, int] = field(default_factory=dict)


class Port(Struct, kw_only=True, omit_defaults=True):
    """A port of a NIC. ``up`` None: nobody said. Bytes per second."""

    number: int
    up: bool | None = None
    link_layer: str = ""
    interface: str = ""
    bytes_per_s: float = 0.0


class Nic(Struct, kw_only=True, omit_defaults=True):
    """An RDMA device."""

    id: str
    driver: str = ""
    pci_bus_id: str = ""
    pci_path: str = ""
    numa_node: int = -1
    ports: list[Port] = field(default_factory=list)


class Process(Struct, kw_only=True, omit_defaults=True):
    """``rank`` −1: of no job that is known. ``gpus``: uuids of the devices that it uses, of its node."""

    service: str = ""
    pid: int = 0
    namespace: str = ""
    pod: str = ""
    job: str = ""
    rank: int = -1
    gpus: list[str] = field(default_factory=list)


class Affinity(Struct, frozen=True, kw_only=True):
    """How far a GPU and a NIC of one node are apart: see :mod:`otelgpu.topology.affinity`."""

    gpu: str
    nic: str
    path: str


class Node(Struct, kw_only=True, omit_defaults=True):
    """A host. ``rack``: what its resource says, or ""."""

    name: str
    rack: str = ""
    cluster: str = ""
    gpus: list[Gpu] = field(default_factory=list)
    nics: list[Nic] = field(default_factory=list)
    affinities: list[Affinity] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)


class QueuePair(Struct, kw_only=True, omit_defaults=True):
    """One end of a connection. ``process``: place in its node's. ``peer``: place of the other end in the list, or −1.

    ``peer_node``: where the other end is; "" where no signal says it.
    """

    node: str
    process: int
    device: str
    number: int
    port: int = 0
    type: str = ""
    state: str = ""
    gid: str = ""
    peer_gid: str = ""
    peer_number: int = 0
    communicator: str = ""
    peer: int = -1
    peer_node: str = ""
    peer_pod: str = ""


class Member(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank of a communicator, on a node. ``process``: place in its node's, −1: not known."""

    rank: int
    node: str
    process: int = -1


class Communicator(Struct, kw_only=True, omit_defaults=True):
    """``ranks``: how many there are, 0 where nobody said; ``members``: those that were seen."""

    id: str
    ranks: int = 0
    job: str = ""
    members: list[Member] = field(default_factory=list)


class Call(Struct, frozen=True, kw_only=True):
    """Requests of one service to another. ``source``: ``spans``, or the Collector's ``servicegraph``."""

    client: str
    server: str
    calls: int
    errors: int
    mean_s: float
    source: str


class Topology(Struct, kw_only=True):
    """All of it. ``limits``: what the data cannot say; ``rejected``: reason → what was passed over."""

    nodes: Sequence[Node]
    queue_pairs: Sequence[QueuePair]
    communicators: Sequence[Communicator]
    calls: Sequence[Call]
    marks: Sequence[Mark]
    limits: Sequence[str] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)

    @property
    def services(self) -> frozenset[str]:
        """Who calls another, or is called."""
        return frozenset(name for call in self.calls for name in (call.client, call.server))


def node_place(host: str) -> str:
    """The place of a node."""
    return f"node:{host}"


def gpu_place(host: str, uuid: str) -> str:
    """The place of a GPU."""
    return f"gpu:{host}/{uuid}"


def nic_place(host: str, device: str) -> str:
    """The place of an RDMA device."""
    return f"nic:{host}/{device}"


def communicator_place(name: str) -> str:
    """The place of a communicator."""
    return f"communicator:{name}"


def rank_place(job: str, rank: int) -> str:
    """A rank's place until it is known where it runs: no mark of a graph that is built has it."""
    return f"rank:{job}/{rank}"


def node_of(place: str) -> str:
    """The node that a place is in; "" for one that is in none."""
    kind, _, rest = place.partition(":")
    if kind == "node":
        return rest
    return rest.rpartition("/")[0] if kind in ("gpu", "nic") else ""
