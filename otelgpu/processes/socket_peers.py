"""Who has the other end of a TCP connection of a process, in whichever network namespace of this machine.

In: a process, and the inode of its socket. Out: the peer's address, and the process that holds a socket with the same
two ends the other way around. Where an address was translated on the way, or the peer is another machine, there is
none; where sockets of several namespaces look like it, none of them is named.

Format: proc(5), /proc/PID/net/tcp and tcp6, whose addresses are words in the machine's byte order.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import Struct

from otelgpu.processes.listing import list_processes

MOST_NAMESPACES: Final = 256
"""Whose tables are read; a node has one for each pod."""
MOST_TABLE_BYTES: Final = 8 << 20
MOST_DESCRIPTORS: Final = 4096
"""Of a process, that are looked at for the peer's socket."""

_ESTABLISHED: Final = "01"  # include/net/tcp_states.h
_ROW: Final = re.compile(
    r" *\d+: ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) ([0-9A-F]{2})"
    r"(?: +\S+){3} +\d+ +\d+ +(\d{1,20})(?: .*)?"
)
_Address = IPv4Address | IPv6Address


class End(Struct, frozen=True):
    """One end of a connection."""

    address: _Address
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if self.address.version == 6 else f"{self.address}:{self.port}"


class Peer(Struct, frozen=True, kw_only=True):
    """The other end. ``pid`` 0: nobody on this machine is known to have it.

    ``elsewhere``: that process' socket is in another network namespace.
    """

    address: str
    pid: int = 0
    elsewhere: bool = False


def peer_of(pid: int, inode: int, *, proc: Path = Path("/proc")) -> Peer | None:
    """None of a socket that is no established TCP connection in the namespace of ``pid``."""
    ends = next((ends for ends, each in _connections(proc / str(pid)) if each == inode), None)
    if ends is None:
        return None
    mine, theirs = ends
    address, home = str(theirs), _namespace(proc / str(pid))
    found = []
    for namespace, process in _namespaces(pid, proc):
        if namespace != home and (mine.address.is_loopback or theirs.address.is_loopback):
            continue  # each has addresses of its own there
        found += [
            (namespace, each)
            for ends, each in _connections(proc / str(process))
            if ends == (theirs, mine) and (namespace, each) != (home, inode)
        ]
    if len(found) != 1:
        return Peer(address=address)
    ((namespace, socket),) = found
    return Peer(address=address, pid=_holder(socket, proc), elsewhere=namespace != home)


def _namespaces(pid: int, proc: Path) -> Iterator[tuple[str, int]]:
    """Each network namespace that has processes, with one of them; that of ``pid`` first."""
    seen: set[str] = set()
    for process in (pid, *list_processes(proc=proc)):
        name = _namespace(proc / str(process))
        if name and name not in seen and len(seen) < MOST_NAMESPACES:
            seen.add(name)
            yield name, process


def _namespace(process: Path) -> str:
    """Empty where it may not be looked at."""
    try:
        return os.readlink(process / "ns/net")
    except OSError:
        return ""


def _connections(process: Path) -> Iterator[tuple[tuple[End, End], int]]:
    """((local, remote), inode) of every established connection in the namespace of a process."""
    for table in ("tcp", "tcp6"):
        try:
            with (process / "net" / table).open("rb") as file:
                lines = file.read(MOST_TABLE_BYTES).decode(errors="replace").split("\n")[1:]
        except OSError:
            continue
        for line in lines:
            if (row := _ROW.fullmatch(line)) is not None and row[5] == _ESTABLISHED:
                yield (_end(row[1], row[2]), _end(row[3], row[4])), int(row[6])


def _end(address: str, port: str) -> End:
    words = (int(address[at : at + 8], 16) for at in range(0, len(address), 8))
    found = ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return End(mapped or found, int(port, 16))


def _holder(inode: int, proc: Path) -> int:
    """The first process that has the socket open; 0 where none may be seen to."""
    name = f"socket:[{inode}]"
    for process in list_processes(proc=proc):
        try:
            with os.scandir(proc / str(process) / "fd") as entries:
                for entry in islice(entries, MOST_DESCRIPTORS):
                    if _is_link_to(entry.path, name):
                        return process
        except OSError:
            continue  # it has ended, or may not be looked at
    return 0


def _is_link_to(path: str, name: str) -> bool:
    try:
        return os.readlink(path) == name
    except OSError:
        return False  # closed meanwhile
