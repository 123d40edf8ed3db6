"""Whether a process's seccomp filters let it do what loading our library takes. Pure.

In: the filters of a thread. Out: why not, or None. Each system call of ours must be allowed; what others of the process
may make because of it (libcupti, another version of glibc) may fail, but must not end the process.

x86-64. The calls are those of glibc 2.18 to 2.41 in ``pthread_create`` and ``dlopen``, and of ``otelgpu/inject``;
``tests/kernel/test_injection_seccomp.py`` has the kernel say that none is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otelgpu.processes.live_injection import seccomp

_ENOSYS: Final = 38
_NEW: Final = -1 & 0xFFFF_FFFF_FFFF_FFFF  # of a file: none
_CWD: Final = -100 & 0xFFFF_FFFF_FFFF_FFFF
_RX: Final = 0x5
_RW: Final = 0x3
_R: Final = 0x1

Call = tuple[str, int, tuple[int | None, ...]]
"""Name, number, arguments: None where it is an address, a length or a descriptor."""

NEEDED: Final[tuple[Call, ...]] = (
    # of the thread that is held (loading.py)
    ("mmap", 9, (None, 4096, _RX, 0x100022, _NEW, 0)),
    ("mmap", 9, (None, 4096, _RW, 0x100022, _NEW, 0)),
    ("munmap", 11, ()),
    ("rt_sigreturn", 15, ()),
    ("restart_syscall", 219, ()),
    # pthread_create, and its thread
    ("mmap", 9, (0, None, 0, 0x20022, _NEW, 0)),
    ("mprotect", 10, (None, None, _RW)),
    ("clone", 56, (0x3D0F00,)),
    ("rt_sigprocmask", 14, ()),
    ("set_robust_list", 273, ()),
    ("futex", 202, (None, 128)),
    ("futex", 202, (None, 129)),
    ("futex", 202, (None, 137)),
    ("futex", 202, (None, 393)),
    ("madvise", 28, (None, None, 4)),
    ("exit", 60, (0,)),
    # the code that it runs (amd64.py)
    ("gettid", 186, ()),
    ("socketpair", 53, (1, 0x80005, 0)),
    ("poll", 7, (None, 1)),
    ("recvmsg", 47, (None, None, 0x40000040)),
    ("close", 3, ()),
    # dlopen, of ours and of libcupti
    ("openat", 257, (_CWD, None, 0x80000)),
    ("read", 0, ()),
    ("mmap", 9, (0, None, _R, 0x802, None, 0)),
    ("mmap", 9, (None, None, _RX, 0x812, None)),
    ("mmap", 9, (None, None, _RW, 0x812, None)),
    ("mmap", 9, (None, None, _RW, 0x32, _NEW, 0)),
    ("mprotect", 10, (None, None, _R)),
    # malloc's arena of that thread
    ("mmap", 9, (0, None, 0, 0x4022, _NEW, 0)),
    ("mmap", 9, (0, None, _RW, 0x22, _NEW, 0)),
    ("brk", 12, ()),
    # the library
    ("getpid", 39, ()),
    ("sendto", 44, (None, None, None, 0x4000, 0, 0)),
    ("fstat", 5, ()),
    ("mmap", 9, (0, None, _RW, 0x1, None, 0)),
    ("madvise", 28, (None, None, 18)),
)
"""Each must be allowed."""

_AT_EMPTY_PATH: Final = 0x1000
TOLERATED: Final[tuple[Call, ...]] = (
    # a later glibc tries it, and takes another where it is answered ENOSYS
    ("clone3", 435, ()),
    ("rseq", 334, (None, None, 0)),
    ("newfstatat", 262, (None, None, None, _AT_EMPTY_PATH)),
    # without them something is found otherwise, or waited for otherwise
    ("newfstatat", 262, (_CWD, None, None, 0)),
    ("stat", 4, ()),
    ("lstat", 6, ()),
    ("access", 21, ()),
    ("faccessat", 269, ()),
    ("readlink", 89, ()),
    ("readlinkat", 267, ()),
    ("pread64", 17, ()),
    ("lseek", 8, ()),
    ("getcwd", 79, ()),
    ("getdents64", 217, ()),
    ("statfs", 137, ()),
    ("fcntl", 72, ()),
    ("ioctl", 16, ()),
    ("uname", 63, ()),
    ("sysinfo", 99, ()),
    ("prctl", 157, ()),
    ("getrandom", 318, ()),
    ("sched_getaffinity", 204, ()),
    ("sched_yield", 24, ()),
    ("nanosleep", 35, ()),
    ("clock_nanosleep", 230, ()),
    ("clock_gettime", 228, ()),
    ("eventfd2", 290, ()),
    ("pipe2", 293, ()),
    ("socket", 41, (1, None, 0)),
    ("memfd_create", 319, ()),
    ("mremap", 25, ()),
    ("of number -1", 0xFFFF_FFFF, ()),
    ("of a number that no call has", 1_000, ()),
)
"""Each may fail, but not end the process. The last stands for those that libcupti may make, which is not known; the one
before is what a call becomes that is withdrawn while the thread is stopped at it, as ``rt_sigreturn`` is."""

_ENDS: Final = frozenset((seccomp.KILL_PROCESS, seccomp.KILL_THREAD, seccomp.TRAP))


def why_not_allowed(filters: Sequence[bytes]) -> str | None:
    """Of the first call that stands in the way; None: none does."""
    calls = (*((each, False) for each in NEEDED), *((each, True) for each in TOLERATED))
    for (name, number, arguments), tolerated in calls:
        try:
            result = seccomp.result_of(filters, number, arguments)
        except seccomp.NotKnown:
            return f"whether it may make system call {name} depends on what is not known beforehand"
        except seccomp.BadFilter as error:
            return f"its filter is not understood: {error}"
        action = result & seccomp.ACTION
        if action in (seccomp.ALLOW, seccomp.LOG):
            continue
        if action in _ENDS:
            return f"system call {name} would end it"
        if action != seccomp.ERRNO:
            return f"another process decides about system call {name}"
        if not tolerated or (name in ("clone3", "rseq") and result & 0xFFFF != _ENOSYS):
            return f"system call {name} is refused to it"
    return None
