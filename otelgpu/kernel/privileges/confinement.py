"""Shuts a process in that looks at what observed programs wrote: few system calls, little memory, no way to write.

What it may still do is read files, as far as the capabilities go that it keeps, and answer over descriptors that it
has. Done in the child after fork, before it is given anything to read.

Source: seccomp(2), prctl(2), setrlimit(2), capabilities(7); numbers from asm/unistd_64.h.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
import resource
import signal
import struct
from collections.abc import Iterable
from typing import Final

from otelgpu.errors import OtelgpuError
from otelgpu.kernel.privileges.capabilities import Need
from otelgpu.kernel.privileges.dropping import give_up, take_up

_log = logging.getLogger("otelgpu.privileges")

NOBODY: Final = 65_534
"""Who owns nothing: what root could write to as its owner, it cannot."""

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_KEEPCAPS: Final = 8
_PR_SET_SECCOMP: Final = 22
_SECCOMP_MODE_FILTER: Final = 2
_ALLOW: Final = 0x7FFF_0000
_FAIL: Final = 0x0005_0000 | errno.EPERM
_KILL_PROCESS: Final = 0x8000_0000
_AUDIT_ARCH_X86_64: Final = 0xC000_003E

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K
_NR_AT, _ARCH_AT, _THIRD_AT = 0, 4, 32  # of struct seccomp_data; the low half of the third argument

_OPENAT: Final = 257
_ALLOWED: Final = {
    "read": 0, "write": 1, "close": 3, "fstat": 5, "poll": 7, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11,
    "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17, "readv": 19,
    "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32, "getpid": 39, "sendto": 44, "recvfrom": 45,
    "sendmsg": 46, "recvmsg": 47, "exit": 60, "fcntl": 72, "getcwd": 79, "getuid": 102, "getgid": 104,
    "geteuid": 107, "getegid": 108, "statfs": 137, "fstatfs": 138, "gettid": 186, "futex": 202,
    "sched_getaffinity": 204, "getdents64": 217, "clock_gettime": 228, "exit_group": 231, "newfstatat": 262,
    "readlinkat": 267, "faccessat": 269, "ppoll": 271, "preadv": 295, "getrandom": 318, "statx": 332,
    "readlink": 89, "stat": 4, "lstat": 6, "access": 21, "openat2": 437, "faccessat2": 439, "membarrier": 324,
    "rseq": 334, "set_robust_list": 273, "sigaltstack": 131, "uname": 63, "restart_syscall": 219,
    "clock_nanosleep": 230,
}  # fmt: skip
"""System calls of CPython and numpy that read; ``openat`` besides, where it opens for reading only."""


def keep_only(needs: Iterable[Need]) -> None:
    """Of the privileges; and no user's but nobody's. Raises :class:`OtelgpuError` where that cannot be had."""
    libc = ctypes.CDLL(None, use_errno=True)
    _become_nobody(libc)
    take_up()  # what another user has, is permitted and not effective
    give_up(needs)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def confine(*, memory_bytes: int, seconds: int, descriptors: int, in_filter: bool = True) -> None:
    """No more memory (beyond what is there) and CPU than that, and no way to write. After :func:`keep_only`.

    Ends with the thread that forked this process. Raises :class:`OtelgpuError` where that cannot be had; a kernel or
    machine without the filter of system calls goes on without it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.nice(5)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_NOFILE, descriptors)
    _limit(resource.RLIMIT_DATA, _data_bytes() + memory_bytes)
    _limit(resource.RLIMIT_CPU, seconds)
    if in_filter:
        filter_calls(libc)


def end_with_parent(parent: int) -> None:
    """Be killed when the thread that forked this process ends. ``parent``: its process; at once where it has ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _become_nobody(libc: ctypes.CDLL) -> None:
    """As far as this process may, and its user namespace has one.

    Its real user stays: that is who may end it (kill(2)), also without CAP_KILL. There is no way back, by the filter.
    """
    libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    try:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(-1, NOBODY, NOBODY)
    except OSError as error:
        _log.debug("a reader keeps its user: %s", error)


def filter_calls(libc: ctypes.CDLL) -> None:
    """From here on only calls that read; any other fails with EPERM."""
    if platform.machine() != "x86_64":
        return
    calls = sorted(_ALLOWED.values())
    allow = len(calls) + 2  # how far ALLOW is from the first comparison
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    code = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, _AUDIT_ARCH_X86_64),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NR_AT),
        *((_EQUAL, allow - position, 0, number) for position, number in enumerate(calls)),
        (_EQUAL, 0, 3, _OPENAT),
        (_LOAD, 0, 0, _THIRD_AT),
        (_ANY_BIT, 1, 0, writes),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _FAIL),
    ]
    packed = b"".join(struct.pack("=HBBI", *each) for each in code)
    rules = ctypes.create_string_buffer(packed, len(packed))
    program = ctypes.create_string_buffer(struct.pack("=HxxxxxxQ", len(code), ctypes.addressof(rules)))
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0):
        if ctypes.get_errno() != errno.EINVAL:  # which a kernel without it says
            raise OtelgpuError(f"cannot filter system calls: {os.strerror(ctypes.get_errno())}")
        _log.debug("this kernel does not filter system calls")


def _data_bytes() -> int:
    """What counts against RLIMIT_DATA now."""
    with open("/proc/self/status", "rb") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(b"VmData:"))


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, value))
