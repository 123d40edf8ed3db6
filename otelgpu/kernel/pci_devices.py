"""Where PCI devices are: the bridges above them and their NUMA nodes, as sysfs has it.

Source: Documentation/ABI/testing/sysfs-bus-pci (``numa_node``), and the tree of ``/sys/devices``.
"""

from __future__ import annotations

import os
import re
from itertools import dropwhile
from pathlib import Path
from typing import Final

from msgspec import Struct

NO_NUMA_NODE: Final = -1
"""What sysfs says, too, of a device on a machine with but one."""

_ROOT: Final = Path("/sys/bus/pci/devices")
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HOST_BRIDGE: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_MOST_BRIDGES: Final = 32
_NUMBER: Final = 16  # bytes


class PciLocation(Struct, frozen=True):
    """``path``: ``pci0000:17/0000:17:01.0/0000:18:00.0``, from the host bridge to the device; "" where not known."""

    path: str = ""
    numa_node: int = NO_NUMA_NODE


def sysfs_address(address: str) -> str:
    """The kernel's form of an address as NVML has it: ``00000000:3B:00.0`` is ``0000:3b:00.0``; "" for none."""
    address = address.lower()
    if _ADDRESS.fullmatch(address) is None:
        return ""
    domain, _, rest = address.partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def location_of(address: str, root: Path = _ROOT) -> PciLocation:
    """Of a device, by its address as the kernel has it. Nothing is known of one that is not there."""
    return location_at(root / address) if _ADDRESS.fullmatch(address) else PciLocation()


def location_at(device: Path) -> PciLocation:
    """Of a device's folder, or a link to it."""
    parts = os.path.realpath(device).split("/")
    chain = list(dropwhile(lambda part: not _HOST_BRIDGE.fullmatch(part), parts))
    if not 1 < len(chain) <= _MOST_BRIDGES or not all(map(_ADDRESS.fullmatch, chain[1:])):
        return PciLocation(numa_node=_numa_node(device))
    return PciLocation("/".join(chain), _numa_node(device))


def _numa_node(device: Path) -> int:
    try:
        with (device / "numa_node").open("rb") as file:
            text = file.read(_NUMBER).strip()
    except OSError:
        return NO_NUMA_NODE
    return int(text) if text.isdigit() and len(text) < 6 else NO_NUMA_NODE
