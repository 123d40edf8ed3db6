"""Where the threads of a process publish the trace context that they work under: OpenTelemetry OTEP 4947.

In: processes and what they map. Out: an entry of the map ``context_processes`` (``bpf/lib/context.h``) for each
process that has the thread-local variable ``otel_thread_ctx_v1``, by which the BPF programs read a thread's
context at the probe. Reads ELF files and a few words of ``/proc/PID/mem``; never raises for what it finds there.

Example: a process maps ``tracer.so``, whose relocation R_X86_64_TLSDESC of that symbol is at 0x4000. Right after
the mapping the two words there are zero, and the process is looked at again in a millisecond; then they are
``_dl_tlsdesc_return`` and -152: each thread's pointer lies 152 bytes below its thread pointer.

Sources: OTEP 4947; of glibc ``sysdeps/x86_64/dl-tlsdesc.S`` and ``sysdeps/x86_64/tlsdesc.h``; of musl
``src/ldso/x86_64/tlsdesc.s`` and ``ldso/dynlink.c``; the documents named in :mod:`otelgpu.elf.tls`.
"""

from __future__ import annotations

import os
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from otelgpu.elf.btf import Btf
from otelgpu.elf.image import ElfError, ElfImage, Load
from otelgpu.elf.tls import Access, ThreadVariable, find_thread_variable, may_have_thread_locals
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.statx import cached_status
from otelgpu.model.losses import Reasons
from otelgpu.processes.elf_files import (
    NOT_KNOWN,
    Identity,
    identity_of,
    open_elf,
    open_mapping,
    open_regular,
    paths_of,
)
from otelgpu.processes.maps import Mapping, distinct_files, executable_mappings, find, read_maps
from otelgpu.processes.memory import OpenMemory, ProcessMemory, session_memory
from otelgpu.processes.reader.door import NotRegular

VARIABLE: Final = "otel_thread_ctx_v1"
POINTER_BYTES: Final = 8
MAX_FILES: Final = 1 << 16
FIRST_RETRY_S: Final = 0.001
LONGEST_RETRY_S: Final = 10.0
GIVE_UP_S: Final = 600.0
_MAX_DISTANCE: Final = 1 << 30  # of a variable from its thread pointer, and in its block
_MAX_MODULES: Final = 1 << 16
_FIRST_ADDRESS: Final = 1 << 16  # vm.mmap_min_addr
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_FIRST: Final = struct.pack("<I", 0)

REASONS: Final = Reasons(
    "contexts",
    {
        "thread_context_unresolved": "where a process' threads publish could not be reported in ten minutes",
        "thread_context_ignored": "a process has more than two tracers that publish: only two are read",
        "thread_context_table_full": "a process publishes, but there are more than 16,384 that do",
    },
)
"""Why a process' contexts are not read, or not all: the variable's place was not to be found in GIVE_UP_S; a
process has more publishers than the map has room for; there are more processes that publish."""


class Table(Protocol):
    """What is needed of a BPF map."""

    def put(self, key: bytes, value: bytes) -> None:
        """Raises BpfError when it is full."""

    def delete(self, key: bytes) -> bool:
        """Whether the key was there."""


class VariableLocation(Struct, frozen=True):
    """How a thread's copy of the variable is reached: ``struct context_place``."""

    access: str  # of enum context_access, without its prefix: "STATIC", "GLIBC" or "MUSL"
    offset: int
    module: int = 0
    generation: int = 0


class _Image(Struct, frozen=True):
    """An ELF file that has the variable."""

    variable: ThreadVariable
    loads: tuple[Load, ...]

    @property
    def bytes(self) -> int:
        """Of address space."""
        return max(load.address + load.size for load in self.loads)


class _Publisher(Struct, frozen=True):
    """The file as one process has it loaded."""

    image: _Image
    base: int
    is_program: bool


class _Process(Struct):
    library: str  # "GLIBC" or "MUSL"
    places: dict[_Publisher, VariableLocation] = field(default_factory=dict)
    pending: list[_Publisher] = field(default_factory=list)
    since_s: float = 0.0
    delay_s: float = FIRST_RETRY_S
    due_s: float = 0.0

    @property
    def publishers(self) -> list[_Publisher]:
        return [*self.places, *self.pending]


def _variable_in(image: ElfImage) -> ThreadVariable | None:
    return find_thread_variable(image, VARIABLE, POINTER_BYTES)


def may_publish(image: ElfImage) -> bool:
    """Whether a process may publish that has mapped this file. Raises ElfError."""
    return _variable_in(image) is not None


