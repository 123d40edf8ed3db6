"""The in-process source as the agent sees it: processes connect, get memory, and fill its rings with records.

In: connections on a Unix socket from programs that have ``libotelgpu_inject.so`` loaded. Out: batches of
family ``cuda`` as :meth:`LoadedFamily.drain <otelgpu.kernel.loader.LoadedFamily.drain>` gives them, counters,
and which processes ended. No privilege is needed.

What a process writes is believed for what it says of its own calls, and for nothing else: its number comes from
the kernel (SO_PEERCRED), its threads' numbers are looked up in ``/proc``, its times must lie within its life, and
what does not is dropped and counted.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import select
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.elf.btf import Btf
from otelgpu.errors import OtelgpuError
from otelgpu.kernel.clock import monotonic_ns
from otelgpu.kernel.injection import peers
from otelgpu.kernel.injection.records import InjectRecords, merged
from otelgpu.kernel.injection.shared_memory import RUNS_PER_DRAIN, SharedMemory
from otelgpu.kernel.loader import Image
from otelgpu.kernel.privileges.guard import Guard
from otelgpu.kernel.readable import is_readable
from otelgpu.model.inputs import Batch, Records

SOCKET_VARIABLE: Final = "OTELGPU_INJECT_SOCKET"
DEVICE_TIME_VARIABLE: Final = "OTELGPU_INJECT_CUPTI"
PROCESSES_MAX: Final = 1024
THREADS_MAX: Final = 65_536  # of a process whose numbers are remembered
_FOLDER: Final = "_inject"
_LIBRARY: Final = "libotelgpu_inject.so"
_LAYOUT: Final = "memory.o"
_UCRED: Final = struct.Struct("<iII")
_ANSWER: Final = b"\0\0\0\0"  # what a descriptor travels with
_SO_PEERPIDFD: Final = 77  # include/uapi/asm-generic/socket.h; Linux 6.5
_BACKLOG: Final = 256
_RELIEF_S: Final = 0.02  # what hinders an accept is not over at once
_SLOW_START_NS: Final = 1_000_000_000  # calls that were under way when a process connected began so long ago
_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3


MOST_BYTES: Final = 32 << 20
"""Of records of a process that one drain reads, where there is no other, or it has ended."""
SHARED_BYTES: Final = 8 << 20
"""The same of all processes where there are several: each cgroup has a part, and in it each process."""
LEAST_BYTES: Final = 64 << 10
LEAST_RUNS: Final = 64
LOOKS_NS: Final = 100_000_000
LOOKS_SHARE: Final = 50
LOOKS_OF_CGROUP: Final = 4
"""For so long the numbers of a process's threads are looked up, and a 50th of the time after that; four times that for
all of a cgroup."""


class InjectError(OtelgpuError):
    """The in-process source cannot be used here."""


class Library(Struct, frozen=True):
    """What the build made of ``otelgpu/inject``."""

    path: Path
    layout: Btf


def read_library() -> Library:
    """The library to load into programs, and its memory's layout. Raises :class:`InjectError` without one."""
    folder = resources.files("otelgpu") / _FOLDER
    try:
        path = Path(str(folder / _LIBRARY))
        layout = Image("inject", (folder / _LAYOUT).read_bytes()).btf
        path.stat()
    except OSError as error:
        raise InjectError(
            f"the in-process source is missing from this installation: {error}",
            hint="build it with 'make bpf' (needs a C compiler for x86-64), or reinstall",
        ) from error
    return Library(path, layout)


def environment(library: Path, socket_path: Path, present: Mapping[str, str]) -> dict[str, str]:
    """What a program needs in its environment to be observed, besides what is there already."""
    others = [entry for entry in present.get("LD_PRELOAD", "").replace(":", " ").split() if entry]
    preloaded = [str(library), *(entry for entry in others if entry != str(library))]
    return {"LD_PRELOAD": ":".join(preloaded), SOCKET_VARIABLE: str(socket_path)}


def interface_digest(apis: Mapping[str, int]) -> int:
    """Of ``enum cuda_api``, as the library computes it: both must mean the same functions by a number."""
    digest = _FNV_OFFSET
    ordered = sorted((number, name.removeprefix("API_")) for name, number in apis.items())
    for _, name in ordered[1:-1]:  # without API_NONE and API_COUNT
        for byte in name.encode() + b"\0":
            digest = ((digest ^ byte) * _FNV_PRIME) & 0xFFFF_FFFF_FFFF_FFFF
    return digest


