"""A file system in user space whose only file is far away: each read of it takes long. Root alone can mount it.

Source of the protocol: include/uapi/linux/fuse.h, version 7.31. Eight requests are answered, all others with ENOSYS.
"""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_IN: Final = struct.Struct("IIQQIIIHH")  # fuse_in_header
_OUT: Final = struct.Struct("IiQ")  # fuse_out_header
_ATTRIBUTES: Final = struct.Struct("6Q10I")  # fuse_attr
_READ: Final = struct.Struct("QQI")  # the beginning of fuse_read_in
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ_FILE, _RELEASE, _FLUSH, _INIT, _FORGET_MANY = (
    1,
    2,
    3,
    14,
    15,
    18,
    25,
    26,
    42,
)
_ROOT, _FILE = 1, 2
_SIZE: Final = 1 << 40
_DETACH: Final = 2  # MNT_DETACH
NAME: Final = "shard.bin"


def _attributes(node: int) -> bytes:
    kind = stat.S_IFDIR | 0o755 if node == _ROOT else stat.S_IFREG | 0o444
    return _ATTRIBUTES.pack(node, _SIZE, 0, 0, 0, 0, 0, 0, 0, kind, 1, 0, 0, 0, 4096, 0)


def _answer(opcode: int, node: int, body: bytes, delay: Callable[[int], float]) -> bytes | int:
    """The answer's body, or an error number."""
    if opcode == _INIT:
        return struct.pack("IIIIHHIIHHII24x", 7, 31, 0, 0, 8, 8, 4096, 1, 0, 0, 0, 0)
    if opcode == _LOOKUP:
        if body.rstrip(b"\0") != NAME.encode():
            return errno.ENOENT
        return struct.pack("4Q2I", _FILE, 0, 60, 60, 0, 0) + _attributes(_FILE)
    if opcode == _GETATTR:
        return struct.pack("QII", 60, 0, 0) + _attributes(node)
    if opcode == _OPEN:
        return struct.pack("QII", 1, 1, 0)  # FOPEN_DIRECT_IO: nothing is kept
    if opcode == _READ_FILE:
        _, offset, size = _READ.unpack_from(body)
        time.sleep(delay(offset))
        return bytes(size)
    return b"" if opcode in (_RELEASE, _FLUSH) else errno.ENOSYS


def _serve(device: int, delay: Callable[[int], float]) -> None:
    while True:
        try:
            request = os.read(device, 1 << 18)
        except OSError:  # it was unmounted
            return
        _, opcode, unique, node, *_ = _IN.unpack_from(request)
        if opcode in (_FORGET, _FORGET_MANY):
            continue
        answer = _answer(opcode, node, request[_IN.size :], delay)
        error, body = (-answer, b"") if isinstance(answer, int) else (0, answer)
        os.write(device, _OUT.pack(_OUT.size + len(body), error, unique) + body)


@contextmanager
def mounted(folder: Path, delay: Callable[[int], float]) -> Iterator[Path]:
    """The file's path. ``delay``: how long a read takes, in seconds, by its offset."""
    libc = ctypes.CDLL(None, use_errno=True)
    place = folder / "remote"
    place.mkdir()
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"remote", os.fsencode(place), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    server = multiprocessing.get_context("fork").Process(target=_serve, args=(device, delay), daemon=True)
    server.start()
    os.close(device)
    try:
        yield place / NAME
    finally:
        libc.umount2(os.fsencode(place), _DETACH)
        server.kill()
        server.join()
        with suppress(OSError):
            place.rmdir()
