"""A file of ours that a process in a container may be given a descriptor of: it must not become able to write it.

Who has a descriptor may open the file anew by it (``/proc/self/fd``), for writing too where the file's owner and mode
allow that: root in a container is root there. What holds is a mount that is read-only; so the file is opened through
one that nobody else has, and that is in no namespace, for its flags to be changed by.

Sources: open_tree(2) and mount_setattr(2), Linux 5.12; ``fs/namespace.c`` of Linux.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Final

_SYS_OPEN_TREE: Final = 428  # the same on all architectures
_SYS_MOUNT_SETATTR: Final = 442
_OPEN_TREE_CLONE: Final = 1
_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
_MOUNT_ATTR_RDONLY: Final = 1
_ATTRIBUTES: Final = struct.Struct("=QQQQ")
"""``struct mount_attr``: to set, to clear, propagation, user namespace."""


def open_unwritable(path: Path) -> int:
    """A descriptor for reading, by which nobody can write. Raises OSError; EPERM without CAP_SYS_ADMIN.

    That right is not needed where ``path`` is on a mount that is read-only.
    """
    plain = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if os.fstatvfs(plain).f_flag & os.ST_RDONLY:
        return plain
    os.close(plain)
    folder = _read_only_mount(path.parent)
    try:
        return os.open(path.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
    finally:
        os.close(folder)  # with it the mount is let go, and lasts as long as the file is open


def _read_only_mount(folder: Path) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    mount = libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(folder), _OPEN_TREE_CLONE | os.O_CLOEXEC)
    if mount < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(folder))
    attributes = _ATTRIBUTES.pack(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    if libc.syscall(_SYS_MOUNT_SETATTR, mount, b"", _AT_EMPTY_PATH, attributes, len(attributes)) < 0:
        number = ctypes.get_errno()
        os.close(mount)
        raise OSError(number, os.strerror(number), str(folder))
    return int(mount)
