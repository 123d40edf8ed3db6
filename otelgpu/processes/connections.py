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
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

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


@dataclass(frozen=True, slots=True, order=True)
class OpenConnection:
    """One end of a connection that a process holds by ``descriptor``."""

    descriptor: int
    role: Role


def open_connections(tgid: int, proc: Path = Path("/proc")) -> list[OpenConnection]:
    """The stream connections of a process, by descriptor; those that could be seen, should it end meanwhile."""
    sockets = dict(_descriptors(proc / str(tgid)))
    if not sockets:
        return []  # as nearly all: the tables of a busy host have thousands of rows
    process = proc / str(tgid)
    roles = {**_tcp_roles(process, _client_ports(proc)), **_unix_roles(process)}
    return sorted(
        OpenConnection(descriptor, roles[inode]) for descriptor, inode in sockets.items() if inode in roles
    )


def _descriptors(process: Path) -> Iterator[tuple[int, int]]:
    """(descriptor, inode) of every socket that the process has open; those found until it ended."""
    try:
        for entry in os.scandir(process / "fd"):
            try:
                match = _SOCKET.fullmatch(os.readlink(entry.path))
            except FileNotFoundError:
                continue  # closed meanwhile
            if match:
                yield int(entry.name), int(match.group(1))
    except OSError:
        return


def _client_ports(proc: Path) -> range:
    """The ports that the kernel gives to sockets that connect without having asked for one."""
    try:
        first, last = (proc / "sys/net/ipv4/ip_local_port_range").read_text().split()
        return range(int(first), int(last) + 1)
    except (OSError, ValueError):
        return range(32_768, 61_000)


def _tcp_roles(process: Path, client_ports: range) -> dict[int, Role]:
    """Inode → role, of every established connection in the process's network namespace."""
    rows = [
        (int(port, 16), state, int(inode))
        for table in ("tcp", "tcp6")
        for port, state, inode in _rows(process / "net" / table, _TCP_ROW)
    ]
    listening = {port for port, state, _ in rows if state == _LISTEN}
    return {
        inode: "SERVER" if port in listening else "CLIENT" if port in client_ports else "UNKNOWN"
        for port, state, inode in rows
        if state == _ESTABLISHED
    }


def _unix_roles(process: Path) -> dict[int, Role]:
    """The same of Unix sockets. Their paths are whatever a process chose, line ends included."""
    rows = [
        (int(flags, 16), state, int(inode), path)
        for flags, state, inode, path in _rows(process / "net/unix", _UNIX_ROW)
    ]
    listening = {path for flags, _, _, path in rows if flags & _LISTENS}
    return {
        inode: "SERVER" if path and path in listening else "UNKNOWN"
        for _, state, inode, path in rows
        if state == _CONNECTED
    }


def _rows(table: Path, row: re.Pattern[str]) -> Iterator[tuple[str, ...]]:
    """What the rows of a table say that look as they should; none where it cannot be read."""
    try:
        lines = table.read_text(errors="surrogateescape").split("\n")[1:]
    except OSError:
        return
    for line in lines:
        if (match := row.fullmatch(line)) is not None:
            yield match.groups()
