"""RDMA ports as sysfs has them: who they are, and what they have counted.

In: ``/sys/class/infiniband/<device>/ports/<port>`` (Documentation/ABI/stable/sysfs-class-infiniband). Out:
:mod:`otelgpu.model.fabric`. Any file may be missing, refuse to be read or vanish under the reader's hands, and a
driver may write what is no number: such is left out and counted. A read may block for as long as the device's
firmware takes: see :mod:`otelgpu.families.rdma.poll.poller`.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from otelgpu.kernel.pci_devices import location_at
from otelgpu.model.fabric import FabricInput, PortGone, PortReadings, PortSeen

ROOT: Final = Path("/sys/class/infiniband")

PORTS: Final = 256
"""Ports that are looked at; more are counted."""

COUNTERS: Final = 512
"""Counters of one port that are read; more are counted. The most that a driver of Linux 6.x has are about 120."""

GIDS: Final = 1024
"""Entries of a port's GID table that are looked at."""

GIDS_UNSET: Final = 32
"""Entries without a GID in a row after which no more are looked for."""

GIDS_EVERY_NS: Final = 30_000_000_000
"""A GID table has up to 256 files a port, and changes when somebody changes an address."""

REASONS: Final[Mapping[str, str]] = {
    "ports_ignored": f"an RDMA port beyond the {PORTS} that are read",
    "counters_ignored": f"a counter of an RDMA port beyond the {COUNTERS} that are read",
    "port_unreadable": "an RDMA port that does not report its state; it is left out until it does",
    "port_vanished": "an RDMA device that was taken out while it was read",
    "counter_unreadable": "a counter of an RDMA port that the driver or its firmware refused to read this time",
    "counter_not_a_number": "a counter of an RDMA port that is no number (`N/A (no PMA)`); not read again",
    "counter_vanished": "a counter of an RDMA port that was there before and is no more",
}

_TEXT: Final = 4096  # a sysfs attribute is at most a page
_LARGEST: Final = 1 << 64
_NAME: Final = 64  # characters of a counter's name; the longest in Linux 6.x has 31
_GONE: Final = frozenset((errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOTDIR))
_PCI: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_RATE: Final = re.compile(r"(\d{1,6})(?:\.(\d))? Gb/sec")
_LID: Final = re.compile(r"0x[0-9a-f]{1,8}")
_UNSET: Final = bytes(16)
# Of hw_counters: how long the kernel keeps what it has read, in milliseconds; a setting.
_NOT_COUNTERS: Final = frozenset(("lifespan",))


class _Port(Struct):
    seen: PortSeen
    gids_ns: int  # when the GID table was read
    not_numbers: set[str] = field(default_factory=set)
    counted: frozenset[str] = frozenset()  # names in the last readings


