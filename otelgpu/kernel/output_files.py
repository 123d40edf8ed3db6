"""Opens files for writing whose place another user may have prepared.

Who runs this program is often root, and what it writes may hold prompts. In a folder that everybody may write to
(``/tmp``), a link or a file that is there already may be a trap: the kernel's ``fs.protected_symlinks`` and
``fs.protected_regular`` guard against that where they are set; this does wherever they are not.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def open_output(path: str | Path, mode: int, *, append: bool = False) -> int:
    """A descriptor of the file, made with ``mode`` where there was none, emptied unless ``append``.

    Raises OSError; PermissionError also for what somebody else put into a folder that all may write to.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if append else 0)
    folder = os.stat(os.path.dirname(path) or ".")
    shared = bool(folder.st_mode & stat.S_IWOTH)
    if shared:
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK  # nor wait for who reads a pipe
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        if shared and error.errno in (errno.ELOOP, errno.ENXIO):
            raise _foreign() from error
        raise
    try:
        status = os.fstat(descriptor)
        mine = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1
        if shared and not mine:
            raise _foreign()
        if not append and stat.S_ISREG(status.st_mode):
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _foreign() -> PermissionError:
    return PermissionError(
        errno.EACCES, "it is a link or another user's, in a folder that everybody may write to"
    )
