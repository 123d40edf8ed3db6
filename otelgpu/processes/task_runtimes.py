"""Processes whose runtime keeps several tasks on a thread, and how the one that a thread runs is reached.

In: processes and what they map. Out: an entry of the map ``task_processes`` (``bpf/lib/tasks.h``) for each process
that runs CPython 3.9 to 3.14 or was built by Go 1.21 to 1.26, by which the BPF programs read a thread's task at the
probe. Reads ELF files and a few words of ``/proc/PID/mem``; never raises for what it finds there.

* CPython: the address of the ``contextvars.Context`` that is entered (PEP 567). Every asyncio task and every callback
  of a loop has one of its own. It hangs on the thread's PyThreadState, which the C library keeps for the thread under
  a key of ``pthread_key_create``: that one is there also while the thread has let go of the GIL, as in a system call.
  Which key is seen in the process itself: of a thread whose state is known, that state's address lies in the C
  library's structure of the thread.
* Go: the number of the goroutine that the thread's M runs. A thread's g lies 8 bytes below its thread pointer
  (``cmd/link``: ``Tlsoffset``), or where the C linker put ``runtime.tlsg``; of M its ``curg`` is taken, because a call
  into C runs on the M's own g.

Example: python3.11 has ``_PyRuntime`` at 0x55…f80; its first interpreter's first thread has the state 0x55…a10 and the
pthread_self() 0x7f…740. At 0x7f…740 + 0x310 + 8 lies 0x55…a10: the path is +0x318, then +224 (PyThreadState.context).

Sources: ``nptl/descr.h`` of glibc (specific_1stblock), ``src/internal/pthread_impl.h`` of musl (tsd);
:mod:`otelgpu.symbols.cpython.layout`; of Go ``src/runtime/runtime2.go``.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from otelgpu.elf.btf import Btf
from otelgpu.elf.go import go_minor
from otelgpu.elf.image import ElfError, ElfImage, Load
from otelgpu.elf.tls import thread_variable_distance
from otelgpu.kernel.libbpf import BpfError
from otelgpu.model.losses import Reasons
from otelgpu.processes.maps import Mapping, executable_mappings
from otelgpu.processes.memory import OpenMemory, ProcessMemory, session_memory
from otelgpu.processes.program_files import FileAnswers, base_of, program_and_interpreters
from otelgpu.symbols.cpython.image import Runtime, find_runtime, may_be_interpreter

FIRST_RETRY_S: Final = 0.005
LONGEST_RETRY_S: Final = 5.0
GIVE_UP_S: Final = 60.0
_MAX_PROCESSES: Final = 1 << 16
_MAX_THREADS: Final = 16  # of an interpreter that are looked at, the youngest first

REASONS: Final = Reasons(
    "tasks",
    {
        "task_runtime_unknown": "a process with a runtime of tasks (CPython, Go) whose version or build is not known: "
        "its work is not linked by task",
        "task_runtime_unplaced": "a CPython in which no thread's state was found in a minute: its work is not linked "
        "by task",
        "task_table_full": "a process with tasks beyond the 16,384 that can be followed",
    },
)
"""Why a process' tasks are not read."""

Steps = tuple[int, ...]
"""Offsets: from the thread pointer, add one and read the word there, and so on; the last word is the task."""

_KEYS: Final = 32  # glibc: PTHREAD_KEY_2NDLEVEL_SIZE, those that lie in the structure of a thread itself
_GLIBC_KEYS_AT: Final = 0x310  # struct pthread.specific_1stblock: pairs of a sequence number and the value
_MUSL_KEYS_AT: Final = 0x80  # struct pthread.tsd: a pointer to values
_GO_M: Final = 48  # runtime.g.m
_GO_TLS: Final = -8
_GO: Final = {  # minor → runtime.m.curg, runtime.g.goid
    **dict.fromkeys((21, 22), (192, 152)),
    **dict.fromkeys((23, 24), (192, 160)),
    **dict.fromkeys((25, 26), (184, 152)),
}


class Table(Protocol):
    """What is needed of a BPF map."""

    def put(self, key: bytes, value: bytes) -> None:
        """Raises BpfError when it is full."""

    def delete(self, key: bytes) -> bool:
        """Whether the key was there."""