class ThreadContexts:
    """The processes that publish, and the map that says so.

    A process whose variable is not placed yet is looked at again by :meth:`retry`, first after a millisecond,
    then ever more seldom. Call :meth:`forget` when a process execs or ends, :meth:`inherit` when it forks.
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
        """``processes`` and ``published``: the maps ``context_processes`` and ``context_published``."""
        self.counters: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._table = processes
        self._published = published
        self._layout = btf.dtype("context_places")
        self._accesses = btf.enumerators("context_access")
        self._proc = proc
        self._memory = memory or session_memory()
        self._images: OrderedDict[Identity, _Image | None] = OrderedDict()
        self._processes: dict[int, _Process] = {}

    @property
    def publishers(self) -> Set[int]:
        """Processes whose threads' contexts are read."""
        return {tgid for tgid, process in self._processes.items() if process.places}

    # -- Processes -------------------------------------------------------------------------------------

    def nothing_in(self, identity: Identity) -> bool:
        """Whether a file was looked at, and does not publish."""
        return identity in self._images and self._images[identity] is None

    def knows(self, tgid: int) -> bool:
        """Whether a process has files that may publish."""
        return tgid in self._processes

    def look_at(self, tgid: int, now_s: float, mappings: Sequence[Mapping] | None = None) -> None:
        """All that a running process has mapped; ``mappings``: what of it is executable, if that was read."""
        if mappings is None:
            mappings = executable_mappings(tgid, proc=self._proc)
        for mapping in distinct_files(mappings):
            self._examine(tgid, mapping, now_s)

    def look_at_mapping(self, tgid: int, start: int, end: int, offset: int, now_s: float) -> None:
        """What was mapped just now, executable: ``offset`` in the file."""
        mapping = Mapping(
            start=start,
            end=end,
            permissions="r-xp",
            offset=offset,
            device=(0, 0),
            inode=0,
            path="",
            deleted=True,  # under this name, which is none: it is opened through map_files only
        )
        if not self._examine(tgid, mapping, now_s):
            found = executable_mappings(tgid, proc=self._proc)
            for mapping in (each for each in found if each.start == start and each.is_file):
                self._examine(tgid, mapping, now_s)

    def inherit(self, parent: int, child: int) -> None:
        """The child's memory is its parent's; the BPF programs have copied the parent's entry."""
        if known := self._processes.get(parent):
            self._processes[child] = replace(known, places=dict(known.places), pending=list(known.pending))

    def forget(self, tgid: int) -> None:
        """It has ended, or is another program."""
        if self._processes.pop(tgid, None) is not None:
            self._table.delete(struct.pack("<I", tgid))

    def due_in(self, now_s: float) -> float | None:
        """Seconds until :meth:`retry` is wanted; None: it is not."""
        waiting = [process.due_s for process in self._processes.values() if process.pending]
        return max(min(waiting) - now_s, 0.0) if waiting else None

    def retry(self, now_s: float) -> None:
        """Look again at those that are due."""
        for tgid, process in self._processes.items():
            if process.pending and process.due_s <= now_s:
                self._settle(tgid, process, now_s)

    # -- Files -----------------------------------------------------------------------------------------

    def _examine(self, tgid: int, mapping: Mapping, now_s: float) -> bool:
        """Whether the mapped file could be looked at."""
        identity = identity_of(tgid, mapping, proc=self._proc)
        if identity in self._images:
            self._images.move_to_end(identity)
            image = self._images[identity]
        elif identity != NOT_KNOWN and not self._may_have_it(tgid, mapping):
            image = self._remember(identity, None)
        else:
            try:
                with open_mapping(tgid, mapping, proc=self._proc) as file:
                    identity = file.identity
                    variable = _variable_in(file.image)
                    image = _Image(variable, file.image.loads) if variable is not None else None
            except ElfError:
                image = None
            except OSError:
                return False
            self._remember(identity, image)
        if image is not None and (base := _base_of(image, mapping)) is not None:
            self._add(tgid, _Publisher(image, base, self._is_program(tgid, identity)), now_s)
        return True

    def _remember(self, identity: Identity, image: _Image | None) -> _Image | None:
        self._images[identity] = image
        if len(self._images) > MAX_FILES:
            self._images.popitem(last=False)
        return image

    def _may_have_it(self, tgid: int, mapping: Mapping) -> bool:
        """False: the file has no thread-local variables at all."""
        exact = paths_of(tgid, mapping, proc=self._proc)[0]
        try:
            with open(open_regular(exact), "rb", buffering=0) as file:
                return may_have_thread_locals(file.read(_PAGE_BYTES))
        except NotRegular:
            return False
        except OSError:
            return True  # there are other ways to open it

    def _is_program(self, tgid: int, identity: Identity) -> bool:
        try:
            status = cached_status(str(self._proc / str(tgid) / "exe"))
        except OSError:
            return False
        return (status.device, status.inode) == identity

    def _add(self, tgid: int, publisher: _Publisher, now_s: float) -> None:
        process = self._processes.get(tgid)
        if process is None:
            process = self._processes[tgid] = _Process(_c_library(self._proc / str(tgid) / "exe"))
        if publisher in process.publishers:
            return
        if len(process.publishers) >= self._layout["place"].shape[0]:
            self.counters["thread_context_ignored"] += 1
            return
        process.pending.append(publisher)
        process.since_s, process.delay_s = now_s, FIRST_RETRY_S
        self._settle(tgid, process, now_s)

    # -- Places ----------------------------------------------------------------------------------------

    def _settle(self, tgid: int, process: _Process, now_s: float) -> None:
        """Find the places that are pending, report the map, and say when to look again if some still are."""
        before = len(process.places)
        try:
            mappings = read_maps(tgid, proc=self._proc)
            with self._memory.open(tgid, proc=self._proc) as memory:
                for publisher in list(process.pending):
                    place = _place_of(publisher, process.library, mappings, _reader(memory))
                    if place is not None:
                        process.pending.remove(publisher)
                        process.places[publisher] = place
        except OSError:  # it has ended, or may not be looked at
            process.pending.clear()
        if len(process.places) > before:
            self._report(tgid, process)
        if process.pending and now_s - process.since_s > GIVE_UP_S:
            self.counters["thread_context_unresolved"] += len(process.pending)
            process.pending.clear()
        process.due_s = now_s + process.delay_s
        process.delay_s = min(2 * process.delay_s, LONGEST_RETRY_S)

    def _report(self, tgid: int, process: _Process) -> None:
        value = np.zeros(1, self._layout)
        for row, place in zip(value["place"][0], process.places.values(), strict=False):
            row["access"] = self._accesses[f"CONTEXT_ACCESS_{place.access}"]
            row["offset"], row["module"] = place.offset, place.module
            row["generation"] = place.generation
        try:
            self._table.put(struct.pack("<I", tgid), value.tobytes())
            self._published.put(_FIRST, struct.pack("<I", 1))
        except BpfError:
            self.counters["thread_context_table_full"] += 1


