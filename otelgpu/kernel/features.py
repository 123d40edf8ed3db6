"""What this kernel and this process's privileges allow, found by looking and by trying.

Each answer is a :class:`Feature` with what follows from its absence, for ``otelgpu check``.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from pathlib import Path
from typing import Final

from msgspec import Struct

from otelgpu.kernel.kernel_btf import VMLINUX_BTF, lacking_features, lacking_names
from otelgpu.kernel.libbpf import BpfError, Link, load_libbpf
from otelgpu.kernel.loader import LoadedFamily, load_family, read_image
from otelgpu.kernel.privileges import capabilities
from otelgpu.kernel.uprobe_links import UprobeLinks, uprobe_links

_FLOOR: Final = (5, 15)
_CLOCKED: Final = (6, 1)  # programs on perf events may use maps that are not allocated beforehand
TRACEFS: Final = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_INITIAL_PID_NAMESPACE: Final = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h


class Feature(Struct, frozen=True, kw_only=True):
    """One thing the program needs or likes. ``required``: without it nothing can be observed."""

    name: str
    present: bool
    required: bool
    detail: str
    consequence: str = ""
    remedy: str = ""


def kernel_version() -> tuple[int, int]:
    """(major, minor) of the running kernel."""
    numbers = platform.release().split("-")[0].split(".")
    return int(numbers[0]), int("".join(c for c in numbers[1] if c.isdigit()))


def pid_namespace() -> int:
    """Inode number of this process's PID namespace, or 0 when it is the initial one."""
    inode = os.stat("/proc/self/ns/pid").st_ino
    return 0 if inode == _INITIAL_PID_NAMESPACE else inode


def mount_tracefs() -> bool:
    """Mount tracefs where it belongs if nothing is there; whether syscall tracepoints can be named now."""
    if any(os.path.isdir(f"{root}/events/syscalls") for root in TRACEFS):
        return True
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tracefs", TRACEFS[0].encode(), b"tracefs", 0, None):
        return False
    return os.path.isdir(f"{TRACEFS[0]}/events/syscalls")


def filesystem_magic(descriptor: int) -> int:
    """The kind of file system an open file is on, in whichever mount namespace: statfs(2), linux/magic.h."""
    result = ctypes.create_string_buffer(256)  # struct statfs: 120 bytes, f_type first
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fstatfs(descriptor, result):
        return 0
    return int(struct.unpack_from("<q", result)[0])


def survey() -> list[Feature]:
    """Everything that can be reported without loading a program."""
    version = kernel_version()
    try:
        libbpf = Feature(name="libbpf", present=True, required=True, detail=load_libbpf().version)
    except BpfError as error:
        libbpf = Feature(name="libbpf", present=False, required=True, detail=error.message, remedy=error.hint)
    traced, lacking = mount_tracefs(), lacking_features() if VMLINUX_BTF.exists() else []
    own = capabilities.held()
    closed = bool(own.missing(capabilities.OTHER_FILES)) and not os.access(
        TRACEFS[0], os.X_OK, effective_ids=True
    )
    return [
        Feature(
            name="kernel",
            present=version >= _FLOOR,
            required=False,
            detail=platform.release(),
            consequence="what older kernels lack is in the lines below",
            remedy=f"use Linux {_FLOOR[0]}.{_FLOOR[1]} or later",
        ),
        Feature(
            name="architecture",
            present=platform.machine() == "x86_64",
            required=True,
            detail=platform.machine(),
            consequence="arguments are read from registers that only x86-64 has",
            remedy="run on x86-64",
        ),
        Feature(
            name="BTF",
            present=VMLINUX_BTF.exists(),
            required=True,
            detail=str(VMLINUX_BTF),
            consequence="kernel structures cannot be found",
            remedy="use a kernel built with CONFIG_DEBUG_INFO_BTF=y",
        ),
        libbpf,
        Feature(
            name="BPF features",
            present=not lacking,
            required=True,
            detail="missing: " + ", ".join(lacking) if lacking else "all that the programs need",
            consequence="no BPF object can be loaded: nothing can be observed",
            remedy=f"use Linux {_FLOOR[0]}.{_FLOOR[1]} or later",
        ),
        *privileges(own),
        Feature(
            name="tracefs",
            present=traced,
            required=True,
            detail=TRACEFS[0],
            consequence="no syscall tracepoints: neither requests nor libraries that are loaded late are seen",
            remedy=f"run as root, or grant {own.missing(capabilities.OTHER_FILES)[0]}: only root may read {TRACEFS[0]}"
            if closed
            else f"mount -t tracefs tracefs {TRACEFS[0]} (and the kernel needs CONFIG_FTRACE_SYSCALLS=y)",
        ),
        Feature(
            name="bpffs",
            present=_is_mounted("bpf"),
            required=False,
            detail="/sys/fs/bpf",
            consequence="contexts cannot be shared with other eBPF tools; nothing else needs it",
            remedy="mount -t bpf bpf /sys/fs/bpf",
        ),
    ]


def privileges(own: capabilities.Held) -> list[Feature]:
    """What this process's capabilities are enough for; the first, ``capabilities``, is what nothing goes without."""
    kept = [capabilities.PERF_EVENTS] if capabilities.perf_events_are_kept() else []
    return [_privilege("capabilities", capabilities.LOADING, own)] + [
        _privilege(need.name, need, own) for need in (*kept, *capabilities.REPORTED)
    ]


