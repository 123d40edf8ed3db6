"""What a file is, as far as it is known without asking its file system: statx(2), AT_STATX_DONT_SYNC.

A file system in user space answers stat(2) when it pleases. Linux 4.11, ``mount`` from 5.8 on.
"""

from __future__ import annotations

import ctypes
import os
import struct
from functools import cache
from typing import Final, NamedTuple

_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
_AT_NO_AUTOMOUNT: Final = 0x800
_AT_STATX_DONT_SYNC: Final = 0x4000
_BASIC_STATS: Final = 0x7FF
_MNT_ID: Final = 0x1000
_STATX: Final = struct.Struct("=I24xHxxQQ48xqI4xqI4x8xIIQ")
"""mask, mode, inode, size, st_ctime, st_mtime, device, mount (include/uapi/linux/stat.h)."""


class Status(NamedTuple):
    """Of a file. ``mount``: of /proc/PID/mountinfo, 0 where the kernel does not say."""

    mode: int
    inode: int
    size_bytes: int
    changed_ns: int
    modified_ns: int
    major: int
    minor: int
    mount: int

    @property
    def device(self) -> int:
        """As ``st_dev``."""
        return os.makedev(self.major, self.minor)

    @property
    def kernel_device(self) -> int:
        """As BPF programs read it: MKDEV of include/linux/kdev_t.h."""
        return self.major << 20 | self.minor


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def cached_status(file: int | str) -> Status:
    """Of an open file, or of what a path leads to: what was known of it last. Raises OSError."""
    answer = ctypes.create_string_buffer(256)
    place, path = (file, b"") if isinstance(file, int) else (_AT_FDCWD, os.fsencode(file))
    flags = _AT_NO_AUTOMOUNT | _AT_STATX_DONT_SYNC | (0 if path else _AT_EMPTY_PATH)
    if _libc().statx(place, path, flags, _BASIC_STATS | _MNT_ID, answer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), None if isinstance(file, int) else file)
    mask, mode, inode, size, changed_s, changed, modified_s, modified, major, minor, mount = (
        _STATX.unpack_from(answer.raw)
    )
    return Status(
        mode=mode,
        inode=inode,
        size_bytes=size,
        changed_ns=changed_s * 1_000_000_000 + changed,
        modified_ns=modified_s * 1_000_000_000 + modified,
        major=major,
        minor=minor,
        mount=mount if mask & _MNT_ID else 0,
    )
