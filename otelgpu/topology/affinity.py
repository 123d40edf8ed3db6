"""How far two PCI devices of a host are apart, in the words of ``nvidia-smi topo -m``. Pure.

In: paths of devices below their host bridge, as sysfs has them (``pci0000:17/0000:17:01.0/…/0000:1a:00.0``), and NUMA
nodes. Two devices below one PCIe switch have the switch's upstream port in common.

Source: ``nvidia-smi topo --help``; nvmlGpuTopologyLevel_t of nvml.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Final

PIX, PXB, PHB, NODE, SYS = "PIX", "PXB", "PHB", "NODE", "SYS"

WORDS: Final[Mapping[str, str]] = {
    PIX: "at most a single PCIe bridge or switch between them",
    PXB: "several PCIe bridges, without the host bridge",
    PHB: "the host bridge of one CPU socket",
    NODE: "PCIe and the interconnect between host bridges within a NUMA node",
    SYS: "PCIe and the interconnect between NUMA nodes",
}
"""Nearest first."""

_BELOW_A_SWITCH: Final = 2  # components: the switch's downstream port, and the device


def affinity(path: str, numa_node: int, other_path: str, other_numa_node: int) -> str:
    """One of :data:`WORDS`; "" where it cannot be known: a path is missing, or one NUMA node of two is."""
    ours, theirs = path.split("/"), other_path.split("/")
    if not path or not other_path:
        return ""
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
    if common > 1:
        below = max(len(ours), len(theirs)) - common
        return PIX if below <= _BELOW_A_SWITCH else PXB
    if common == 1:
        return PHB
    if (numa_node < 0) != (other_numa_node < 0):
        return ""
    return NODE if numa_node == other_numa_node else SYS
