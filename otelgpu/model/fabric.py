"""RDMA ports and hardware errors as facts: counters that are polled, events that are reported. Low in rate.

Whatever is not known is absent, never zero. Counters are whole numbers as the driver has them, under the driver's
names; what they mean, and in which unit, is in ``families/rdma``.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class PortSeen(Struct, frozen=True, kw_only=True):
    """A port of an RDMA device is there, or changed; it replaces what was reported of (``device``, ``port``).

    ``gids``: index → GID as text (``fe80::…``), those that are set. ``state`` and ``link_layer`` as sysfs writes them
    (``ACTIVE``, ``Ethernet``). ``rate_bits_per_s`` is 0 where it is not known. ``interface``: network interface.
    ``pci_path``: the bridges above it, as :mod:`otelgpu.kernel.pci_devices` has them; ``numa_node`` −1: not known.
    """

    time_ns: int
    device: str
    port: int
    state: str
    link_layer: str
    rate_bits_per_s: int = 0
    driver: str = ""
    firmware_version: str = ""
    interface: str = ""
    pci_bus_id: str = ""
    gids: Mapping[int, str] | None = None
    lid: int = 0  # local identifier: of InfiniBand alone
    pci_path: str = ""
    numa_node: int = -1


class PortReadings(Struct, frozen=True, kw_only=True):
    """``counters`` and ``hw_counters`` of a port at ``time_ns``, by the driver's names; both count up."""

    time_ns: int
    device: str
    port: int
    values: Mapping[str, int]


class QueuePairReadings(Struct, frozen=True, kw_only=True):
    """Counters that a driver keeps for one queue pair (RDMA netlink), and whose it is."""

    time_ns: int
    device: str
    port: int
    number: int
    tgid: int  # 0: the kernel's, or not reported
    values: Mapping[str, int]


class PortGone(Struct, frozen=True, kw_only=True):
    """Nothing more is known of a port: its device was taken out."""

    time_ns: int
    device: str
    port: int


class HardwareError(Struct, frozen=True, kw_only=True):
    """The kernel log reported of an error of a device: an Xid of a GPU, an SXid of an NVSwitch.

    ``time_ns`` is the kernel's own time of the line, CLOCK_MONOTONIC. ``tgid`` is 0 and ``process`` empty where the
    line does not report. ``message``: the line without its prefix, bounded; it holds no program's data.
    """

    time_ns: int
    kind: str  # "xid" | "sxid"
    code: int
    pci_bus_id: str
    tgid: int = 0
    process: str = ""
    message: str = ""


FabricInput = PortSeen | PortReadings | QueuePairReadings | PortGone | HardwareError