def _privilege(name: str, need: capabilities.Need, own: capabilities.Held) -> Feature:
    missing = capabilities.names(own.missing(need))
    return Feature(
        name=name,
        present=not missing,
        required=need.required,
        detail=f"missing: {missing}" if missing else capabilities.names(sorted(need.capabilities)),
        consequence=need.without,
        remedy=f"run as root, or grant {missing}",
    )


def has_clock_programs() -> bool:
    """Whether a BPF program can run when a clock strikes and use maps that grow: profiles of time on the CPU."""
    return kernel_version() >= _CLOCKED


def profiles() -> Feature:
    """What of threads' stacks can be had."""
    unwinds, sampled = not lacking_names(["BPF_FUNC_loop"]), has_clock_programs()
    return Feature(
        name="profiles",
        present=unwinds and sampled,
        required=False,
        detail="all kinds, by unwind tables"
        if unwinds and sampled
        else f"no CPU samples, stacks by {'unwind tables' if unwinds else 'frame pointers only'}",
        consequence="profiles lack "
        + ("time on the CPU" if unwinds else "time on the CPU, and most native frames"),
        remedy=f"use Linux {_CLOCKED[0]}.{_CLOCKED[1]} or later"
        + ("" if unwinds else " (5.17: whole stacks)"),
    )


LINKS: Final = {
    UprobeLinks.SINGLE: "one for each probe, one at a time",
    UprobeLinks.MULTI: "one for all probes of a file",
    UprobeLinks.SESSION: "one for all probes of a file, entry and return together",
}


def probe_links() -> Feature:
    """How probes are attached: all that is seen is the same, what it costs is not."""
    kind = uprobe_links()
    return Feature(
        name="probe links",
        present=kind is UprobeLinks.SESSION,
        required=False,
        detail=LINKS[kind],
        consequence=(
            "each call costs two probes"
            + (
                ", and attaching and detaching take long (0.1 s a probe)"
                if kind is UprobeLinks.SINGLE
                else ""
            )
        ),
        remedy="use Linux 6.13 or later" + (" (6.6: attached at once)" if kind is UprobeLinks.SINGLE else ""),
    )


def _is_mounted(kind: str) -> bool:
    try:
        return any(line.split()[2] == kind for line in Path("/proc/mounts").read_text().splitlines())
    except OSError:
        return False


def return_probes_are_safe() -> bool:
    """See :class:`ReturnProbeTrial`. Raises :class:`BpfError` when the trial itself cannot be made."""
    trial = ReturnProbeTrial()
    try:
        family = load_family(read_image("process"), constants={}, ring_bytes=4096, programs=("on_trial",))
        try:
            return trial.is_survived(family)
        finally:
            family.close()
    finally:
        trial.end()


class ReturnProbeTrial:
    """Whether a process under a seccomp filter survives a return probe on this kernel.

    From 6.11 a uretprobe returns through a system call of its own, which a filter that does not know it
    answers with a kill; later kernels let it pass. Tried on a throwaway child: it filters every unknown
    call, then calls a probed function. To be made before there are threads: it forks.
    """

    def __init__(self) -> None:
        ready_read, self._ready_write = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                os.close(self._ready_write)
                os.read(ready_read, 1)
                _call_getpid_under_filter()
            finally:
                os._exit(1)
        os.close(ready_read)

    def is_survived(self, process: LoadedFamily) -> bool:
        """To be asked once. Raises :class:`BpfError` when the trial itself cannot be made."""
        links: list[Link] = []
        try:
            path, offset = function_file_offset("getpid")
            program = process.object.programs["on_trial"]
            links = program.attach_uprobes(path, [offset], [0], tgid=self._child)
        finally:
            status = self.end()
            process.links += links  # taken off with the others: by itself that takes two processes
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS:
            return False
        if status != 0:
            raise BpfError(f"the trial of return probes ended with status {status}, which says nothing")
        return True

    def end(self) -> int:
        """Let the child go on to its end: its status; 0 where that was done before."""
        if not self._child:
            return 0
        os.close(self._ready_write)
        child, self._child = self._child, 0
        return os.waitpid(child, 0)[1]


def _call_getpid_under_filter() -> None:
    """In the child: kill on the uretprobe system call (335), allow every other; then call libc's getpid."""
    libc = ctypes.CDLL(None)
    instructions = struct.pack(
        "<HBBIHBBIHBBIHBBI",
        *(0x20, 0, 0, 0),  # load the call's number
        *(0x15, 0, 1, 335),  # __NR_uretprobe, arch/x86/entry/syscalls/syscall_64.tbl
        *(0x06, 0, 0, 0x80000000),  # SECCOMP_RET_KILL_PROCESS
        *(0x06, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
    )
    code = ctypes.create_string_buffer(instructions, len(instructions))
    program = struct.pack("<HxxxxxxQ", 4, ctypes.addressof(code))
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    if libc.prctl(22, 2, program, 0, 0) == 0:  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        libc.getpid()
        os._exit(0)


def function_file_offset(name: str) -> tuple[str, int]:
    """The file and the file offset of a libc function, as this process has it mapped."""
    address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, _, *path = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end and path:
            return path[0], address - start + int(offset, 16)
    raise BpfError(f"cannot find {name} in this process's mappings")


def has_kprobes() -> bool:
    """Whether functions of the kernel can be probed: some kernels are built without."""
    return Path("/sys/bus/event_source/devices/kprobe").exists()
