"""Metrics of GPUs, RDMA ports and queue pairs → what each of them is, by the newest point of each. Pure.

In: metrics of one owner after the other, in the order of their lines. Of a counter of errors it is kept how much it
grew; the first point counts whole where its series began within the time that is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct, field

from otelgpu.engine.hardware_names import ERRORS, ID, LOCATION, NAME, NUMA_NODE, PARENT, PCI_PATH, TYPE
from otelgpu.engine.names import ERROR_TYPE
from otelgpu.families.gpu.devices import metrics as gpus
from otelgpu.families.rdma import names as qp
from otelgpu.families.rdma import port_counters as counters
from otelgpu.families.rdma import ports
from otelgpu.model.resource import AttributeValue
from otelgpu.otlp_json.messages import Metric, Point
from otelgpu.otlp_json.reader import attributes, double, time_ns
from otelgpu.topology.graph import Gpu, Nic, Port
from otelgpu.topology.owners import Owner, shown, whole

MOST_DEVICES: Final = 1 << 17
"""GPUs and ports, of all nodes together."""
_MOST_SERIES: Final = 1 << 18
_DELTA: Final = 1
_SWITCH: Final = "switch"

Described = Mapping[str, AttributeValue]
Place = tuple[str, str]
"""A host, and a GPU's uuid or an RDMA device's name."""


class Seen(Struct):
    """When something was seen first and last, Unix nanoseconds; ``state``: hw.status, ``ok`` unless said otherwise."""

    first_ns: int
    last_ns: int
    state: str = "ok"
    state_ns: int = 0


class Grown(Struct):
    """A counter of errors: its newest value, and how much it grew, from when until when."""

    value: float
    time_ns: int
    grown: float = 0.0
    first_ns: int = 0
    last_ns: int = 0


class Devices(Struct):
    """``uses``: process → uuids that it holds memory on; ``calls``: ordinal → uuid that it can call.

    ``was_up``: ports that were up at some time. ``beyond``: devices and series that are not taken:
    there are too many.
    """

    begin_ns: int
    gpus: dict[Place, Gpu] = field(default_factory=dict)
    nics: dict[Place, Nic] = field(default_factory=dict)
    ports: dict[tuple[str, str, int], Port] = field(default_factory=dict)
    seen: dict[Place, Seen] = field(default_factory=dict)
    uses: dict[int, dict[str, int]] = field(default_factory=dict)
    calls: dict[int, dict[int, str]] = field(default_factory=dict)
    errors: dict[tuple[str, str, str, str], Grown] = field(default_factory=dict)
    was_up: set[tuple[str, str, int]] = field(default_factory=set)
    beyond: int = 0

    def take(self, owner: Owner, metric: Metric, point: Point) -> None:
        """A point of one of :data:`TAKEN`. Raises ValueError for one that cannot be read."""
        described, at = attributes(point.attributes), time_ns(point.time_unix_nano)
        _TAKE[metric.name](self, owner, described, at, metric, point)

    def _status(self, owner: Owner, described: Described, at: int, metric: Metric, point: Point) -> None:
        place = self._component(owner, described, at)
        if place is not None and value_of(point):
            seen = self.seen[place]
            if at >= seen.state_ns:
                seen.state, seen.state_ns = shown(described.get(gpus.STATE, "ok")), at

    def _located(self, owner: Owner, described: Described, at: int, metric: Metric, point: Point) -> None:
        place = self._component(owner, described, at)
        if place is None:
            return
        device = self.gpus.get(place) or self.nics.get(place)
        if device is not None:
            device.pci_path = shown(described.get(PCI_PATH, "")) or device.pci_path
            device.pci_bus_id = device.pci_path.rpartition("/")[2] or device.pci_bus_id
            device.numa_node = whole(described.get(NUMA_NODE), device.numa_node)

    def _linked(self, owner: Owner, described: Described, at: int, metric: Metric, point: Point) -> None:
        place = self._component(owner, described, at)
        if place in self.gpus and len(self.gpus[place].nvlinks) < MOST_DEVICES:
            peer = shown(described.get(gpus.PEER, _SWITCH))
            self.gpus[place].nvlinks[peer] = int(value_of(point))

    def _up(self, owner: Owner, described: Described, at: int, metric: Metric, point: Point) -> None:
        port = self._port(owner, described, at)
        if port is not None:
            port.up = value_of(point) > 0
            if port.up:
                self.was_up.add((owner.host, shown(described[qp.DEVICE]), port.number))

    def _bandwidth(self, owner: Owner, described: Described, at: int, metric: Metric, point: Point) -> None:
        port = self._port(owner, described, at)
        if port is not None:
            port.bytes_per_s = value_of(point)

    def _error(self, owner: Owner, described: Described, at: int, metric: Metric, point: Point) -> None:
        place = self._component(owner, described, at)
        if place is None or metric.sum is None:
            return
        more = ", ".join(
            f"{key}={shown(value)}" for key, value in sorted(described.items()) if key in _SERIES_OF_ERRORS
        )
        key = *place, shown(described.get(ERROR_TYPE, "error")), more
        series, value = self.errors.get(key), value_of(point)
        if series is None:
            if len(self.errors) >= _MOST_SERIES:
                self.beyond += 1
                return
            began = time_ns(point.start_time_unix_nano)
            is_whole = metric.sum.aggregation_temporality == _DELTA or began >= max(self.begin_ns, 1)
            series = self.errors[key] = Grown(value=0.0 if is_whole else value, time_ns=at - 1)
        if at <= series.time_ns:  # another gateway has delivered it too
            return
        is_delta = metric.sum.aggregation_temporality == _DELTA
        grown = value if is_delta or value < series.value else value - series.value
        series.value, series.time_ns = 0.0 if is_delta else value, at
        if grown > 0:
            series.grown += grown
            series.first_ns, series.last_ns = series.first_ns or at, at

    def _used(self, owner: Owner, described: Described, at: int, metric: Metric, point: Point) -> None:
        uses = self.uses.setdefault(owner.number, {})
        if value_of(point) > 0 and len(uses) < MOST_DEVICES:
            uses[shown(described.get(ID, ""))] = at

    def _callable(self, owner: Owner, described: Described, at: int, metric: Metric, point: Point) -> None:
        ordinals = self.calls.setdefault(owner.number, {})
        ordinal = whole(described.get(gpus.CUDA_INDEX), -1)
        if 0 <= ordinal < MOST_DEVICES:
            ordinals[ordinal] = shown(described.get(ID, ""))

    def _component(self, owner: Owner, described: Described, at: int) -> Place | None:
        """The GPU or RDMA device that a point is about, which is there from now on; None: of neither, or too many."""
        kind, identity = described.get(TYPE), shown(described.get(ID, ""))
        if kind == "gpu" and identity:
            place = owner.host, identity
            if place not in self.gpus and self._has_room():
                self.gpus[place] = Gpu(id=identity)
            if place in self.gpus:
                gpu = self.gpus[place]
                gpu.name = shown(described.get(NAME, "")) or gpu.name
                gpu.model = shown(described.get(gpus.MODEL, "")) or gpu.model
                gpu.parent = shown(described.get(PARENT, "")) or gpu.parent
        elif kind == "network" and described.get(qp.DEVICE):
            place = owner.host, shown(described[qp.DEVICE])
            if place not in self.nics and self._has_room():
                self.nics[place] = Nic(id=place[1])
            if place in self.nics:
                nic = self.nics[place]
                nic.driver = shown(described.get(ports.DEVICE_DRIVER, "")) or nic.driver
                nic.pci_bus_id = shown(described.get(PARENT, "")) or nic.pci_bus_id
        else:
            return None
        if place not in self.gpus and place not in self.nics:
            return None
        seen = self.seen.setdefault(place, Seen(at, at))
        seen.first_ns, seen.last_ns = min(seen.first_ns, at), max(seen.last_ns, at)
        return place

    def _port(self, owner: Owner, described: Described, at: int) -> Port | None:
        place = self._component(owner, described, at)
        if place not in self.nics:
            return None
        number = whole(described.get(qp.PORT), 0)
        key = *place, number
        if key not in self.ports:
            if not self._has_room():
                return None
            self.ports[key] = Port(number=number)
            self.nics[place].ports.append(self.ports[key])
        port = self.ports[key]
        port.link_layer = shown(described.get(ports.LINK_LAYER, "")) or port.link_layer
        port.interface = shown(described.get(ports.INTERFACE, "")) or port.interface
        return port

    def _has_room(self) -> bool:
        has = len(self.gpus) + len(self.nics) + len(self.ports) < MOST_DEVICES
        self.beyond += not has
        return has


_SERIES_OF_ERRORS: Final = frozenset((qp.PORT,))
_Taker = Callable[[Devices, Owner, Described, int, Metric, Point], None]
_TAKE: Final[Mapping[str, _Taker]] = {
    gpus.STATUS.name: Devices._status,
    LOCATION.name: Devices._located,
    gpus.NVLINKS.name: Devices._linked,
    counters.UP.name: Devices._up,
    counters.BANDWIDTH.name: Devices._bandwidth,
    ERRORS.name: Devices._error,
    gpus.PROCESS_MEMORY.name: Devices._used,
    gpus.PROCESS_DEVICE.name: Devices._callable,
}
TAKEN: Final = frozenset(_TAKE)
"""Names of metrics."""
COUNTERS: Final = frozenset((ERRORS.name,))
"""Of those, what grows: all values count. Of others the newest does, and of :data:`SWITCHES` whether it ever was on."""
SWITCHES: Final = frozenset((counters.UP.name,))
STATES: Final = TAKEN - COUNTERS - SWITCHES


def value_of(point: Point) -> float:
    """A point's number; 0 for one without. Raises ValueError."""
    raw = point.as_double if point.as_double is not None else point.as_int
    return double(raw) if raw is not None else 0.0