def _base_of(image: _Image, mapping: Mapping) -> int | None:
    """What is added to the file's addresses in this process; None when the mapping shows none of its code."""
    for load in image.loads:
        if load.executable and load.offset // _PAGE_BYTES * _PAGE_BYTES == mapping.offset:
            return mapping.start - (load.address - (load.offset - mapping.offset))
    return None


def _c_library(program: Path) -> str:
    """Whose dynamic linker the program has asked for: they lay out the threads' vectors."""
    try:
        with open_elf(program) as file:
            return "MUSL" if "/ld-musl-" in (file.image.interpreter or "") else "GLIBC"
    except (OSError, ElfError):
        return "GLIBC"


Reader = Callable[[int, int], tuple[int, ...]]
"""(address, n) → n words of 64 bits, or none when they cannot be read."""


def _reader(memory: OpenMemory) -> Reader:
    def read(address: int, count: int) -> tuple[int, ...]:
        try:
            (data,) = memory.read((address, 8 * count))
        except OSError:
            return ()
        return struct.unpack(f"<{count}Q", data) if len(data) == 8 * count else ()

    return read


def _is_loaded(publisher: _Publisher, address: int, mappings: Sequence[Mapping]) -> bool:
    """Whether the segment of ``address`` is in its place.

    Dynamic linkers first map the whole file in one piece, and then each segment over it: in between, other
    bytes of the file are there.
    """
    mapping = find(mappings, publisher.base + address)
    if mapping is None or not mapping.is_file:
        return False
    offset = mapping.file_offset(publisher.base + address)
    return any(
        load.writable
        and 0 <= address - load.address < load.size
        and address - load.address + load.offset == offset
        for load in publisher.image.loads
    )


def _place_of(
    publisher: _Publisher, library: str, mappings: Sequence[Mapping], read: Reader
) -> VariableLocation | None:
    """Where the process has put the variable; None: nowhere yet, as far as can be reported."""
    variable = publisher.image.variable
    if publisher.is_program:
        return VariableLocation("STATIC", variable.distance)
    for how, address in variable.accesses:
        if not _is_loaded(publisher, address, mappings):
            continue
        first, second = read(publisher.base + address, 2) or (0, 0)
        if how is Access.DISTANCE:
            place = _static(first)
        elif how is Access.MODULE:
            place = _dynamic(library, first, second)
        elif first == 0 or 0 <= first - publisher.base < publisher.image.bytes:
            place = None  # not relocated, or to be resolved at the first use, by a stub of the library's own
        else:
            place = _static(second) or _described(library, second, read)
        if place is not None:
            return place
    return None


def _static(word: int) -> VariableLocation | None:
    """On x86-64 what is placed statically lies below the thread pointer."""
    distance = word - (1 << 64)
    return VariableLocation("STATIC", distance) if -_MAX_DISTANCE < distance < 0 else None


def _dynamic(library: str, module: int, offset: int, generation: int = 0) -> VariableLocation | None:
    if not 0 < module < _MAX_MODULES or not 0 <= offset < _MAX_DISTANCE:
        return None
    return VariableLocation(library, offset, module, generation)


def _described(library: str, argument: int, read: Reader) -> VariableLocation | None:
    """The argument of a dynamic descriptor: module and offset, and glibc's generation of the module."""
    if argument < _FIRST_ADDRESS:
        return None
    module, offset, generation = read(argument, 3) or (0, 0, 0)
    return _dynamic(library, module, offset, generation if library == "GLIBC" else 0)