def _pidfd_of(connection: socket.socket, tgid: int) -> int:
    """Of who has connected. Raises OSError where it has ended.

    Before Linux 6.5 it is asked for by number, which may be another process's since.
    """
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
    return os.pidfd_open(tgid)


class _Allowance:
    """How long thread numbers may be looked up yet: a token bucket of ns. ``times``: as that of one process."""

    __slots__ = ("_left_ns", "_since_ns", "_times")

    def __init__(self, times: int) -> None:
        self._times = times
        self._left_ns = times * LOOKS_NS
        self._since_ns = time.monotonic_ns()

    def is_left(self) -> bool:
        """Whether there is some now."""
        now_ns = time.monotonic_ns()
        filled_ns = (now_ns - self._since_ns) * self._times // LOOKS_SHARE
        self._left_ns = min(self._left_ns + filled_ns, self._times * LOOKS_NS)
        self._since_ns = now_ns
        return self._left_ns > 0

    def take(self, taken_ns: int) -> None:
        """So long it took."""
        self._left_ns -= taken_ns


class _Process(Struct):
    tgid: int
    pidfd: int
    memory: SharedMemory
    connected_ns: int
    cgroup_id: int
    threads: dict[int, int] = field(
        default_factory=dict
    )  # as it says → as this namespace says, 0: not its own
    looks: _Allowance = field(default_factory=lambda: _Allowance(1))
    namespaced: bool = False
    last: Counter[str] = field(default_factory=Counter)


