"""Opens files that somebody else names: what is opened is a regular file, and opening it waits for nobody.

Nor does the question what it is: that of files which a process may serve itself (:mod:`otelgpu.processes.mounts`) is
not asked, and they are not opened.

Source: open(2) (O_PATH), proc(5) (``map_files``, ``root``), statx(2).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import Final

from otelgpu.kernel.openat2 import open_in_root
from otelgpu.kernel.statx import Status, cached_status
from otelgpu.processes.mounts import UntrustedMount, may_be_asked, open_root

_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_OF_PROCESS: Final = re.compile(r"/proc/(\d+)/")


class NotRegular(OSError):
    """What is there is a folder, FIFO, socket or device."""


def open_link(path: str) -> int:
    """A descriptor for reading of the regular file that ``path`` leads to, such as ``/proc/7/exe``.

    Raises OSError; :class:`~otelgpu.processes.mounts.UntrustedMount` among them.
    """
    return _for_reading(os.open(path, os.O_PATH | os.O_CLOEXEC), _process_in(path))


def open_below(root: str, path: str) -> int:
    """The same of ``path`` as a process sees it whose root folder ``root`` is: links lead nowhere else."""
    folder = open_folder(root)
    try:
        # By their names alone all files there may be asked: see open_root.
        return _for_reading(open_in_root(folder, path.lstrip("/"), os.O_PATH), 0)
    finally:
        os.close(folder)


def open_folder(root: str) -> int:
    """A descriptor (O_PATH) of a process' root folder, ``/proc/7/root``, or of another. Raises OSError, as above."""
    tgid = _process_in(root)
    return open_root(tgid) if tgid else os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _process_in(path: str) -> int:
    """Whose link of /proc it is; 0: none."""
    found = _OF_PROCESS.match(path)
    return int(found[1]) if found else 0


def _for_reading(handle: int, tgid: int) -> int:
    """Open again what an O_PATH descriptor stands for, which is closed; only now anything of it acts."""
    try:
        status: Status = cached_status(handle)
        if not stat.S_ISREG(status.mode):
            raise NotRegular(errno.EINVAL, "not a regular file")
        if not may_be_asked(status, tgid):
            raise UntrustedMount(errno.EACCES, "on a file system that a process may have made itself")
        return os.open(f"/proc/self/fd/{handle}", _READ)
    finally:
        os.close(handle)
