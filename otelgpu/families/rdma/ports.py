"""Readings of RDMA ports → metrics, and what was counted since somebody asked.

In: :mod:`otelgpu.model.fabric`. Out: calls of :class:`~otelgpu.engine.metrics.Metrics`. Pure. A port's first
readings are where its counters begin: what was counted before the session is not reported. A counter that falls began
again, or wrapped round where it is as narrow as that; one that stands at its largest value is counted, for what it
reports from there on is nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from otelgpu.engine.hardware_names import ERRORS, FIRMWARE, ID, LOCATION, NAME, PARENT, TYPE, location_labels
from otelgpu.engine.hardware_names import SCOPE as DEVICE_SCOPE
from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.metrics import Metrics
from otelgpu.families.rdma.names import DEVICE, NUMBER, PORT
from otelgpu.families.rdma.port_counters import (
    ALSO,
    BANDWIDTH,
    COUNTER,
    OTHER,
    QUEUE_PAIR_COUNTER,
    ROWS,
    UP,
    Labels,
    Row,
)
from otelgpu.model.fabric import FabricInput, PortGone, PortReadings, PortSeen, QueuePairReadings
from otelgpu.model.losses import Reasons
from otelgpu.model.resource import Resource

SCOPE: Final = "otelgpu.fabric"

DEVICE_DRIVER: Final = "rdma.driver"
INTERFACE: Final = "network.interface.name"
LINK_LAYER: Final = "rdma.link_layer"

REASONS: Final = Reasons(
    "fabric",
    {
        "port_not_seen": "readings of an RDMA port that nobody described; in a capture that was cut",
        "counter_restarted": "a counter of an RDMA port that began again at zero",
        "counter_wrapped": "a counter of an RDMA port that wrapped round, which is made up for",
        "counter_saturated": "a counter of an RDMA port that reached its largest value, and stays there",
        "implausible": "a counter that leapt by more than can be, left out",
        "queue_pair_counters_ignored": "a queue pair beyond those whose driver's counters are followed",
    },
)
"""What one count of (``fabric``, reason) means."""

ACTIVE: Final = "ACTIVE"
QUEUE_PAIRS: Final = 16_384

_MOST: Final = 1 << 50  # a petabyte since the last reading: not so
_UNKNOWN: Final = Row(OTHER)

_PortKey = tuple[str, int]


class PortMetrics:
    """Feeds ``metrics``: ports under ``own``, the agent's resource, counters of a queue pair under its process'.

    ``resource_of`` answers a tgid, None for a process that is not observed: what its queue pairs counted is reported of
    the agent, without a process.
    """

    def __init__(
        self, metrics: Metrics, own: Resource, resource_of: Callable[[int], Resource | None]
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._metrics = metrics
        self._own = own
        self._resource_of = resource_of
        self._ports: dict[_PortKey, PortSeen] = {}
        self._before: dict[_PortKey, dict[str, int]] = {}
        self._saturated: set[tuple[_PortKey, str]] = set()
        self._deltas: dict[_PortKey, Counter[str]] = {}
        self._standing: dict[_PortKey, dict[tuple[str, tuple[tuple[str, str | int], ...]], Metric]] = {}
        self._pairs: dict[tuple[str, int], dict[str, int]] = {}

    def take(self, item: FabricInput) -> None:
        """Take one input; those that are about no port are not for here."""
        match item:
            case PortSeen():
                self._see(item)
            case PortReadings():
                self._read(item)
            case PortGone():
                self._lose(item)
            case QueuePairReadings():
                self._read_pair(item)

    def deltas(self, device: str, port: int) -> Mapping[str, int]:
        """By the driver's names, what a port counted since this was last asked; those that stood still are absent."""
        found = self._deltas.get((device, port))
        if found is None:
            return {}
        self._deltas[device, port] = Counter()
        return +found

    def ports(self) -> Mapping[tuple[str, int], PortSeen]:
        """The ports that are there."""
        return self._ports

    def _see(self, seen: PortSeen) -> None:
        key = seen.device, seen.port
        before = self._ports.get(key)
        if before is not None and (port_labels(before), _location(before)) != (
            port_labels(seen),
            _location(seen),
        ):
            self._unset(key)
        self._ports[key] = seen
        labels = port_labels(seen)
        self._set(key, UP, labels, int(seen.state == ACTIVE))
        if seen.rate_bits_per_s:
            self._set(key, BANDWIDTH, labels, seen.rate_bits_per_s // 8)
        if seen.pci_path:
            self._set(key, LOCATION, labels | _location(seen), 1)

    def _read(self, readings: PortReadings) -> None:
        key = readings.device, readings.port
        seen = self._ports.get(key)
        if seen is None:
            self.counters["port_not_seen"] += 1
            return
        labels = port_labels(seen)
        before = self._before.setdefault(key, {})
        deltas = self._deltas.setdefault(key, Counter())
        for name, value in readings.values.items():
            row = ROWS.get(name, _UNKNOWN)
            if row.metric.instrument is not Instrument.COUNTER:
                self._set(key, row.metric, labels | dict(row.labels), value * row.scale)
                continue
            grown = self._grown(key, name, row, before.get(name), value)
            before[name] = value
            deltas[name] += grown
            if name in ALSO and not ALSO[name].isdisjoint(readings.values):
                continue
            own = {COUNTER: name} if row is _UNKNOWN else dict(row.labels)
            # hw.errors has one scope, whoever the component is.
            scope = DEVICE_SCOPE if row.metric is ERRORS else SCOPE
            self._metrics.add(row.metric, scope, self._own, labels | own, grown * row.scale)
        for name in before.keys() - readings.values.keys():
            del before[name]  # it vanished: what it counts when it is back is not known to go on from here

    def _grown(self, key: _PortKey, name: str, row: Row, before: int | None, value: int) -> int:
        """How much a counter grew since the reading before."""
        largest = (1 << row.bits) - 1
        if row.saturates and value == largest and (key, name) not in self._saturated:
            self._saturated.add((key, name))
            self.counters["counter_saturated"] += 1
        if before is None or before == value:
            return 0
        grown = value - before
        if grown < 0:
            self._saturated.discard((key, name))
            narrow = row.bits == 32 and not row.saturates and before <= largest
            wrapped = narrow and largest - before + value < largest // 2
            self.counters["counter_wrapped" if wrapped else "counter_restarted"] += 1
            if wrapped:
                grown += largest + 1
            else:
                grown = 0 if row is _UNKNOWN else value  # what has no meaning may be no count at all
        if grown * row.scale >= _MOST:
            self.counters["implausible"] += 1
            return 0
        return grown

    def _read_pair(self, readings: QueuePairReadings) -> None:
        if not readings.values:
            return
        key = readings.device, readings.number
        if key not in self._pairs and len(self._pairs) >= QUEUE_PAIRS:
            self.counters["queue_pair_counters_ignored"] += 1
            return
        before = self._pairs.get(key, {})
        self._pairs[key] = dict(readings.values)
        owner = (self._resource_of(readings.tgid) if readings.tgid else None) or self._own
        labels: dict[str, str | int] = {
            DEVICE: readings.device,
            PORT: readings.port,
            NUMBER: readings.number,
        }
        for name, value in readings.values.items():
            # A number that is used again is another queue pair, whose counters begin at zero.
            grown = value - before.get(name, value)
            grown = value if grown < 0 else grown
            if grown < _MOST:
                self._metrics.add(QUEUE_PAIR_COUNTER, SCOPE, owner, labels | {COUNTER: name}, grown)
            else:
                self.counters["implausible"] += 1

    def _lose(self, gone: PortGone) -> None:
        key = gone.device, gone.port
        self._unset(key)
        self._ports.pop(key, None)
        self._before.pop(key, None)
        self._deltas.pop(key, None)
        self._saturated = {(port, name) for port, name in self._saturated if port != key}
        if all(device != gone.device for device, _ in self._ports):
            self._pairs = {pair: values for pair, values in self._pairs.items() if pair[0] != gone.device}

    def _set(self, key: _PortKey, metric: Metric, labels: Labels, value: int) -> None:
        self._metrics.set(metric, SCOPE, self._own, labels, value)
        self._standing.setdefault(key, {})[metric.name, tuple(sorted(labels.items()))] = metric

    def _unset(self, key: _PortKey) -> None:
        """Nobody is to read an old level as one of now."""
        for (_, labels), metric in self._standing.pop(key, {}).items():
            self._metrics.unset(metric, self._own, dict(labels))


def port_labels(seen: PortSeen) -> dict[str, str | int]:
    """The attributes that every metric of a port has; what is not known is left out."""
    found: dict[str, str | int] = {
        ID: f"{seen.device}/{seen.port}",
        NAME: seen.device,
        TYPE: "network",
        PARENT: seen.pci_bus_id,
        DEVICE_DRIVER: seen.driver,
        FIRMWARE: seen.firmware_version,
        DEVICE: seen.device,
        PORT: seen.port,
        LINK_LAYER: seen.link_layer,
        INTERFACE: seen.interface,
    }
    return {key: value for key, value in found.items() if value != ""}


def _location(seen: PortSeen) -> dict[str, str | int]:
    return location_labels(seen.pci_path, seen.numa_node) if seen.pci_path else {}
