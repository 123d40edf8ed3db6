"""What a test worker has for itself, so that workers side by side do not meet: a network, a BPF file system, the fakes.

In: nothing. Out: the calling thread, and all that it starts from then on, in a network namespace of which only
loopback is up, and in a mount namespace with an empty ``/sys/fs/bpf`` and a copy of the built fakes in their place: a
probe belongs to a file, so that an agent's on the copy of one worker are not hit by the programs of another. Processes
stay the machine's, as an agent's view of them is: what is observed is chosen by process, cgroup or executable.
Needs CAP_SYS_ADMIN. Formats: namespaces(7), mount(2), netdevice(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.rig.fakes import BUILD, build_fakes, missing_compiler

_CLONE_NEWNS: Final = 0x00020000  # include/uapi/linux/sched.h
_CLONE_NEWNET: Final = 0x40000000
_MS_REC: Final = 16384  # include/uapi/linux/mount.h
_MS_SLAVE: Final = 1 << 19
_SIOCGIFFLAGS: Final = 0x8913  # include/uapi/linux/sockios.h
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1
_BPF: Final = Path("/sys/fs/bpf")

_libc: Final = ctypes.CDLL(None, use_errno=True)
_machine_network: int | None = None


def isolate_worker() -> None:
    """Part from the other workers. Raises OSError where the kernel refuses.

    To be called once, by the thread that runs the tests.
    """
    global _machine_network
    network = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("unshare", _CLONE_NEWNET | _CLONE_NEWNS)
    except OSError:
        os.close(network)
        raise
    _machine_network = network
    _loopback_up()
    _mount(None, Path("/"), None, _MS_REC | _MS_SLAVE)  # what is mounted from here on is seen here only
    _mount("bpf", _BPF, "bpf", 0)
    if missing_compiler() is None:
        _copy_fakes()


@contextlib.contextmanager
def machine_network() -> Iterator[None]:
    """The network that the machine has, for who fetches something: the calling thread's and what it starts."""
    if _machine_network is None:
        yield
        return
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("setns", _machine_network, _CLONE_NEWNET)
        try:
            yield
        finally:
            _call("setns", own, _CLONE_NEWNET)
    finally:
        os.close(own)


@contextlib.contextmanager
def own_network(of: int | None = None) -> Iterator[None]:
    """A network of which only loopback is up, or that of the process ``of``, for the calling thread and what it starts.

    Raises OSError where the kernel refuses.
    """
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if of is None:
            _call("unshare", _CLONE_NEWNET)
            _loopback_up()
        else:
            its = os.open(f"/proc/{of}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                _call("setns", its, _CLONE_NEWNET)
            finally:
                os.close(its)
        try:
            yield
        finally:
            _call("setns", before, _CLONE_NEWNET)
    finally:
        os.close(before)


def _copy_fakes() -> None:
    """Files in memory, which go with the worker, in the place of those that all have."""
    built = os.open(build_fakes(), os.O_PATH | os.O_CLOEXEC)
    try:
        _mount("fakes", BUILD, "tmpfs", 0)
        shutil.copytree(f"/proc/self/fd/{built}", BUILD, symlinks=True, dirs_exist_ok=True)
    finally:
        os.close(built)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0)
        name, flags = struct.unpack("16sh22x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", name, flags | _IFF_UP))


def _mount(source: str | None, target: Path, kind: str | None, flags: int) -> None:
    encoded = (os.fsencode(part) if part is not None else None for part in (source, target, kind))
    _call("mount", *encoded, ctypes.c_ulong(flags), None)


def _call(function: str, *arguments: object) -> None:
    """A function of the C library that says by -1 that it failed."""
    if getattr(_libc, function)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
