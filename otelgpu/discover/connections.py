"""Connections that a server accepted before anyone was watching, from /proc.

A connection is a server's when its local port is one that the same network namespace listens on.
Format: proc(5), /proc/PID/net/tcp and tcp6.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ESTABLISHED: Final = "01"
_LISTEN: Final = "0A"
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")


def accepted_connections(tgid: int) -> list[int]:
    """The file descriptors of a process that are established connections to a listening port."""
    sockets = dict(_descriptors(tgid))
    if not sockets:
        return []  # as nearly all: the tables of a busy host have thousands of rows
    rows = list(_sockets(tgid))
    listening = {port for port, state, _ in rows if state == _LISTEN}
    inodes = {inode for port, state, inode in rows if state == _ESTABLISHED and port in listening}
    return sorted(descriptor for descriptor, inode in sockets.items() if inode in inodes)


def _descriptors(tgid: int) -> Iterator[tuple[int, int]]:
    """(descriptor, inode) of every socket that the process has open; those found until it ended."""
    try:
        for entry in os.scandir(f"/proc/{tgid}/fd"):
            try:
                match = _SOCKET.fullmatch(os.readlink(entry.path))
            except FileNotFoundError:
                continue  # closed meanwhile
            if match:
                yield int(entry.name), int(match.group(1))
    except OSError:
        return


def _sockets(tgid: int) -> Iterator[tuple[int, str, int]]:
    """(local port, state, inode) of every TCP socket in the process's network namespace."""
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{tgid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            yield int(fields[1].rpartition(":")[2], 16), fields[3], int(fields[9])
