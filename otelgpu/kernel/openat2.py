"""Opens a path as a process sees it whose root folder is another: openat2(2), which Python 3.11 does not have."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final

_SYS_OPENAT2: Final = 437  # the same on all architectures
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_IN_ROOT: Final = 0x10


def open_in_root(root: int, path: str, flags: int) -> int:
    """A descriptor of ``path`` below the folder ``root``: no link, absolute or not, leads out of it.

    Before Linux 5.6, or where a filter of system calls forbids it, links are followed as everybody's are. Raises
    OSError; ELOOP for a magic link of /proc.
    """
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(_SYS_OPENAT2, root, os.fsencode(path), how, len(how))
    if descriptor >= 0:
        return int(descriptor)
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EPERM):
        return os.open(path, flags | os.O_CLOEXEC, dir_fd=root)
    raise OSError(number, os.strerror(number), path)
