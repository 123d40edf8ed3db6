"""A socket that another process has made for us: taken from it by its number there, and who made it is asked for.

Sources: pidfd_getfd(2), Linux 5.6; ``SO_PEERCRED`` of unix(7): for a pair of sockets, who made it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from typing import Final

_SYS_PIDFD_GETFD: Final = 438  # the same on all architectures
_NO_DESCRIPTOR: Final = -1
_UCRED: Final = struct.Struct("<iII")


class NotOffered(OSError):
    """The descriptor is not one half of a pair of Unix sockets that this process made."""


def check_may_take(pid: int) -> None:
    """Raises OSError where nothing could be taken from the process: EPERM, ESRCH, ENOSYS before Linux 5.6."""
    try:
        os.close(_taken(pid, _NO_DESCRIPTOR))
    except OSError as error:
        if error.errno != errno.EBADF:
            raise


def _taken(pid: int, number: int) -> int:
    process = os.pidfd_open(pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = libc.syscall(_SYS_PIDFD_GETFD, process, number, 0)
        if descriptor < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return int(descriptor)
    finally:
        os.close(process)


def take_socket(pid: int, number: int) -> socket.socket:
    """Descriptor ``number`` of process ``pid``, which keeps its own; ours never waits.

    Needs the right to trace the process. Raises OSError: it has no such descriptor, or has ended, or the kernel is
    older than Linux 5.6 (ENOSYS); :class:`NotOffered`.
    """
    descriptor = _taken(pid, number)
    try:
        taken = socket.socket(fileno=descriptor)
    except OSError as error:
        os.close(descriptor)
        raise NotOffered(errno.ENOTSOCK, "what it offers is no socket") from error
    try:
        credentials = taken.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        if taken.family != socket.AF_UNIX or _UCRED.unpack(credentials)[0] != pid:
            raise NotOffered(errno.EPERM, "what it offers is a socket of another's")
    except BaseException:
        taken.close()
        raise
    taken.setblocking(False)
    return taken
