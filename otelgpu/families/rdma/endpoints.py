"""The two ends of a connection, so that the agents of both derive the same ids from them. Pure.

In: queue pairs, and the GIDs that ports have. Out: (address, number) of each end. An address is the port's GID, or
on InfiniBand within a subnet its LID, in 16 bytes: what the one end says of itself is what the other says of its peer.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final, NamedTuple

from otelgpu.families.rdma.queue_pairs import QueuePair
from otelgpu.model.fabric import PortGone, PortSeen

_LID_BYTES: Final = 2
_GID_BYTES: Final = 16
_UNICAST_LIDS: Final = range(1, 0xC000)  # InfiniBand Architecture Specification, volume 1, section 4.1.3
_DEVICES: Final = 1024  # ports; a host has a few


class End(NamedTuple):
    """Where a queue pair is in the fabric: 16 bytes, and its number."""

    address: bytes
    number: int


class Ports:
    """What is known of the ports of this host, as far as queue pairs need it."""

    def __init__(self) -> None:
        self._gids: dict[tuple[str, int], dict[int, bytes]] = {}
        self._lids: dict[tuple[str, int], int] = {}

    def take(self, item: PortSeen | PortGone) -> None:
        """A port is there, changed, or is gone; what a queue pair has learnt of it stays."""
        key = item.device, item.port
        self._gids.pop(key, None)
        self._lids.pop(key, None)
        if isinstance(item, PortSeen) and len(self._gids) < _DEVICES:
            self._gids[key] = _parsed(item.gids or {})
            self._lids[key] = item.lid

    def known(self, queue_pair: QueuePair) -> bool:
        """Whether the port has been reported of, so that nothing more is to come."""
        return (queue_pair.device, queue_pair.port) in self._gids

    def only_port(self, device: str) -> int:
        """The number of a device's port, of which there is no other; 0: there are others, or none is known."""
        found = [port for name, port in self._gids if name == device]
        return found[0] if len(found) == 1 else 0

    def local(self, queue_pair: QueuePair) -> End | None:
        """The queue pair's own end; None: not known."""
        key = queue_pair.device, queue_pair.port
        if not queue_pair.number:
            return None
        if queue_pair.peer_gid:
            gid = self._gids.get(key, {}).get(queue_pair.local_gid_index)
            return End(gid, queue_pair.number) if gid else None
        return _of_lid(self._lids.get(key, 0), queue_pair.number)


def peer(queue_pair: QueuePair) -> End | None:
    """The other end, as the queue pair was set up to reach it; None: not known, or there is no single one."""
    if not queue_pair.peer_number:
        return None
    if queue_pair.peer_gid:
        return End(queue_pair.peer_gid, queue_pair.peer_number)
    return _of_lid(queue_pair.peer_lid, queue_pair.peer_number)


def text(address: bytes) -> str:
    """A GID or LID as people write it: ``fe80::1``, ``::ffff:10.0.0.1``, ``lid 17``."""
    if len(address) != _GID_BYTES:
        return ""
    if not any(address[:-_LID_BYTES]):
        return f"lid {int.from_bytes(address)}"
    gid = ipaddress.IPv6Address(address)
    return f"::ffff:{gid.ipv4_mapped}" if gid.ipv4_mapped else str(gid)


def _of_lid(lid: int, number: int) -> End | None:
    return End(lid.to_bytes(_GID_BYTES), number) if lid in _UNICAST_LIDS else None


def _parsed(gids: Mapping[int, str]) -> dict[int, bytes]:
    """GIDs that are some; what is none is left out."""
    found = {}
    for index, gid in gids.items():
        try:
            packed = ipaddress.IPv6Address(gid).packed
        except ValueError:
            continue
        if any(packed):
            found[index] = packed
    return found
