"""Who is not touched, and why: asked before anything is done to a process.

In: ``/proc/PID``. Out: :class:`InjectionRefused`, whose message says what stands in the way. Reads only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otelgpu.errors import OtelgpuError
from otelgpu.processes.live_injection.needed_calls import why_not_allowed
from otelgpu.processes.maps import read_maps

_PF_KTHREAD: Final = 0x200000
_ELF_MAGIC: Final = b"\x7fELF"
_EM_X86_64: Final = 62
_CUDA: Final = ("libcuda.so", "libcudart")
_LOADERS: Final = ("ld-linux-x86-64.so", "ld-2.")
MACHINE: Final = "x86_64"


_YAMA: Final = {
    1: (
        "kernel.yama.ptrace_scope is 1: only processes that it descends from may trace it",
        "as root (CAP_SYS_PTRACE), or after sysctl kernel.yama.ptrace_scope=0",
    ),
    2: (
        "kernel.yama.ptrace_scope is 2: only root may trace it",
        "as root (CAP_SYS_PTRACE), or after sysctl kernel.yama.ptrace_scope=0",
    ),
    3: (
        "kernel.yama.ptrace_scope is 3: nobody may trace anything until the next boot",
        "start it with the library instead: otelgpu run --source inject, docs/explanation/inject.md",
    ),
}
"""ptrace_scope → what it forbids, and what to do."""


class InjectionRefused(OtelgpuError):
    """A library is not loaded into this process; nothing was done to it."""


class NoCuda(InjectionRefused):
    """The process has nothing that could be observed."""


def _refuse(pid: int, why: str, hint: str = "") -> InjectionRefused:
    return InjectionRefused(f"no library is loaded into process {pid}: {why}", hint)


def _status(pid: int, proc: Path) -> dict[str, str]:
    lines = (proc / str(pid) / "status").read_text(errors="replace").splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def refuse_unsuitable(pid: int, *, proc: Path = Path("/proc"), machine: str | None = None) -> None:
    """Raises :class:`InjectionRefused` for a process that must not, or cannot, be given a library."""
    if (machine or platform.machine()) != MACHINE:
        raise _refuse(
            pid, f"it takes code for each architecture, and there is none for {machine or platform.machine()}"
        )
    if pid == os.getpid():
        raise _refuse(pid, "it is otelgpu's own")
    try:
        status = _status(pid, proc)
        flags = int((proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[6])
    except (OSError, IndexError, ValueError) as error:
        raise _refuse(pid, "there is no such process") from error
    _refuse_by_status(pid, status, flags)
    _refuse_by_program(pid, proc)
    _refuse_by_maps(pid, proc)


def _refuse_by_status(pid: int, status: dict[str, str], flags: int) -> None:
    if flags & _PF_KTHREAD:
        raise _refuse(pid, "it is a thread of the kernel")
    if status.get("Tgid") != str(pid):
        raise _refuse(
            pid, f"it is a thread of process {status.get('Tgid', '?')}", "give the process's number"
        )
    state = status.get("State", "?")[:1]
    if state in "ZX":
        raise _refuse(pid, "it has ended")
    tracer = status.get("TracerPid", "0")
    if tracer != "0":
        raise _refuse(
            pid, f"process {tracer} traces it already", "a debugger or strace has to let go of it first"
        )
    if state in "Tt":
        raise _refuse(pid, "it is stopped", f"kill -CONT {pid}")
    if status.get("Seccomp", "0") == "1":
        raise _refuse(pid, "it may but read, write and end (seccomp's strict mode)")
    if "shstk" in status.get("x86_Thread_features", "").split():
        raise _refuse(pid, "it has a shadow stack, which tells calls of ours from its own")


def _refuse_by_program(pid: int, proc: Path) -> None:
    folder = proc / str(pid)
    try:
        with (folder / "exe").open("rb") as program:
            head = program.read(20)
    except PermissionError as error:
        raise no_access(pid, proc=proc) from error
    except OSError as error:
        raise _refuse(pid, "it has ended, or is about to") from error
    if head[:5] != _ELF_MAGIC + b"\x02" or int.from_bytes(head[18:20], "little") != _EM_X86_64:
        raise _refuse(pid, "its program is not for x86-64")
    try:
        (folder / "root/proc/thread-self").lstat()
    except FileNotFoundError as error:
        if folder.exists():
            raise _refuse(pid, "it has no /proc, by which it would open the library") from error
        raise _refuse(pid, "it has ended, or is about to") from error
    except PermissionError as error:
        raise no_access(pid, proc=proc) from error
    except OSError as error:
        raise _refuse(pid, "it has ended, or is about to") from error


_START_WITH: Final = (
    "start it with the library instead: otelgpu run --source inject, docs/explanation/inject.md"
)


def has_filter(tid: int) -> bool:
    """Whether a thread has one of system calls. Raises OSError: it has ended."""
    return _status(tid, Path("/proc")).get("Seccomp", "0") != "0"


def refuse_by_filters(pid: int, filters: Sequence[bytes]) -> None:
    """Raises :class:`InjectionRefused` where they do not let the process do what it takes."""
    if filters and (why := why_not_allowed(filters)) is not None:
        raise _refuse(pid, f"by its seccomp filter {why}", _START_WITH)


def unknown_filter(pid: int, error: OSError) -> InjectionRefused:
    """A seccomp filter decides which system calls it may make, and the kernel does not give it to us."""
    if error.errno == errno.EACCES:
        return _refuse(
            pid,
            "a seccomp filter decides which system calls it may make, and we may not read that",
            f"give otelgpu CAP_SYS_ADMIN, and no seccomp filter of its own; or {_START_WITH}",
        )
    return _refuse(
        pid,
        "a seccomp filter decides which system calls it may make, and the kernel does not show it: "
        f"{error.strerror} (CONFIG_CHECKPOINT_RESTORE)",
        _START_WITH,
    )


def shares_files(pid: int, *, proc: Path = Path("/proc")) -> bool:
    """Whether the process has our mounts, and our root folder. Raises OSError: it has ended."""
    ours, theirs = proc / "self", proc / str(pid)
    return (ours / "ns/mnt").stat().st_ino == (theirs / "ns/mnt").stat().st_ino and (
        ours / "root"
    ).readlink() == (theirs / "root").readlink()


def no_access(pid: int, *, proc: Path = Path("/proc"), uid: int | None = None) -> InjectionRefused:
    """Why a process may not be looked at or traced, and who may; ``uid``: ours. ptrace(2), Yama in the kernel's manual.

    Of a process of the same user Yama is the likely reason where it is there, for it forbids tracing alone.
    """
    ours = os.geteuid() if uid is None else uid
    theirs, scope = ours, 0
    with contextlib.suppress(OSError, KeyError, IndexError, ValueError):
        theirs = int(_status(pid, proc)["Uid"].split()[1])
        scope = int((proc / "sys/kernel/yama/ptrace_scope").read_text())
    if theirs != ours:
        return _refuse(
            pid,
            f"it is user {theirs}'s, and we are user {ours}",
            "as that user, or as root (CAP_SYS_PTRACE, and CAP_DAC_OVERRIDE to write to its memory)",
        )
    why, hint = _YAMA.get(
        scope, ("it has more rights than we, or is not dumpable", "as root (CAP_SYS_PTRACE)")
    )
    return _refuse(pid, why, hint)


def _refuse_by_maps(pid: int, proc: Path) -> None:
    try:
        maps = read_maps(pid, proc=proc)
    except OSError as error:
        raise no_access(pid, proc=proc) from error
    if not maps:
        raise _refuse(pid, "it has ended, or is about to")
    names = {os.path.basename(each.path) for each in maps if each.is_file}
    if not any(name.startswith(_LOADERS) for name in names):
        raise _refuse(pid, "its program is linked statically, or not for glibc")
    if not any(name.startswith(_CUDA) for name in names):
        raise NoCuda(
            f"no library is loaded into process {pid}: it makes no CUDA calls (no libcuda, no libcudart)"
        )
