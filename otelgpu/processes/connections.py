"""Connections that a process had open before anyone was watching, from /proc, and which end of them it is.

A TCP connection is a server's when its local port is one that the same network namespace listens on, else a
client's when the port is of those that the kernel gives to clients. A Unix connection is a server's when it has
the path of a socket that listens, for accept() hands that on. Of any other the role is unknown.
Format: proc(5), /proc/PID/net/tcp, tcp6 and unix; tcp(7), ip_local_port_range.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

MOST_DESCRIPTORS: Final = 16_384
"""Of a process, that are looked at: 0.2 s. So many it may have, and so many others of its network, as it likes."""
MOST_TABLE_BYTES: Final = 8 << 20
"""Of each table of its network: 55,000 rows of TCP."""

Role = Literal["UNKNOWN", "SERVER", "CLIENT"]
"""Enumerators of ``enum http_role`` without their prefix."""

_ESTABLISHED: Final = "01"  # include/net/tcp_states.h
_LISTEN: Final = "0A"
_CONNECTED: Final = "03"  # SS_CONNECTED, include/uapi/linux/net.h
_LISTENS: Final = 1 << 16  # __SO_ACCEPTCON, include/uapi/linux/net.h
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
# sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode …
_TCP_ROW: Final = re.compile(
    r" *\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} ([0-9A-F]{2})(?: +\S+){3} +\d+ +\d+ +(\d{1,20}) .*"
)
# Num RefCount Protocol Flags Type St Inode [Path], of SOCK_STREAM
_UNIX_ROW: Final = re.compile(
    r"[0-9a-f]+: [0-9A-F]{8} [0-9A-F]{8} ([0-9A-F]{8}) 0001 ([0-9]{2}) +(\d{1,20})(?: (.*))?"
)


class OpenConnection(Struct, frozen=True, order=True):
    """One end of a connection that a process holds by ``descriptor``."""

    descriptor: int
    role: Role


class Found(Struct, frozen=True):
    """``connections`` by descriptor. ``complete``: False where there was more than is looked at."""

    connections: list[OpenConnection]
    complete: bool = True


def open_connections(tgid: int, proc: Path = Path("/proc")) -> Found:
    """The stream connections of a process; those that could be seen, should it end meanwhile."""
    process, looked_at = proc / str(tgid), _LookedAt()
    sockets = dict(_descriptors(process, looked_at))
    if not sockets:
        return Found([], looked_at.all)  # as nearly all: the tables of a busy host have thousands of rows
    roles = {**_tcp_roles(process, _client_ports(proc), looked_at), **_unix_roles(process, looked_at)}
    found = [
        OpenConnection(descriptor, roles[inode]) for descriptor, inode in sockets.items() if inode in roles
    ]
    return Found(sorted(found), looked_at.all)


class _LookedAt(Struct):
    all: bool = True


def _descriptors(process: Path, looked_at: _LookedAt) -> Iterator[tuple[int, int]]:
    """(descriptor, inode) of every socket that the process has open; those found until it ended."""
    try:
        with os.scandir(process / "fd") as entries:
            for entry in islice(entries, MOST_DESCRIPTORS):
                try:
                    match = _SOCKET.fullmatch(os.readlink(entry.path))
                except FileNotFoundError:
                    continue  # closed meanwhile
                if match:
                    yield int(entry.name), int(match.group(1))
            looked_at.all = next(entries, None) is None
    except OSError:
        return


def _client_ports(proc: Path) -> range:
    """The ports that the kernel gives to sockets that connect without having asked for one."""
    try:
        first, last = (proc / "sys/net/ipv4/ip_local_port_range").read_text().split()
        return range(int(first), int(last) + 1)
    except (OSError, ValueError):
        return range(32_768, 61_000)


def _tcp_roles(process: Path, client_ports: range, looked_at: _LookedAt) -> dict[int, Role]:
    """Inode → role, of every established connection in the process's network namespace."""
    rows = [
        (int(port, 16), state, int(inode))
        for table in ("tcp", "tcp6")
        for port, state, inode in _rows(process / "net" / table, _TCP_ROW, looked_at)
    ]
    listening = {port for port, state, _ in rows if state == _LISTEN}
    return {
        inode: "SERVER" if port in listening else "CLIENT" if port in client_ports else "UNKNOWN"
        for port, state, inode in rows
        if state == _ESTABLISHED
    }


def _unix_roles(process: Path, looked_at: _LookedAt) -> dict[int, Role]:
    """The same of Unix sockets. Their paths are whatever a process chose, line ends included."""
    rows = [
        (int(flags, 16), state, int(inode), path)
        for flags, state, inode, path in _rows(process / "net/unix", _UNIX_ROW, looked_at)
    ]
    listening = {path for flags, _, _, path in rows if flags & _LISTENS}
    return {
        inode: "SERVER" if path and path in listening else "UNKNOWN"
        for _, state, inode, path in rows
        if state == _CONNECTED
    }


def _rows(table: Path, row: re.Pattern[str], looked_at: _LookedAt) -> Iterator[tuple[str, ...]]:
    """What the rows of a table say that look as they should; none where it cannot be read."""
    try:
        with table.open("rb") as file:
            content = file.read(MOST_TABLE_BYTES)
            if file.read(1):
                looked_at.all, content = False, content.rpartition(b"\n")[0]
    except OSError:
        return
    for line in content.decode(errors="surrogateescape").split("\n")[1:]:
        if (match := row.fullmatch(line)) is not None:
            yield match.groups()