class PortWatch:
    """What is known of the ports. Every call of :meth:`poll` asks the drivers and may block."""

    def __init__(self, root: Path = ROOT) -> None:
        self.counters: Counter[str] = Counter()
        self._root = root
        self._ports: dict[tuple[str, int], _Port] = {}
        self._ignored = 0

    @property
    def devices(self) -> frozenset[str]:
        """Names of the devices that had a port at the last :meth:`poll`."""
        return frozenset(device for device, _ in self._ports)

    def poll(self, now_ns: int) -> list[FabricInput]:
        """Everything as of now: ports that are new or changed, readings of all, and those that are gone."""
        found: list[FabricInput] = []
        there: set[tuple[str, int]] = set()
        ignored = 0
        for device, number in self._list():
            if len(there) >= PORTS:
                ignored += 1
                continue
            reported = self._look(device, number, now_ns)
            if reported is not None:
                there.add((device, number))
                found += reported
        self.counters["ports_ignored"] += max(ignored - self._ignored, 0)
        self._ignored = ignored
        for device, number in self._ports.keys() - there:
            found.append(PortGone(time_ns=now_ns, device=device, port=number))
            del self._ports[device, number]
        return found

    def _list(self) -> Iterator[tuple[str, int]]:
        for device in _entries(self._root):
            for port in _entries(self._root / device / "ports"):
                if port.isascii() and port.isdigit() and len(port) <= 3:
                    yield device, int(port)

    def _look(self, device: str, number: int, now_ns: int) -> list[FabricInput] | None:
        """What is new of one port, or None when nobody can report any more that it is there."""
        known = self._ports.get((device, number))
        folder = self._root / device / "ports" / str(number)
        try:
            state = _read(folder / "state")
        except OSError as error:
            self.counters["port_vanished" if error.errno in _GONE else "port_unreadable"] += 1
            return None
        fresh = known is None or now_ns - known.gids_ns >= GIDS_EVERY_NS
        seen = replace(
            known.seen if known is not None else self._describe(device, number),
            time_ns=now_ns,
            state=state.partition(": ")[2] or state,  # "4: ACTIVE"
            link_layer=_read_or_empty(folder / "link_layer"),
            rate_bits_per_s=_bits_per_s(_read_or_empty(folder / "rate")),
            firmware_version=_read_or_empty(self._root / device / "fw_ver"),
            lid=_lid(_read_or_empty(folder / "lid")),
        )
        if fresh or known is None or known.seen.state != seen.state:
            fresh = True
            seen = replace(
                seen, gids=dict(_gids(folder / "gids")), interface=_interface(self._root / device, folder)
            )
        found: list[FabricInput] = []
        if known is None or replace(known.seen, time_ns=now_ns) != seen:
            found.append(seen)
        if known is None:
            known = self._ports[device, number] = _Port(seen, now_ns)
        known.seen = seen
        known.gids_ns = now_ns if fresh else known.gids_ns
        values = self._count(known, folder)
        if values:
            found.append(PortReadings(time_ns=now_ns, device=device, port=number, values=values))
        return found

    def _describe(self, device: str, number: int) -> PortSeen:
        """What does not change while a device is there."""
        hardware = self._root / device / "device"
        address, where = os.path.basename(os.path.realpath(hardware)), location_at(hardware)
        return PortSeen(
            time_ns=0,
            device=device,
            port=number,
            state="",
            link_layer="",
            driver=_target_name(hardware / "driver"),
            pci_bus_id=address if _PCI.fullmatch(address) else "",
            pci_path=where.path,
            numa_node=where.numa_node,
        )

    def _count(self, port: _Port, folder: Path) -> dict[str, int]:
        """Counters by name; where both folders have one, that of the driver is the wider."""
        values: dict[str, int] = {}
        ignored = 0
        for part in ("hw_counters", "counters"):
            for name in _entries(folder / part):
                if name in values or name in _NOT_COUNTERS or name in port.not_numbers or len(name) > _NAME:
                    continue
                if len(values) >= COUNTERS:
                    ignored += 1
                    continue
                value = self._read_counter(port, folder / part / name)
                if value is not None:
                    values[name] = value
        if ignored and not port.counted:
            self.counters["counters_ignored"] += ignored
        self.counters["counter_vanished"] += len(port.counted - values.keys())
        port.counted = frozenset(values)
        return values

    def _read_counter(self, port: _Port, path: Path) -> int | None:
        try:
            text = _read(path)
        except OSError as error:
            # One that is there no more is known by its absence from the readings.
            self.counters["counter_unreadable"] += error.errno not in _GONE
            return None
        if text.isascii() and text.isdigit() and len(text) <= 20 and (value := int(text)) < _LARGEST:
            return value
        self.counters["counter_not_a_number"] += 1
        port.not_numbers.add(path.name)
        return None


def _entries(folder: Path) -> list[str]:
    """Names in a folder, sorted; none when there is no such folder, or no more."""
    try:
        return sorted(name for name in os.listdir(folder) if name.isprintable())
    except OSError:
        return []


def _read(path: Path) -> str:
    """A sysfs attribute without the end of its line. Raises :class:`OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _TEXT).decode(errors="replace").strip()
    finally:
        os.close(descriptor)


def _read_or_empty(path: Path) -> str:
    try:
        return _read(path)
    except OSError:
        return ""


def _target_name(link: Path) -> str:
    try:
        return os.path.basename(os.readlink(link))
    except OSError:
        return ""


def _bits_per_s(rate: str) -> int:
    """``100 Gb/sec (4X EDR)`` and ``2.5 Gb/sec (1X SDR)`` in bits per second, 0 for anything else."""
    found = _RATE.match(rate)
    return 0 if found is None else int(found[1]) * 1_000_000_000 + int(found[2] or 0) * 100_000_000


def _lid(text: str) -> int:
    """``0x1a``; 0 where there is none, as on Ethernet."""
    return int(text, 16) if _LID.fullmatch(text) else 0


def _gids(folder: Path) -> Iterator[tuple[int, str]]:
    """(index, GID) of those that are set, in the form of inet_ntop(3).

    A table is filled from its beginning; rdma_rxe's has 1024 entries, of which two are set.
    """
    unset = 0
    for index in range(GIDS):
        try:
            gid = socket.inet_pton(socket.AF_INET6, _read(folder / str(index)))
        except FileNotFoundError:
            return
        except (OSError, ValueError):
            gid = _UNSET
        if gid != _UNSET and (any(gid[8:]) or gid[:2] != b"\xfe\x80"):  # fe80:: alone: no interface id yet
            unset = 0
            yield index, socket.inet_ntop(socket.AF_INET6, gid)
            continue
        unset += 1
        if unset >= GIDS_UNSET:
            return


def _interface(device: Path, port: Path) -> str:
    """The network interface of a port: of its first GID, else the only one of the device."""
    if name := _read_or_empty(port / "gid_attrs" / "ndevs" / "0"):
        return name
    if name := _read_or_empty(device / "parent"):  # rdma_rxe
        return name
    names = _entries(device / "device" / "net")
    return names[0] if len(names) == 1 else ""
