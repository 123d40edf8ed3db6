"""Resources → which node, and which process of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from otelgpu.model.job import JOB_ID, JOB_LOCAL_RANK, JOB_RANK
from otelgpu.model.resource import HOSTS, NAMESPACE, POD_NAME, AttributeValue

MOST_NODES: Final = 1 << 14
MOST_PROCESSES: Final = 1 << 18
"""Of all nodes together."""
_LONGEST: Final = 256
_LABELS: Final = ("topology.kubernetes.io/rack", "topology.kubernetes.io/zone")
RACKS: Final = (
    *(f"k8s.node.{word}.{label}" for label in _LABELS for word in ("label", "labels")),
    "cloud.availability_zone",
)
"""Resource attributes of which the first that is there names the rack."""
UNKNOWN_HOST: Final = "unknown host"

Key = tuple[str, int, str, str]
"""Host, process id, pod and service."""


class Owner(Struct, kw_only=True):
    """Who has a resource. ``pid`` 0: the resource is of no process. ``local_rank`` −1: not known."""

    number: int
    host: str
    service: str = ""
    pid: int = 0
    namespace: str = ""
    pod: str = ""
    job: str = ""
    rank: int = -1
    local_rank: int = -1


class Place(Struct):
    """A node, as resources describe it."""

    rack: str = ""
    cluster: str = ""


class Owners(Struct):
    """``beyond``: resources that are not taken, for there are too many."""

    rack_attribute: str = ""
    nodes: dict[str, Place] = field(default_factory=dict)
    processes: list[Owner] = field(default_factory=list)
    beyond: int = 0
    numbers: dict[Key, int] = field(default_factory=dict)

    def of(self, described: Mapping[str, AttributeValue]) -> Owner | None:
        """The owner of a resource's attributes; None where there are too many."""
        host = self.node(next((shown(described[key]) for key in HOSTS if described.get(key)), UNKNOWN_HOST))
        if host is None:
            self.beyond += 1
            return None
        place = self.nodes[host]
        racks = (self.rack_attribute,) if self.rack_attribute else RACKS
        place.rack = place.rack or next((shown(described[key]) for key in racks if described.get(key)), "")
        place.cluster = place.cluster or shown(described.get("k8s.cluster.name", ""))
        pod, service = shown(described.get(POD_NAME, "")), shown(described.get("service.name", ""))
        pid = whole(described.get("process.pid"), 0)
        key = host, pid, pod, service
        number = self.numbers.get(key)
        if number is None:
            if len(self.processes) >= MOST_PROCESSES:
                self.beyond += 1
                return None
            number = self.numbers[key] = len(self.processes)
            self.processes.append(
                Owner(
                    number=number,
                    host=host,
                    service=service,
                    pid=pid,
                    namespace=shown(described.get(NAMESPACE, "")),
                    pod=pod,
                )
            )
        owner = self.processes[number]
        if described.get(JOB_ID) is not None:
            owner.job = shown(described[JOB_ID])
        owner.rank = whole(described.get(JOB_RANK), owner.rank)
        owner.local_rank = whole(described.get(JOB_LOCAL_RANK), owner.local_rank)
        return owner

    def node(self, host: str) -> str | None:
        """The host, which is there from now on; None where there are too many."""
        if host not in self.nodes:
            if len(self.nodes) >= MOST_NODES:
                return None
            self.nodes[host] = Place()
        return host


def shown(value: object) -> str:
    """A text of an input: not without end, and valid Unicode."""
    return str(value)[:_LONGEST].encode("utf-8", "replace").decode()


def whole(value: AttributeValue | None, default: int) -> int:
    """An integer that is none below zero, also where it is written as text; else ``default``."""
    if isinstance(value, bool) or value is None:
        return default
    if isinstance(value, int):
        return value if value >= 0 else default
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else default
