"""Who runs on this host: processes, and what they are in.

In: ``/proc``. Out: :class:`ProcessFacts`, of which resources.py makes what telemetry calls a process.
Of a process' environment only OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and what launchers of jobs number their ranks
by (jobs.py) are looked at; of its arguments none is exported, and of its launcher's where its ranks meet. Both can hold
secrets.

Sources: proc_pid_stat(5), proc_pid_status(5), proc_pid_environ(5); the SDK specification "General SDK Configuration".
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from otelgpu.elf.image import ElfError
from otelgpu.kernel.statx import cached_status
from otelgpu.processes.containers import PlacedBy, Reader, place_process, read_reader
from otelgpu.processes.elf_files import open_elf
from otelgpu.processes.jobs import VARIABLES, job_attributes
from otelgpu.processes.kubernetes import own_pod

_PROC: Final = Path("/proc")
MAX_ARGUMENTS_BYTES: Final = 4096
LAUNCHER_GENERATIONS: Final = 8
"""How far above a rank its launcher may be: between them are shells, wrappers and profilers."""
_MAX_ENVIRON_BYTES: Final = 4 << 20
_MAX_FILE_BYTES: Final = 1 << 20
_MAX_STAT_BYTES: Final = 4096
_PIECE_BYTES: Final = 1 << 16
KNOWN_PROGRAMS: Final = 4096
_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PF_KTHREAD: Final = 0x0020_0000  # include/linux/sched.h

# Names of executables. Group 1 of the first: the implementation.
PYTHON: Final = re.compile(r"(python|pypy)[0-9.]*(?:t|d|-dbg)?|python3?-config")
_INTERPRETERS: Final = re.compile(r"(?:ba|da|z|k|a)?sh|perl[0-9.]*|ruby[0-9.]*|node|busybox|php[0-9.]*")
# Options of python that take the next word as their value.
_PYTHON_VALUED: Final = {"-W", "-X", "--check-hash-based-pycs"}


_VARIABLE: Final = re.compile(
    rb"(?:\A|\0)("
    + b"|".join(
        sorted(name.encode() for name in {"OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", *VARIABLES})
    )
    + rb")=([^\0]*)"
)


class ProcessFacts(Struct, frozen=True, kw_only=True):
    """A process at one moment. Unreadable parts are empty.

    ``ns_pids``: its process ids from the outermost PID namespace (``tgid``) to its own. ``start_time_ns``:
    CLOCK_BOOTTIME, as coarse as the kernel's ticks (10 ms); with ``tgid`` it names a process for good.
    ``command``: its arguments, at most MAX_ARGUMENTS_BYTES of them; never export more than the first.
    ``seccomp``: 0 none, 1 strict, 2 filter. ``cgroup_path``: in the v2 hierarchy, "" without one.
    ``container_id``, ``pod_uid`` and ``container_name`` are "" outside of containers; ``placed_by``: how they are
    known; ``with_agent``: they are the agent's own. ``service_name`` and ``resource_attributes`` are two variables
    of the environment, verbatim. ``is_go``: its program was built by the Go toolchain. ``job``: the attributes of
    jobs.py.
    """

    tgid: int
    ns_pids: tuple[int, ...]
    ppid: int
    start_time_ns: int
    comm: str
    command: tuple[str, ...]
    executable: str
    uid: int
    seccomp: int
    cgroup_path: str
    container_id: str
    pod_uid: str
    service_name: str
    resource_attributes: str
    is_go: bool = False
    job: tuple[tuple[str, str | int], ...] = ()
    container_name: str = ""
    placed_by: PlacedBy = ""
    with_agent: bool = False

    @property
    def payer(self) -> str:
        """Whose share of what all have it takes: its container's, or its user's where it runs in none.

        What only its mounts say of its container is not enough: it can have any mounted.
        """
        if self.container_id and self.placed_by != "mountinfo":
            return f"container {self.container_id}"
        return f"user {self.uid} in {self.cgroup_path or '/'}"


def list_processes(*, proc: Path = _PROC) -> list[int]:
    """The tgids of all processes that this PID namespace shows, ascending."""
    try:
        return sorted(int(entry.name) for entry in os.scandir(proc) if entry.name.isdecimal())
    except OSError:
        return []


def list_members(cgroup: Path) -> list[int]:
    """The tgids of the processes in a cgroup v2 directory, at any depth, that this PID namespace shows.

    None of a directory that is gone, or of a threaded one, whose threads may be of many processes (cgroups(7)).
    """
    found: list[int] = []
    for folder, _, _ in os.walk(cgroup):
        found += map(int, _read(Path(folder) / "cgroup.procs").split())
    return [tgid for tgid in found if tgid]  # 0: of another namespace


def descendants(*tgids: int, proc: Path = _PROC) -> list[int]:
    """Children, their children and so on, without ``tgids`` themselves; parents come before their children.

    What was started by a process that has ended since belongs to its reaper and is not found.
    """
    children: dict[int, list[int]] = {}
    for process in list_processes(proc=proc):
        status = _stat(process, proc)
        if status is not None:
            children.setdefault(status.ppid, []).append(process)
    found: list[int] = []
    seen = set(tgids)
    level = list(tgids)
    while level:
        level = [child for parent in level for child in children.get(parent, ()) if child not in seen]
        seen.update(level)
        found += level
    return found


def age_s(tgid: int, *, proc: Path = _PROC) -> float:
    """For how many seconds a process has run; 0 of one that is gone."""
    status = _stat(tgid, proc)
    if status is None:
        return 0.0
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - status.start_ticks * _TICK_NS / 1e9, 0.0)


def start_time_ns(tgid: int, *, proc: Path = _PROC) -> int | None:
    """When a process began, as :attr:`ProcessFacts.start_time_ns`; None of one that is gone."""
    status = _stat(tgid, proc)
    return status.start_ticks * _TICK_NS if status is not None else None


class CpuUse(Struct, frozen=True, kw_only=True):
    """What a process has used so far, all of its threads together, to the tick of 10 ms.

    ``comm``: what the kernel calls it. ``start_time_ns``: as :attr:`ProcessFacts.start_time_ns`.
    """

    comm: str
    start_time_ns: int
    cpu_s: float


def cpu_use(tgid: int, *, proc: Path = _PROC) -> CpuUse | None:
    """One reading; None of a process that is gone."""
    status = _stat(tgid, proc)
    if status is None:
        return None
    return CpuUse(
        comm=status.comm,
        start_time_ns=status.start_ticks * _TICK_NS,
        cpu_s=status.cpu_ticks * _TICK_NS / 1e9,
    )


def is_kernel_thread(tgid: int, *, proc: Path = _PROC) -> bool:
    """Whether a process is a thread of the kernel, which has no program and no memory of its own."""
    status = _stat(tgid, proc)
    return status is not None and bool(status.flags & _PF_KTHREAD)


def is_child(tgid: int, *, proc: Path = _PROC) -> bool:
    """Whether this program has started a process."""
    status = _stat(tgid, proc)
    return status is not None and status.ppid == os.getpid()


def is_copy_of_this(tgid: int, *, proc: Path = _PROC) -> bool:
    """Whether a process is a child of this one that has not begun a program of its own."""
    if not is_child(tgid, proc=proc):
        return False
    return _read(proc / str(tgid) / "cmdline") == _read(proc / str(os.getpid()) / "cmdline")


@functools.cache
def _agent() -> Reader:
    """Where this program runs, which does not change."""
    return read_reader(own_pod(os.environ).uid)


def describe(tgid: int, *, proc: Path = _PROC, reader: Reader | None = None) -> ProcessFacts | None:
    """What ``/proc`` reports of a process, or None when it is gone. Never raises for what it may not read.

    ``reader``: from where it is looked at; this program's own place.
    """
    path = f"{proc}/{tgid}"  # not a Path: this is done for each program that is started on the host
    try:
        # What is opened in it is of this process, whose number may be another's meanwhile.
        folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = _status_fields(_read_in(folder, "status"))
        agent = reader or _agent()
        place = place_process(partial(_read_in, folder), agent)
        command = _read_in(folder, "cmdline", MAX_ARGUMENTS_BYTES)
        environ = _environ(_read_in(folder, "environ", _MAX_ENVIRON_BYTES))
        try:
            executable = os.readlink("exe", dir_fd=folder).removesuffix(" (deleted)")
        except OSError:  # a kernel thread, a zombie, or another user's
            executable = ""
        last = _parse_stat(_read_in(folder, "stat", _MAX_STAT_BYTES))
    finally:
        os.close(folder)
    if last is None:
        return None  # it ended while it was read
    return ProcessFacts(
        tgid=tgid,
        ns_pids=_numbers(status.get("NSpid", "")) or (tgid,),
        ppid=last.ppid,
        start_time_ns=last.start_ticks * _TICK_NS,
        comm=last.comm,
        command=_words(command),
        executable=executable,
        uid=next(iter(_numbers(status.get("Uid", ""))), -1),
        seccomp=next(iter(_numbers(status.get("Seccomp", ""))), 0),
        cgroup_path=place.unified,
        container_id=place.container_id,
        pod_uid=place.pod_uid,
        container_name=place.container_name,
        placed_by=place.by,
        with_agent=_is_same(place.pod_uid, agent.pod_uid) or _is_same(place.container_id, agent.container_id),
        service_name=environ.get("OTEL_SERVICE_NAME", ""),
        resource_attributes=environ.get("OTEL_RESOURCE_ATTRIBUTES", ""),
        job=tuple(job_attributes(environ, _ancestors(last.ppid, proc)).items()),
        is_go=_is_go(f"{path}/exe"),
    )


def _ancestors(tgid: int, proc: Path) -> Iterator[tuple[str, ...]]:
    """The commands of a process, its parent and so on. Each is read when it is asked for."""
    for _ in range(LAUNCHER_GENERATIONS):
        status = _stat(tgid, proc)
        if status is None:  # gone, or not of this PID namespace
            return
        yield _words(_read(proc / str(tgid) / "cmdline", MAX_ARGUMENTS_BYTES))
        tgid = status.ppid


def _words(command: bytes) -> tuple[str, ...]:
    return tuple(_text(part) for part in command.removesuffix(b"\0").split(b"\0")) if command else ()


def _is_same(one: str, other: str) -> bool:
    return bool(one) and one == other


_GO_KNOWN: Final[OrderedDict[tuple[int, ...], bool]] = OrderedDict()
"""By what names a file and its content; the latest KNOWN_PROGRAMS."""


def _is_go(program: str) -> bool:
    """Looked at once, for most programs that are started have been before."""
    try:
        status = cached_status(program)
        file = (status.device, status.inode, status.size_bytes, status.modified_ns, status.changed_ns)
        if file in _GO_KNOWN:
            _GO_KNOWN.move_to_end(file)
            return _GO_KNOWN[file]
        with open_elf(program) as opened:
            found, seen = opened.image.is_go, (*opened.identity, opened.size_bytes, opened.modified_ns)
    except (OSError, ElfError):
        return False
    if seen == file[:-1]:  # else it has become another program in between
        _GO_KNOWN[file] = found
        if len(_GO_KNOWN) > KNOWN_PROGRAMS:
            _GO_KNOWN.popitem(last=False)
    return found


def guess_service_name(facts: ProcessFacts) -> str:
    """What people call this program: the script or module that an interpreter runs, else the executable.

    ``python -m vllm.entrypoints.openai.api_server`` → ``vllm``; ``python /srv/app.py`` → ``app``;
    ``/usr/bin/python3 /usr/local/bin/gunicorn app:app`` → ``gunicorn``.
    """
    executable = executable_name(facts)
    is_python = PYTHON.fullmatch(executable) is not None
    if not is_python and not _INTERPRETERS.fullmatch(executable):
        return executable
    command = facts.command
    if not command:
        return executable
    invoked = command[0].rpartition("/")[2].removeprefix("-")
    if invoked != executable and not PYTHON.fullmatch(invoked) and not _INTERPRETERS.fullmatch(invoked):
        # A title that the program gave itself ("gunicorn: master [app:app]"), or argv[0] of its own.
        title = invoked.split()
        return (title[0].partition(":")[0] if title else "") or executable
    words = iter(command[1:])
    for word in words:
        if is_python and word == "-m":
            return next(words, "").partition(".")[0] or executable
        if is_python and word.startswith("-m") and len(word) > 2:
            return word[2:].partition(".")[0] or executable
        if word in ("-c", "-e", "-", "--command"):
            return executable
        if is_python and word in _PYTHON_VALUED:
            next(words, None)
        elif not word.startswith("-") and word:
            return _script_name(word) or executable
    return executable


def _script_name(path: str) -> str:
    """``/srv/app.py`` → ``app``; the folder's name for ``__main__.py``."""
    folder, _, name = path.rstrip("/").rpartition("/")
    stem = re.sub(r"\.(?:py[cw]?|pex|pyz|sh|pl|rb|[cm]?js|php)$", "", name)
    return folder.rpartition("/")[2] or stem if stem == "__main__" else stem


