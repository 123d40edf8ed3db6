"""Devices of one host as they were read just now → facts, as if agents had reported them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from otelgpu.model.devices import DeviceInput, DeviceReadings, DeviceSeen
from otelgpu.model.fabric import FabricInput, PortSeen
from otelgpu.model.resource import AttributeValue
from otelgpu.topology.devices import Seen
from otelgpu.topology.gathering import Facts
from otelgpu.topology.graph import Gpu, Nic, Port

_UP: Final = "ACTIVE"


def facts_of(
    own: Mapping[str, AttributeValue],
    devices: Iterable[DeviceInput],
    fabric: Iterable[FabricInput],
    processes: Mapping[int, Mapping[str, AttributeValue]],
) -> Facts:
    """``own``: attributes of the host's resource; ``processes``: what else is known of each, by its process id."""
    facts = Facts()
    owner = facts.owners.of(own)
    assert owner is not None  # the first of all
    host = owner.host
    for item in devices:
        match item:
            case DeviceSeen():
                facts.devices.gpus[host, item.uuid] = _gpu(item)
                facts.devices.seen[host, item.uuid] = Seen(item.time_ns, item.time_ns)
            case DeviceReadings():
                for reading in item.processes:
                    user = facts.owners.of(
                        {**own, **processes.get(reading.tgid, {}), "process.pid": reading.tgid}
                    )
                    if user is not None:
                        facts.devices.uses.setdefault(user.number, {})[reading.device] = item.time_ns
    for port in fabric:
        if isinstance(port, PortSeen):
            nic = facts.devices.nics.setdefault((host, port.device), _nic(port))
            nic.ports.append(_port(port))
    return facts


def _gpu(seen: DeviceSeen) -> Gpu:
    return Gpu(
        id=seen.uuid,
        name=f"gpu{seen.index}" if seen.index >= 0 else "",
        model=seen.model,
        parent=seen.parent,
        pci_bus_id=seen.pci_path.rpartition("/")[2] or seen.pci_bus_id,
        pci_path=seen.pci_path,
        numa_node=seen.numa_node,
        nvlinks=dict(seen.nvlinks),
    )


def _nic(seen: PortSeen) -> Nic:
    return Nic(
        id=seen.device,
        driver=seen.driver,
        pci_bus_id=seen.pci_bus_id,
        pci_path=seen.pci_path,
        numa_node=seen.numa_node,
    )


def _port(seen: PortSeen) -> Port:
    return Port(
        number=seen.port,
        up=seen.state == _UP,
        link_layer=seen.link_layer,
        interface=seen.interface,
        bytes_per_s=seen.rate_bits_per_s / 8,
    )