class InjectListener:
    """Waits for programs with the library in them, in a thread from :meth:`start` on, and reads what they write.

    ``btf`` describes the records of family cuda. Without a ``path`` the socket is in a folder that only this
    user can enter; with one, who may connect is who may write to it. ``threads`` rings of ``ring_bytes`` are
    what a process gets. ``look_at`` is called with each process, from the thread, while that waits for its
    answer and so cannot end. Raises :class:`InjectError`.
    """

    def __init__(
        self,
        layout: Btf,
        btf: Btf,
        *,
        path: Path | None = None,
        threads: int = 64,
        ring_bytes: int = 1 << 20,
        look_at: Callable[[int], None] | None = None,
    ) -> None:
        if ring_bytes < mmap.PAGESIZE or ring_bytes & (ring_bytes - 1):
            raise InjectError(f"a ring has a power of two of bytes, at least a page, not {ring_bytes}")
        self._layout = layout
        self._records = InjectRecords(btf)
        self._threads, self.ring_bytes = threads, ring_bytes
        self._look_at = look_at
        self._hello = layout.dtype("inject_hello")
        numbers = layout.enumerators("inject_number")
        self._expected = (
            numbers["INJECT_MAGIC"],
            numbers["INJECT_VERSION"],
            interface_digest(btf.enumerators("cuda_api")),
        )
        self._counters: Counter[str] = Counter()
        self._past: Counter[str] = Counter()  # counters of processes that ended
        self._arrived: deque[_Process] = deque()
        self._processes: dict[int, _Process] = {}
        self._new: list[int] = []
        self._looks: dict[int, _Allowance] = {}  # by cgroup
        self._read_so_far: dict[str, list[Records]] = {}  # by struct; not reported yet
        self._ended = select.epoll()
        self._arrival = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._folder = None if path is not None else Path(tempfile.mkdtemp(prefix="otelgpu-"))
        self.path = self._folder / "inject.sock" if self._folder is not None else Path(path or "")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self._bind()
        except OSError as error:
            self._socket.close()
            self._remove()
            raise InjectError(f"cannot listen at {self.path}: {error.strerror}") from error
        # A socket at a given path is left for the next agent, which may have it already.
        self._guard = Guard(self._remove) if self._folder is not None else None
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None

    def _bind(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self.path.is_socket():  # of an agent that did not end properly
                self.path.unlink()
        self._socket.bind(str(self.path))
        self._socket.listen(_BACKLOG)

    def start(self) -> None:
        """Answer from here on; who has connected before is waiting. Not before the last fork. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._listen, name="inject", daemon=True)
            self._thread.start()

    # -- processes that come ------------------------------------------------------------------------

    def _listen(self) -> None:
        """Answer at once, whatever the rest of the program is at: a program's first call waits for it."""
        waiting: dict[int, socket.socket] = {}
        with select.epoll() as events:
            events.register(self._socket.fileno(), select.EPOLLIN)
            events.register(self._stop, select.EPOLLIN)
            while True:
                for descriptor, _ in events.poll():
                    if descriptor == self._stop:
                        for connection in waiting.values():
                            connection.close()
                        return
                    if descriptor != self._socket.fileno():
                        # Taken off first: what was closed is reported of as long as a child holds it.
                        events.unregister(descriptor)
                        self.answer(waiting.pop(descriptor))
                        continue
                    try:
                        accepted = self._socket.accept()[0]
                        waiting[accepted.fileno()] = accepted
                        events.register(accepted.fileno(), select.EPOLLIN)
                    except OSError:  # out of descriptors or memory, or it is gone already
                        self._counters["connection_failed"] += 1
                        time.sleep(_RELIEF_S)
                # After the events, some of which may be of those that are let go.
                while len(waiting) > _BACKLOG:  # they connect and say nothing
                    oldest = next(iter(waiting))
                    events.unregister(oldest)
                    waiting.pop(oldest).close()
                    self._counters["connection_silent"] += 1

    def answer(self, connection: socket.socket) -> None:
        """A process that has said something, and close the connection; from elsewhere only before :meth:`start`."""
        with connection:
            try:
                reason = self._welcome(connection)
            except OSError:
                reason = "connection_failed"
            if reason is not None:
                self._counters[reason] += 1

    def _welcome(self, connection: socket.socket) -> str | None:
        """Give the process its memory, or say why not."""
        data = connection.recv(self._hello.itemsize + 1, socket.MSG_DONTWAIT)
        if len(data) != self._hello.itemsize:
            return "connection_malformed"
        hello = np.frombuffer(data, dtype=self._hello)[0]
        if (int(hello["magic"]), int(hello["version"]), int(hello["digest"])) != self._expected:
            return "library_of_another_version"
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        tgid = _UCRED.unpack(credentials)[0]
        if tgid <= 0:
            return "process_outside_namespace"
        if len(self._processes) + len(self._arrived) >= PROCESSES_MAX:
            return "too_many_processes"
        pidfd = _pidfd_of(connection, tgid)
        try:
            if is_readable(pidfd):
                raise ProcessLookupError(errno.ESRCH, "it has ended, and its number may be another's")
            memory = SharedMemory(
                self._layout,
                threads=self._threads,
                ring_bytes=self.ring_bytes,
                record_bytes=self._records.lengths,
            )
        except BaseException:
            os.close(pidfd)
            raise
        process = _Process(
            tgid, pidfd, memory, monotonic_ns(), peers.cgroup_id(tgid), namespaced=peers.is_namespaced(tgid)
        )
        if self._look_at is not None:
            self._look_at(tgid)
        descriptor = (
            memory.take_descriptor()
        )  # the process may be gone, and its memory closed, before it is sent
        # First known, then reported: what it writes at once must find a reader.
        self._arrived.append(process)
        os.eventfd_write(self._arrival, 1)
        try:
            socket.send_fds(connection, [_ANSWER], [descriptor])
        finally:
            os.close(descriptor)
        return None

    def _admit(self) -> None:
        while self._arrived:
            process = self._arrived.popleft()
            before = self._processes.pop(process.tgid, None)
            if before is not None:  # it has changed its program image
                self._read(before)
                self._drop(before)
            self._processes[process.tgid] = process
            self._new.append(process.tgid)
            self._ended.register(process.pidfd, select.EPOLLIN)

    # -- what they write ----------------------------------------------------------------------------

    def pressure(self) -> float:
        """How full the fullest ring is: 0 to 1. Ask often: threads in PID namespaces are known while they live."""
        self._admit()
        for process in self._processes.values():
            if process.namespaced and self._may_look(process):
                for tid in process.memory.owners():
                    self._thread_id(process, tid)
        fullest = max((process.memory.fullest() for process in self._processes.values()), default=0)
        return min(fullest / self.ring_bytes, 1.0)

    def drain(self, until_ns: int | None = None) -> list[Batch]:
        """All records of calls that ended by ``until_ns`` (now), in that order: one batch for each struct.

        Those that ended later, and have been read with the others, come with the next.
        """
        if until_ns is None:
            until_ns = monotonic_ns()
        self._admit()
        cgroups = Counter(process.cgroup_id for process in self._processes.values())
        for process in self._processes.values():
            self._read(process, parts=len(cgroups) * cgroups[process.cgroup_id])
        batches = []
        for kind, parts in self._read_so_far.items():
            batch, later = merged(kind, parts, until_ns)
            parts[:] = [later] if len(later) else []
            if batch is not None:
                batches.append(batch)
        self._read_so_far = {kind: parts for kind, parts in self._read_so_far.items() if parts}
        return batches

    def _read(self, process: _Process, *, parts: int = 1) -> None:
        """What it has written, as far as its part of a drain goes."""
        most = {
            "most_bytes": max(SHARED_BYTES // parts, LEAST_BYTES) if parts > 1 else MOST_BYTES,
            "most_runs": max(RUNS_PER_DRAIN // parts, LEAST_RUNS),
        }
        for run in process.memory.drain(**most):
            heads = self._records.heads(run)
            now_ns = monotonic_ns()
            times, durations = heads["time_ns"], heads["duration_ns"]
            possible = (times <= now_ns) & (times >= max(process.connected_ns - _SLOW_START_NS, 0))
            possible &= durations <= now_ns - np.minimum(times, now_ns)
            heads["tgid"] = process.tgid
            heads["tid"] = self._thread_ids(process, heads["tid"])
            heads["cgroup_id"] = process.cgroup_id
            heads["context_source"] = heads["reserved"] = 0
            found, dropped = self._records.split(run, possible)
            for kind, records in found:
                self._read_so_far.setdefault(kind, []).append(records)
            if dropped:
                self._counters["record_malformed"] += dropped

    def _thread_ids(self, process: _Process, said: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        distinct = said[:1] if (said == said[0]).all() else np.unique(said)
        known = np.array([self._thread_id(process, int(tid)) for tid in distinct], dtype=np.uint32)
        return known[np.searchsorted(distinct, said)]

    def _thread_id(self, process: _Process, said: int) -> int:
        """The thread's number in this namespace; 0 when it is not one of the process's."""
        found = process.threads.get(said) if said else 0  # the device's work is no thread's
        if found is None:
            if len(process.threads) >= THREADS_MAX:
                self._counters["threads_not_remembered"] += 1
                return 0
            if not self._may_look(process):
                self._counters["thread_unknown"] += 1
                return 0
            ask = peers.namespaced_thread if process.namespaced else peers.own_thread
            began_ns = time.monotonic_ns()
            found = ask(process.tgid, said)
            taken_ns = time.monotonic_ns() - began_ns
            process.looks.take(taken_ns)
            self._looks[process.cgroup_id].take(taken_ns)
            if not found:
                self._counters["thread_unknown"] += 1
            process.threads[said] = found
        return found

    def _may_look(self, process: _Process) -> bool:
        """Whether its threads' numbers may be looked up, which takes the longer the more threads it has."""
        cgroup = self._looks.setdefault(process.cgroup_id, _Allowance(LOOKS_OF_CGROUP))
        return process.looks.is_left() and cgroup.is_left()

    # -- processes that go --------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable when a process has arrived."""
        return self._arrival

    def arrived(self) -> list[int]:
        """Processes that connected since the last call: new ones, or of a new program image."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._arrival)
        self._admit()
        found, self._new = self._new, []
        return found

    def gone(self) -> list[int]:
        """Processes that ended since the last call; what they had written comes with the next drain."""
        self._admit()
        ended = {descriptor for descriptor, _ in self._ended.poll(0)}
        leaving = [process for process in self._processes.values() if process.pidfd in ended]
        for process in leaving:
            self._read(process)
            self._drop(self._processes.pop(process.tgid))
        if leaving:
            present = {process.cgroup_id for process in self._processes.values()}
            self._looks = {cgroup: looks for cgroup, looks in self._looks.items() if cgroup in present}
        return [process.tgid for process in leaving]

    def _drop(self, process: _Process) -> None:
        self._past += process.memory.totals()
        self._ended.unregister(process.pidfd)
        os.close(process.pidfd)
        process.memory.close()

    @property
    def processes(self) -> list[int]:
        """Those that are connected."""
        return list(self._processes)

    def counters(self) -> dict[str, int]:
        """Counter name → total of all processes since the start; ``submitted`` is no loss."""
        totals = self._counters + self._past
        for process in self._processes.values():
            # A counter that a process turns back must not turn ours back.
            process.last |= process.memory.totals()
            totals += process.last
        return dict(totals)

    def close(self) -> None:
        """Stop listening and let go of all memory; what processes write from then on is lost. Idempotent."""
        if self._ended.closed:
            return
        if self._thread is not None:
            os.eventfd_write(self._stop, 1)
            self._thread.join()
        for descriptor in (self._stop, self._arrival):
            os.close(descriptor)
        self._socket.close()
        self._admit()
        for process in self._processes.values():
            self._drop(process)
        self._processes.clear()
        self._ended.close()
        self._remove()
        if self._guard is not None:
            self._guard.dismiss()

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                self.path.unlink()