def executable_name(facts: ProcessFacts) -> str:
    """The file name of its program; what the kernel calls it where that is not known."""
    return facts.executable.rpartition("/")[2] or facts.comm or "unknown_service"


class _Stat(Struct, frozen=True):
    comm: str
    ppid: int
    flags: int  # PF_* of the kernel's sched.h
    cpu_ticks: int  # user and system, of all threads
    start_ticks: int


def _stat(tgid: int, proc: Path) -> _Stat | None:
    return _parse_stat(_read(proc / str(tgid) / "stat", _MAX_STAT_BYTES))


def _parse_stat(data: bytes) -> _Stat | None:
    """The name may hold spaces and brackets: the fields begin behind the last one."""
    head, _, tail = data.rpartition(b")")
    fields = tail.split()
    try:
        return _Stat(
            comm=_text(head.partition(b"(")[2]),
            ppid=int(fields[1]),
            flags=int(fields[6]),
            cpu_ticks=int(fields[11]) + int(fields[12]),
            start_ticks=int(fields[19]),
        )
    except (IndexError, ValueError):
        return None


def _status_fields(data: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in _text(data).splitlines())
    return {key: value.strip() for key, _, value in pairs}


def _environ(data: bytes) -> dict[str, str]:
    """The variables that may be read, of an environment; the first of each, as getenv finds it."""
    found: dict[str, str] = {}
    for match in _VARIABLE.finditer(data):
        value = _text(match[2])
        # Of one that is too long, what is whole.
        whole = value if len(value) <= MAX_ARGUMENTS_BYTES else value[:MAX_ARGUMENTS_BYTES].rpartition(",")[0]
        found.setdefault(match[1].decode(), whole)
    return found


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split() if word.isdecimal())


def _read(path: Path, limit: int = _MAX_FILE_BYTES) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return b""


def _read_in(folder: int, name: str, limit: int = _MAX_FILE_BYTES) -> bytes:
    """The same of a file in an open folder; what is short, in three system calls and nothing else."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return b""
    try:
        data = os.read(file, min(limit, _PIECE_BYTES))
        while data and len(data) < limit and (more := os.read(file, min(limit - len(data), _PIECE_BYTES))):
            data += more
        return data
    except OSError:
        return b""
    finally:
        os.close(file)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
