"""The endpoints of a connection: a record ``http_open`` becomes facts, once the process's role is known.

In: one ``struct http_open``. Out: the addresses of both endpoints, and a key that both of them derive alike. It must
not know about bytes.

Example: a server on 10.0.0.1:80 and its client on 10.0.0.2:4000 give the same ``wire_key``, the client's address
and port before the server's; a server that listens on ``::`` sees ``::ffff:10.0.0.2``, which is the same address.
"""

from __future__ import annotations

import ipaddress

import numpy as np
from msgspec import Struct

from otelgpu.families.requests.protocol import ConnectionFacts
from otelgpu.model.exchange import UNKNOWN_ENDPOINT, Endpoint, Role

_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10  # Linux, include/linux/socket.h
_MAPPED = bytes(10) + b"\xff\xff"  # before an IPv4 address: RFC 4291, section 2.5.5.2
_READ, _WRITE = 0, 1  # enum http_direction
_LAYER_TLS = 1  # enum http_layer
_ROLES = frozenset(Role)


class ConnectionEndpoints(Struct, frozen=True, kw_only=True):
    """The process's endpoint (``local``) and the other one (``peer``)."""

    role: Role = Role.UNKNOWN
    tls: bool = False
    nonblocking: bool = False
    local: Endpoint = UNKNOWN_ENDPOINT
    peer: Endpoint = UNKNOWN_ENDPOINT
    local_key: bytes = b""  # 16 bytes of address and 2 of port; empty: no TCP, or not known
    peer_key: bytes = b""
    inodes: bytes = b""  # of a pair of Unix sockets, the smaller first
    sequences: tuple[int | None, int | None] = (None, None)  # TCP's, by enum http_direction

    def fill(self, facts: ConnectionFacts) -> None:
        """Write into ``facts`` what follows for a process in ``facts.role``."""
        facts.tls = self.tls
        facts.nonblocking = self.nonblocking
        if facts.role is Role.UNKNOWN:
            return
        client = facts.role is Role.CLIENT
        facts.client, facts.server = (self.local, self.peer) if client else (self.peer, self.local)
        if self.inodes:
            facts.wire_key = self.inodes
            facts.client_sequence = None if facts.late else 0
        elif self.local_key:
            facts.wire_key = self.local_key + self.peer_key if client else self.peer_key + self.local_key
            facts.client_sequence = self.sequences[_WRITE if client else _READ]


NO_ENDPOINTS = ConnectionEndpoints(nonblocking=True)
"""Of a connection whose beginning was not seen: it may be an event loop's."""


def read_endpoints(record: np.void) -> ConnectionEndpoints:
    """Read a ``struct http_open``. Never raises on its values."""
    role, family = int(record["role"]), int(record["address_family"])
    local, local_key = _endpoint(family, record["local_address"].tobytes(), int(record["local_port"]))
    peer, peer_key = _endpoint(family, record["peer_address"].tobytes(), int(record["peer_port"]))
    known = int(record["sequences_known"])
    numbers = record["sequence"].tolist()
    inodes = sorted((int(record["local_inode"]), int(record["peer_inode"])))
    paired = family == _AF_UNIX and inodes[0] > 0
    return ConnectionEndpoints(
        role=Role(role) if role in _ROLES else Role.UNKNOWN,
        tls=int(record["layer"]) == _LAYER_TLS,
        nonblocking=bool(record["nonblocking"]),
        local=local,
        peer=peer,
        local_key=local_key,
        peer_key=peer_key,
        inodes=b"".join(inode.to_bytes(8, "big") for inode in inodes) if paired else b"",
        sequences=(
            numbers[_READ] if known & 1 << _READ else None,
            numbers[_WRITE] if known & 1 << _WRITE else None,
        ),
    )


def _endpoint(family: int, address: bytes, port: int) -> tuple[Endpoint, bytes]:
    if family == _AF_INET:
        packed = _MAPPED + address[:4]
    elif family == _AF_INET6:
        packed = address
    else:
        return UNKNOWN_ENDPOINT, b""
    parsed = ipaddress.IPv6Address(packed)
    return Endpoint(address=str(parsed.ipv4_mapped or parsed), port=port), packed + port.to_bytes(2, "big")
