"""Opens files for writing whose place another user may have prepared.

Who runs this program is often root, and what it writes may hold prompts. In a folder that everybody may write to
(``/tmp``), and in another user's, a link or a file that is there already may be a trap: the kernel's
``fs.protected_symlinks`` and ``fs.protected_regular`` guard against that in the first where they are set; this does
wherever they are not.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def open_output(path: str | Path, mode: int, *, append: bool = False, keep: bool = False) -> int:
    """A descriptor of the file, made with ``mode`` where there was none, emptied unless ``append`` or ``keep``.

    A ``mode`` for the owner alone is that of a file which was there too. ``keep``: what it holds stays until something
    is written over it. Raises OSError; PermissionError also for what somebody else put into a folder that all may write
    to, and for a link in another user's.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if append else 0)
    folder = os.stat(os.path.dirname(path) or ".")
    shared = bool(folder.st_mode & stat.S_IWOTH)
    owners = {os.geteuid()} if shared else {os.geteuid(), folder.st_uid}
    guarded = shared or folder.st_uid not in (0, os.geteuid())
    if guarded:
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK  # nor wait for who reads a pipe
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        if guarded and error.errno in (errno.ELOOP, errno.ENXIO):
            raise _foreign(shared) from error
        raise
    try:
        status = os.fstat(descriptor)
        proper = stat.S_ISREG(status.st_mode) and status.st_uid in owners and status.st_nlink == 1
        if guarded and not proper:
            raise _foreign(shared)
        if not mode & _OTHERS and status.st_mode & _OTHERS and stat.S_ISREG(status.st_mode):
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~_OTHERS)
        if not (append or keep) and stat.S_ISREG(status.st_mode):
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _foreign(shared: bool) -> PermissionError:
    where = "that everybody may write to" if shared else "of another user"
    return PermissionError(errno.EACCES, f"it is a link or another user's, in a folder {where}")
