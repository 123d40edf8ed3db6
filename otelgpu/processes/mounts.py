"""Whose file systems are: those that a process mounted itself need not answer, and are not asked anything.

Whoever may make a user namespace mounts file systems in it that he serves himself (FUSE), and overlayfs above them, by
which the agent comes to ask them too: for a file's status, its opening, a part of its path. So only those are asked
that somebody with privileges in this program's own user namespace mounted, and such as nobody serves.

Example: of ``0:44 /library`` in a container's mount namespace, that containerd made, is no doubt; of the same in one
that a tenant made for himself with ``unshare -Um`` is.

Source: proc_pid_mountinfo(5), ioctl_ns(2), user_namespaces(7); fs/fuse/dir.c, fs/overlayfs/inode.c.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Final

from otelgpu.kernel.statx import Status

_NS_GET_USERNS: Final = 0xB701
_MAX_MOUNTINFO_BYTES: Final = 4 << 20
_SERVED_BY_NOBODY: Final = frozenset({"tmpfs", "ramfs"})
"""Of those that may be mounted in a user namespace."""


_all_trusted = False


class UntrustedMount(OSError):
    """What is there is of a file system that a process made itself, or may have."""


def trust_all(trusted: bool) -> None:
    """Ask all of them, for this whole program, or none of other user namespaces: ``trust_mounts``."""
    global _all_trusted
    _all_trusted = trusted


def may_be_asked(status: Status, tgid: int) -> bool:
    """Whether a file's file system is none that a process made; ``tgid``: who has the file, 0: this program."""
    if _all_trusted or not tgid or status.major or (status.major, status.minor) == _device_of_memory():
        return True  # its own, a block device's, or the kernel's own
    with suppress(OSError), _process(tgid) as folder:
        kind = _kind_of_mount(folder, status.mount)
        if kind in _SERVED_BY_NOBODY or (kind and _is_ours(folder)):
            return True
    for other in (os.getpid(), 1):
        with suppress(OSError), _process(other) as folder:
            if _kind_of_mount(folder, status.mount) and _is_ours(folder):
                return True
    return False


def open_root(tgid: int) -> int:
    """A descriptor of a process' root folder, below which each path may be asked. Raises OSError, of ours too."""
    with _process(tgid) as folder:
        root = os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        # Only now: who has come from our namespaces to some of his own does not come back.
        if _all_trusted or _is_ours(folder):
            return root
        os.close(root)
    raise UntrustedMount(
        errno.EACCES, "the process may have made the file systems below its root folder itself"
    )


@contextmanager
def _process(tgid: int) -> Iterator[int]:
    """Its folder in /proc, of no other that gets its number."""
    descriptor = os.open(f"/proc/{tgid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_ours(folder: int) -> bool:
    """Whether a process' mount namespace belongs to this program's user namespace. Raises OSError."""
    namespace = os.open("ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
    finally:
        os.close(namespace)
    try:
        return os.fstat(owner).st_ino == os.stat("/proc/self/ns/user").st_ino
    finally:
        os.close(owner)


def _kind_of_mount(folder: int, mount: int) -> str:
    """The file system of a mount that a process sees, such as ``overlay``; "": it sees none of that number."""
    descriptor = os.open("mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    with open(descriptor, "rb", buffering=1 << 16) as file:
        return kind_in(file, mount)


def kind_in(mountinfo: Iterable[bytes], mount: int) -> str:
    """The same in lines of a mountinfo file, of which no more than 4 MiB are read."""
    start, size = b"%d " % mount, 0
    for line in mountinfo:
        if line.startswith(start):
            return line.partition(b" - ")[2].split(b" ")[0].decode(errors="replace")
        size += len(line)
        if size > _MAX_MOUNTINFO_BYTES:
            break
    return ""


@cache
def _device_of_memory() -> tuple[int, int]:
    """That of memfd_create(2)."""
    with open(os.memfd_create("otelgpu", os.MFD_CLOEXEC), "rb") as file:
        device = os.fstat(file.fileno()).st_dev
    return os.major(device), os.minor(device)