class SharedBits:
    """A map's one word, in which several set bits and none clears any."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._bits = 0

    def put(self, key: bytes, value: bytes) -> None:
        """Set the bits of ``value``. Raises BpfError."""
        self._bits |= int.from_bytes(value, "little")
        self._table.put(key, self._bits.to_bytes(len(value), "little"))

    def delete(self, key: bytes) -> bool:
        """Nothing is taken back."""
        return False


class _File(Struct, frozen=True):
    """What a file holds: a path that holds wherever it is loaded, a CPython, or why neither (None: no such runtime)."""

    found: Steps | Runtime | str | None
    loads: tuple[Load, ...]


class _Process(Struct):
    """``path`` None: of ``runtime``, loaded at ``base``, no thread has been found yet."""

    path: Steps | None
    runtime: Runtime | None = None
    base: int = 0
    since_s: float = 0.0
    delay_s: float = FIRST_RETRY_S
    due_s: float = 0.0


class TaskRuntimes:
    """The processes with tasks, and the map that says so.

    Call :meth:`forget` when a process execs or ends, :meth:`inherit` when it forks, :meth:`retry` when it is due.
    """

    def __init__(
        self,
        processes: Table,
        published: Table,
        btf: Btf,
        *,
        proc: Path = Path("/proc"),
        memory: ProcessMemory | None = None,
    ) -> None:
        """``processes`` and ``published``: the maps ``task_processes`` and ``context_published``."""
        self.counters: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._table, self._published = processes, published
        self._layout = btf.dtype("task_path")
        kind = btf.enumerators("context_kinds")["CONTEXT_KIND_TASKS"]
        self._kind = struct.pack("<I", kind)
        self._proc = proc
        self._memory = memory or session_memory()
        self._files = FileAnswers(lambda image, name: _File(find_tasks(image, name), image.loads), proc=proc)
        self._processes: dict[int, _Process] = {}
        self._refused: dict[int, str] = {}

    def has_tasks(self, tgid: int) -> bool:
        """Whether the tasks of a process are read."""
        process = self._processes.get(tgid)
        return process is not None and process.path is not None

    # -- Processes -------------------------------------------------------------------------------------

    def knows(self, tgid: int) -> bool:
        """Whether a process has a runtime of tasks, of whatever version."""
        return tgid in self._processes or tgid in self._refused

    def look_at(self, tgid: int, now_s: float, mappings: Sequence[Mapping] | None = None) -> None:
        """What a running process has mapped; ``mappings``: what of it is executable, if that was read."""
        if tgid in self._processes or len(self._processes) >= _MAX_PROCESSES:
            return
        if mappings is None:
            mappings = executable_mappings(tgid, proc=self._proc)
        for mapping in program_and_interpreters(tgid, mappings, proc=self._proc):
            try:
                file = self._files.of(tgid, mapping)
            except (OSError, ElfError):
                continue
            if file.found is None:
                continue
            if isinstance(file.found, str):
                self._refuse(tgid, file.found)
            elif isinstance(file.found, tuple):
                self._processes[tgid] = process = _Process(file.found)
                self._report(tgid, process)
                return
            elif (base := base_of(file.loads, mapping)) is not None:
                self._processes[tgid] = process = _Process(None, file.found, base, since_s=now_s)
                self._settle(tgid, process, now_s)
                return

    def look_at_mapping(self, tgid: int, name: str, now_s: float) -> None:
        """A file of that name was mapped just now, executable."""
        if tgid not in self._processes and may_be_interpreter(name):
            self.look_at(tgid, now_s)

    def inherit(self, parent: int, child: int) -> None:
        """The child's memory is its parent's; the BPF programs have copied the parent's entry."""
        if known := self._processes.get(parent):
            self._processes[child] = replace(known)

    def forget(self, tgid: int) -> None:
        """It has ended, or is another program."""
        self._refused.pop(tgid, None)
        if self._processes.pop(tgid, None) is not None:
            self._table.delete(struct.pack("<I", tgid))

    def due_in(self, now_s: float) -> float | None:
        """Seconds until :meth:`retry` is wanted; None: it is not."""
        waiting = [each.due_s for each in self._processes.values() if each.path is None and each.runtime]
        return max(min(waiting) - now_s, 0.0) if waiting else None

    def retry(self, now_s: float) -> None:
        """Look again at those that are due."""
        for tgid, process in self._processes.items():
            if process.path is None and process.runtime is not None and process.due_s <= now_s:
                self._settle(tgid, process, now_s)

    def _refuse(self, tgid: int, reason: str) -> None:
        if self._refused.get(tgid) != reason:
            self.counters["task_runtime_unknown"] += 1
            self._refused[tgid] = reason

    def _settle(self, tgid: int, process: _Process, now_s: float) -> None:
        """Look for a thread of a CPython, and say when to look again if there is none yet."""
        runtime = process.runtime
        assert runtime is not None
        try:
            with self._memory.open(tgid, proc=self._proc) as memory:
                process.path = _path_of(runtime, process.base, _Words(memory))
        except OSError:  # it has ended, or may not be looked at
            process.runtime = None
            return
        if process.path is not None:
            self._report(tgid, process)
        elif now_s - process.since_s > GIVE_UP_S:
            self.counters["task_runtime_unplaced"] += 1
            process.runtime = None
        process.due_s = now_s + process.delay_s
        process.delay_s = min(2 * process.delay_s, LONGEST_RETRY_S)

    def _report(self, tgid: int, process: _Process) -> None:
        value = np.zeros(1, self._layout)
        path = process.path or ()
        value["offset"][0, : len(path)] = path
        value["steps"] = len(path)
        try:
            self._table.put(struct.pack("<I", tgid), value.tobytes())
            self._published.put(struct.pack("<I", 0), self._kind)
        except BpfError:
            self.counters["task_table_full"] += 1


