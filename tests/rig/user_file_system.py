"""A file system in user space, of one file, whose owner says what is answered: what a hostile tenant can mount.

    python user_file_system.py DEVICE FOLDER FILE [--overlay] [--silent-at OFFSET…] [--silent-on OPCODE…]

In a user and mount namespace of its own FILE is served as ``libcudart.so.12`` below FOLDER (``--overlay``: through an
overlayfs above it), mapped executable, and held until standard input ends. Requests of a ``--silent-on`` opcode, and
reads of the page at a ``--silent-at`` offset, are never answered once it is open; each is told on standard output.
DEVICE is ``/dev/fuse``, opened in the namespace. Standard library only: attackers run it as it is.

Source: include/uapi/linux/fuse.h (version 7.31), mount(2), user_namespaces(7).
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import stat
import struct
import sys
import threading
from pathlib import Path
from typing import Final

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_NOSUID, MS_NODEV = 2, 4
_IN: Final = struct.Struct("<IIQQIIII")
_OUT: Final = struct.Struct("<IiQ")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS = 1, 2, 3, 14, 15, 17
_INIT, _OPENDIR, _INTERRUPT, _BATCH_FORGET = 26, 27, 36, 42
# RELEASE, READDIR, RELEASEDIR, ACCESS; not FLUSH, which is then never asked again: not by the server's own end either.
_ANSWERED_EMPTY: Final = (18, 28, 29, 34)
_ENOENT, _ENOSYS, _ENODATA = 2, 38, 61
_XATTRS: Final = (22, 23)
_ROOT, _FILE = 1, 2
_NAME: Final = b"libcudart.so.12"

libc = ctypes.CDLL(None, use_errno=True)


class Server:
    """Answers the requests that come by a descriptor of ``/dev/fuse``."""

    def __init__(self, device: int, content: bytes, silent_at: set[int], silent_on: set[int]) -> None:
        self._device, self._content = device, content
        self._silent_at, self._silent_on = silent_at, silent_on
        self.armed = False

    def serve(self) -> None:
        """Until the file system is unmounted."""
        while True:
            try:
                request = os.read(self._device, 1 << 20)
            except OSError:
                return
            _, opcode, unique, node, _, _, pid, _ = _IN.unpack_from(request)
            answer = self._answer(opcode, node, request[_IN.size :], pid)
            if isinstance(answer, int):
                os.write(self._device, _OUT.pack(_OUT.size, -answer, unique))
            elif answer is not None:
                os.write(self._device, _OUT.pack(_OUT.size + len(answer), 0, unique) + answer)

    def _answer(self, opcode: int, node: int, body: bytes, pid: int) -> bytes | int | None:
        if opcode in (_FORGET, _INTERRUPT, _BATCH_FORGET):
            return None
        if self.armed and opcode in self._silent_on:
            print(f"silent on {opcode} of {pid}", flush=True)
            return None
        if opcode == _INIT:
            return struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 0, 12, 10, 4096, 1, 0, 0, 0, *[0] * 7)
        if opcode == _LOOKUP:
            if node != _ROOT or body.rstrip(b"\0") != _NAME:
                return _ENOENT
            return struct.pack("<QQQQII", _FILE, 0, 0, 0, 0, 0) + self._attributes(_FILE)
        if opcode == _GETATTR:
            return struct.pack("<QII", 0, 0, 0) + self._attributes(node)
        if opcode in (_OPEN, _OPENDIR):
            return struct.pack("<QII", 0, 0, 0)
        if opcode == _READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            if self.armed and any(offset <= at < offset + size for at in self._silent_at):
                print(f"silent at {offset} of {pid}", flush=True)
                return None
            return self._content[offset : offset + size]
        if opcode == _STATFS:
            return struct.pack("<5Q4I6I", 1, 0, 0, 1, 0, 4096, 255, 4096, 0, *[0] * 6)
        if opcode in _ANSWERED_EMPTY:
            return b""
        return _ENODATA if opcode in _XATTRS else _ENOSYS

    def _attributes(self, node: int) -> bytes:
        size, mode = (
            (len(self._content), stat.S_IFREG | 0o755) if node == _FILE else (0, stat.S_IFDIR | 0o755)
        )
        times = (0,) * 3
        # ino, size, blocks, times and their nanoseconds, mode, links, owner, group, device, block, flags
        return struct.pack("<6Q10I", node, size, -(-size // 512), *times, *times, mode, 1, 0, 0, 0, 4096, 0)


def enter_namespaces() -> None:
    """Become root in a user namespace, with mounts of its own."""
    user, group = os.getuid(), os.getgid()
    _check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def map_to_execute(descriptor: int, size: int) -> None:
    """mmap(2) and nothing else: Python's asks for the size, which nobody may answer any more. Raises OSError."""
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    mapped = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, descriptor, 0)
    _check(mapped == ctypes.c_void_p(-1).value, "mmap")


def mount(source: str, target: str, kind: str, options: str) -> None:
    """mount(2). Raises OSError."""
    flags = MS_NOSUID | MS_NODEV
    _check(
        libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()), f"mount {kind}"
    )


def _check(failed: int, what: str) -> None:
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("device")
    parser.add_argument("folder")
    parser.add_argument("file")
    parser.add_argument("--overlay", action="store_true")
    parser.add_argument("--silent-at", type=int, nargs="*", default=[])
    parser.add_argument("--silent-on", type=int, nargs="*", default=[])
    options = parser.parse_args()
    enter_namespaces()
    mount("tmpfs", options.folder, "tmpfs", "")
    below, empty, above = (f"{options.folder}/{name}" for name in ("below", "empty", "above"))
    for each in (below, empty, above):
        os.mkdir(each)
    device = os.open(options.device, os.O_RDWR)
    server = Server(device, Path(options.file).read_bytes(), set(options.silent_at), set(options.silent_on))
    mount("fuse", below, "fuse", f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other")
    threading.Thread(target=server.serve, daemon=True).start()
    path = f"{below}/{_NAME.decode()}"
    if options.overlay:
        mount("overlay", above, "overlay", f"lowerdir={below}:{empty}")
        path = f"{above}/{_NAME.decode()}"
    with open(path, "rb") as file:
        server.armed = True
        map_to_execute(file.fileno(), os.path.getsize(options.file))
    print("mapped", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
