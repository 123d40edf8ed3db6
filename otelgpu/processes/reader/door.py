"""Opens files that somebody else names: what is opened is a regular file, and opening it waits for nobody.

A file system of its owner's making may still keep ``open()`` and ``read()`` as long as it likes, which in a question
(:mod:`~.messages`) costs no more than the worker. Nobody refuses files of FUSE: where one is opened or probed by the
agent itself, it is the agent that waits.

Source: open(2) (O_PATH), proc(5) (``map_files``, ``root``), statfs(2).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from otelgpu.kernel.features import filesystem_magic
from otelgpu.kernel.openat2 import open_in_root
from otelgpu.processes.maps import Mapping

FUSE_MAGIC: Final = 0x65735546  # include/uapi/linux/magic.h
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class NotRegular(OSError):
    """What is there is a folder, FIFO, socket or device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """One file as long as nobody writes to it: no owner can set ``changed_ns`` (st_ctime)."""

    device: int
    inode: int
    size_bytes: int
    changed_ns: int
    magic: int
    """Of the file system (``f_type``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileName:
    """How a file is named from outside the process that has it: the ways to it, best first.

    ``links``: links of /proc that lead to the very file, whatever its path names now. ``root`` and ``path``: where it
    lies below a process' root folder ("" : this program's own). ``inode``: its number, if a path must not be
    trusted to name the same file still; 0: any.
    """

    links: tuple[str, ...] = ()
    root: str = ""
    path: str = ""
    inode: int = 0


def mapped_file(pid: int, mapping: Mapping, *, proc: str = "/proc") -> FileName:
    """The file behind a mapping: ``map_files`` wants CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE (Linux 5.9)."""
    return FileName(
        links=(f"{proc}/{pid}/map_files/{mapping.start:x}-{mapping.end:x}",),
        root=f"{proc}/{pid}/root",
        path="" if mapping.deleted else mapping.path,
        inode=mapping.inode,
    )


def program_of(pid: int, *, proc: str = "/proc") -> FileName:
    """What a process executes."""
    return FileName(links=(f"{proc}/{pid}/exe",))


def file_at(path: str) -> FileName:
    """A file of this program's own file system, by its path."""
    return FileName(path=path)


@contextmanager
def opened(name: FileName) -> Iterator[tuple[int, FileIdentity]]:
    """A descriptor for reading and what file it is. Raises OSError, of the last way tried."""
    failure = OSError(errno.ENOENT, "no way to this file is known")
    for descriptor in _ways(name):
        if isinstance(descriptor, OSError):
            failure = descriptor
            continue
        try:
            yield descriptor, identity_of_open(descriptor)
        finally:
            os.close(descriptor)
        return
    raise failure


def open_link(path: str) -> int:
    """A descriptor for reading of the regular file that ``path`` leads to. Raises OSError."""
    return _for_reading(os.open(path, os.O_PATH | os.O_CLOEXEC))


def open_below(root: str, path: str) -> int:
    """The same of ``path`` as a process sees it whose root folder ``root`` is: links lead nowhere else."""
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _for_reading(open_in_root(folder, path.lstrip("/"), os.O_PATH))
    finally:
        os.close(folder)


def identity_of_open(descriptor: int) -> FileIdentity:
    """Of an open file."""
    status = os.fstat(descriptor)
    return FileIdentity(
        device=status.st_dev,
        inode=status.st_ino,
        size_bytes=status.st_size,
        changed_ns=status.st_ctime_ns,
        magic=filesystem_magic(descriptor),
    )


def _ways(name: FileName) -> Iterator[int | OSError]:
    """A descriptor, or why there is none, of each way."""
    for link in name.links:
        try:
            yield open_link(link)
        except OSError as error:
            yield error
    if not name.path:
        return
    for root in (name.root, "/") if name.root else ("",):
        try:
            descriptor = open_below(root, name.path) if root else open_link(name.path)
        except OSError as error:
            yield error
            continue
        if not name.inode or os.fstat(descriptor).st_ino == name.inode:
            yield descriptor
            continue
        os.close(descriptor)
        yield OSError(errno.ESTALE, "another file has taken the path of the mapped one", name.path)


def _for_reading(handle: int) -> int:
    """Open again what an O_PATH descriptor stands for, which is closed; only now anything of it acts."""
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise NotRegular(errno.EINVAL, "not a regular file")
        return os.open(f"/proc/self/fd/{handle}", _READ)
    finally:
        os.close(handle)
