"""What a host's hardware is called, by whichever family describes it: GPUs, RDMA ports and their errors.

``hw.*`` is OpenTelemetry's: semantic conventions 1.44, docs/hardware.
"""

from __future__ import annotations

from typing import Final

from otelgpu.engine.metric import Instrument, Metric

SCOPE: Final = "otelgpu.devices"

ID: Final = "hw.id"
NAME: Final = "hw.name"
TYPE: Final = "hw.type"
PARENT: Final = "hw.parent"
FIRMWARE: Final = "hw.firmware_version"
DIRECTION: Final = "network.io.direction"
RECEIVE: Final = "receive"
TRANSMIT: Final = "transmit"

PCI_PATH: Final = "otelgpu.hw.pci_path"
"""From the host bridge down to the device, as sysfs has it: two devices' paths say how far they are apart."""
NUMA_NODE: Final = "otelgpu.hw.numa_node"

LOCATION: Final = Metric(
    name="otelgpu.hw.location",
    unit="1",
    instrument=Instrument.UP_DOWN_COUNTER,
    description="1 for where a component is: its PCI path and its NUMA node.",
)
ERRORS: Final = Metric(
    name="hw.errors",
    unit="{error}",
    instrument=Instrument.COUNTER,
    description="Number of errors encountered by the component.",
)


def location_labels(pci_path: str, numa_node: int) -> dict[str, str | int]:
    """The attributes of :data:`LOCATION`; what is not known is left out."""
    return {PCI_PATH: pci_path} | ({NUMA_NODE: numa_node} if numa_node >= 0 else {})