def find_tasks(image: ElfImage, name: str) -> Steps | Runtime | str | None:
    """The runtime of tasks in a file of that name. A text: it has one that is not known. Raises ElfError."""
    if image.machine != "x86-64":
        return None
    if image.is_go:
        return go_path(image)
    return find_runtime(image, name) if may_be_interpreter(name) else None


def go_path(image: ElfImage) -> Steps | str:
    """How the number of a goroutine is reached in a program that Go built; a text: why it is not known."""
    places = _GO.get(go_minor(image) or 0)
    if places is None:
        return "go_version_unknown"
    tls = _GO_TLS
    if image.thread_locals is not None and image.thread_locals.size != -_GO_TLS:  # linked by the C linker
        distance = thread_variable_distance(image, b"runtime.tlsg")
        if distance is None:
            return "go_thread_local_unknown"
        tls = distance
    return tls, _GO_M, *places


class _Words:
    """A process' memory, in words of 64 bits."""

    def __init__(self, memory: OpenMemory) -> None:
        self._memory = memory

    def read(self, address: int, count: int = 1) -> tuple[int, ...]:
        """None where they cannot be read. Raises OSError where nothing can be."""
        if not 0 < address < 1 << 47:
            return ()
        (data,) = self._memory.read((address, 8 * count))
        return struct.unpack(f"<{count}Q", data) if len(data) == 8 * count else ()

    def word(self, address: int) -> int:
        """0 where it cannot be read."""
        return (self.read(address) or (0,))[0]


def _path_of(runtime: Runtime, base: int, memory: _Words) -> Steps | None:
    """By a thread of the first interpreter whose state the C library keeps; None: there is none yet."""
    layout = runtime.layout
    interpreter = memory.word(base + runtime.address + layout.interpreters)
    state = memory.word(interpreter + layout.threads) if interpreter else 0
    for _ in range(_MAX_THREADS):
        if not state:
            break
        thread_pointer = memory.word(state + layout.thread_id)
        if kept := _kept_at(thread_pointer, state, memory):
            return *kept, layout.context
        state = memory.word(state + layout.next_thread)
    return None


def _kept_at(thread_pointer: int, state: int, memory: _Words) -> Steps:
    """Where the C library keeps a thread's state; (): it does not, as far as can be seen."""
    own = memory.read(thread_pointer + _GLIBC_KEYS_AT, 2 * _KEYS)[1::2]
    if state in own:
        return (_GLIBC_KEYS_AT + 16 * own.index(state) + 8,)
    values = memory.word(thread_pointer + _MUSL_KEYS_AT)
    kept = memory.read(values, _KEYS) if values else ()
    return (_MUSL_KEYS_AT, 8 * kept.index(state)) if state in kept else ()
