"""From a family's ``.bpf.o`` to a running object: constants set, maps shared, ring sized, counters readable.

The order is open → configure → load → attach; attaching probes is ``kernel/attach.py``.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from otelgpu.elf.btf import Btf
from otelgpu.elf.object_file import ObjectFile
from otelgpu.kernel.call_stacks import PLACES, offer_call_stacks
from otelgpu.kernel.core_btf import CoreBtf, core_btf
from otelgpu.kernel.global_variables import GlobalVariables
from otelgpu.kernel.kernel_btf import has_typed_tracepoint
from otelgpu.kernel.libbpf import BpfError, Link, Map, Object, Program, detach_all, possible_cpus
from otelgpu.kernel.ring import Ring
from otelgpu.kernel.tables import array_rows
from otelgpu.model.inputs import Batch
from otelgpu.model.losses import Reasons

_FORMATS: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_OBJECTS: Final = Path(__file__).parents[1] / "_bpf"
_AWAITED: Final = "ring_awaited"  # lib/emit.h
_BY_PROCESSORS: Final = "by_processors"  # lib/types.h
_MANY_PROCESSORS: Final = 32
SHARED_MAPS: Final = (
    *("scope_processes", "scope_cgroups"),
    *("context_processes", "context_published", "task_processes"),
)
COUNTED_BY_KERNEL: Final = Reasons(
    "*",
    {
        "program_passed_over": "a program was running on that CPU already, in what was interrupted or in a "
        "thread that was "
        "preempted: the kernel does not run it again, and what it would have seen is not reported",
    },
)
"""Counter → what one count means."""
_PASSED_OVER: Final = ("tp_btf", "tracepoint")  # probes of functions are run within each other
_SHARED_WHERE_USED: Final = ("quiet_processes", "call_stacks", *PLACES.values())
_TRACE_CONTEXTS: Final = "traces_ctx_v1"  # OBI's: see kernel/trace_context_map.py


@dataclass(frozen=True)
class Image:
    """A family's BPF object file, read but not opened: types and global variables, no kernel needed."""

    family: str
    data: bytes

    @cached_property
    def _file(self) -> ObjectFile:
        return ObjectFile(self.data)

    @cached_property
    def btf_section(self) -> bytes:
        """The raw ``.BTF`` section, as a capture stores it."""
        section = self._file.content(".BTF")
        if section is None:
            raise BpfError(f"the BPF object of family {self.family} has no BTF: it was built without -g")
        return bytes(section)

    @property
    def relocations(self) -> bytes:
        """The raw ``.BTF.ext`` section: what is to be fitted to the kernel's types; empty where there is none."""
        return bytes(self._file.content(".BTF.ext") or b"")

    @cached_property
    def btf(self) -> Btf:
        """The object's types."""
        return Btf(self.btf_section)

    @property
    def sections(self) -> list[str]:
        """Names of the object's sections, those of programs (``SEC()``) among them."""
        return [section.name for section in self._file.sections]

    def variables(self, section: str) -> Mapping[str, tuple[int, int]]:
        """Global variables of ``.rodata`` or ``.bss``: name → (offset, size in bytes)."""
        return self._file.variables.get(section, {})

    def constants(self, name: str, element: str) -> npt.NDArray[np.void]:
        """A global constant array of ``struct element``: shape (n,)."""
        offset, size = self.variables(".rodata")[name]
        section = self._file.content(".rodata")
        assert section is not None, "it has a variable"
        return np.frombuffer(section[offset : offset + size], self.btf.dtype(element))


def read_image(family: str) -> Image:
    """The object that the build made. Raises :class:`BpfError` when this install carries none."""
    file = _OBJECTS / f"{family}.bpf.o"
    try:
        return Image(family, file.read_bytes())
    except OSError as error:
        raise BpfError(
            f"the BPF object of family {family} is missing from this installation: {error}",
            hint="build it with 'make bpf' (needs clang and libbpf-dev), or reinstall",
        ) from error


def core_types_of(images: Iterable[Image]) -> CoreBtf:
    """What their objects need of the kernel's types."""
    return core_btf({image.family: (image.btf_section, image.relocations) for image in images})


def record_struct(btf: Btf, family: str, kind: str) -> str:
    """The struct of a kind's records: the one that is called like it, else ``<family>_sample`` or ``<family>_call``.

    Calls of a family share a struct, so that a ring full of them is one array: ``CUDA_FREE`` is a
    ``struct cuda_call``, while ``CUDA_NAME`` has a ``struct cuda_name``. So do samples.
    """
    for name in (kind.lower(), f"{family}_sample"):
        if btf.has_struct(name):
            return name
    return f"{family}_call"


def record_structs(btf: Btf, family: str) -> dict[int, str]:
    """The structs of a family's records by the number of their kind."""
    kinds = btf.enumerators(f"{family}_kind")
    return {number: record_struct(btf, family, name) for name, number in kinds.items()}


def counter_names(btf: Btf, family: str) -> dict[int, str]:
    """The counters of a family's programs by number: those of all (``enum counter``) and, if any, those of its own."""
    own = f"{family}_counter"
    numbers = btf.enumerators("counter") | (btf.enumerators(own) if btf.has_enum(own) else {})
    return {
        number: name.removeprefix("COUNTER_").lower()
        for name, number in numbers.items()
        if name != "COUNTER_COUNT"
    }


class Single(NamedTuple):
    """One record, of which only the head was read. ``kind``: the name of its struct, whose layout is ``dtype``."""

    kind: str
    dtype: np.dtype[np.void]
    time_ns: int
    duration_ns: int
    tgid: int
    raw: bytes

    @property
    def record(self) -> np.void:
        """All of it."""
        found: np.void = np.frombuffer(self.raw, self.dtype)[0]
        return found


def _words_of(dtype: np.dtype[np.void], names: tuple[str, ...]) -> struct.Struct:
    """Reads these fields of a struct, which are in this order there."""
    places = dtype.fields
    assert places is not None, "it is a struct"
    layout, end = "<", 0
    for kind, offset, *_ in map(places.__getitem__, names):
        layout += f"{offset - end}x{_FORMATS[kind.itemsize]}"
        end = offset + kind.itemsize
    return struct.Struct(layout)


@dataclass
class LoadedFamily:
    """A loaded object with its ring and counters."""

    image: Image
    object: Object
    ring: Ring
    programs: list[Program]  # those that were loaded
    waiting: frozenset[str] = frozenset()  # names of those that :meth:`load_waiting` is to load
    core_types: CoreBtf = field(default_factory=CoreBtf)
    links: list[Link] = field(default_factory=list)

    def __post_init__(self) -> None:
        btf, family = self.image.btf, self.image.family
        kinds = record_structs(btf, family)
        self._structs = [(name, btf.dtype(name)) for name in dict.fromkeys(kinds.values())]
        names = [name for name, _ in self._structs]
        self._struct_of = np.zeros(max(kinds) + 1, dtype=np.uint8)  # by kind: position in _structs
        for number, name in kinds.items():
            self._struct_of[number] = names.index(name)
        self._head = btf.dtype("record_head")
        self._counters = counter_names(btf, family)
        self._passed_over = [program for program in self.programs if program.probes in _PASSED_OVER]
        self._cpus = possible_cpus()
        self._beside: Object | None = None  # of the programs that came later

    @property
    def family(self) -> str:
        """The family's name."""
        return self.image.family

    def map(self, name: str) -> Map:
        """A map by its C name."""
        found: Map = self.object.maps[name]
        return found

    def drain(self) -> Iterator[Batch]:
        """All records that were submitted before the first is asked for, split by struct, in ring order per struct.

        Each batch is copied out when it is asked for: whoever looks at it at once finds it in the cache.
        """
        for run in self.ring.drain():
            kinds = run[:, : self._head.itemsize].view(self._head)[:, 0]["kind"]
            structs = self._struct_of[kinds]
            alike = bool((structs == structs[0]).all())
            for position in structs[:1] if alike else np.unique(structs):
                name, dtype = self._structs[position]
                rows = run if alike else run[structs == position]
                yield Batch(family=self.family, kind=name, records=rows.view(dtype)[:, 0])

    def drain_each(self) -> Iterator[Single]:
        """The same one by one, until none is left: for rings in which few come at a time."""
        head = _words_of(self._head, ("time_ns", "duration_ns", "tgid", "kind"))
        for raw in self.ring.read_each():
            time_ns, duration_ns, tgid, kind = head.unpack_from(raw)
            name, dtype = self._structs[self._struct_of[kind]]
            yield Single(name, dtype, time_ns, duration_ns, tgid, raw)

    def counters(self) -> dict[str, int]:
        """Counter name → total over all CPUs since load; those of :data:`COUNTED_BY_KERNEL` too."""
        totals = array_rows(self.map("counters"), self._cpus).sum(axis=1).tolist()
        found = {name: totals[number] for number, name in self._counters.items()}
        found["program_passed_over"] = sum(program.passed_over for program in self._passed_over)
        return found

    def counter(self, number: int) -> int:
        """One of them, by its number in ``enum counter``."""
        raw = self.map("counters").get(struct.pack("<I", number), value_bytes=8 * self._cpus)
        return int(np.frombuffer(raw or b"", dtype="<u8").sum())

    def variable(self, name: str) -> bytes:
        """What a global of ``.bss`` holds now."""
        return self._globals.read(name)

    def set_variable(self, name: str, value: int) -> None:
        """Write a global of ``.bss`` while the programs run."""
        self._globals.write(name, value)

    def await_records(self) -> bool:
        """Have the next record make the ring's descriptor readable, until :meth:`await_none`; False: one is there.

        A record that comes just now is either seen here or finds that it is waited for: between the two, this thread
        stores more than a processor holds back.
        """
        self.set_variable(_AWAITED, 1)
        return not self.ring.pending_bytes()

    def await_none(self) -> None:
        """The ring is drained on a timer again: records that it has room for wake nobody."""
        self.set_variable(_AWAITED, 0)

    @cached_property
    def _globals(self) -> GlobalVariables:
        table = next(each for each in self.object.maps.values() if each.name.endswith(".bss"))
        return GlobalVariables(table, self.image.variables(".bss"))

    def load_waiting(self) -> list[Program]:
        """Load the programs that were left for later, with the maps of the others; none are left then.

        Raises :class:`BpfError`.
        """
        waiting, self.waiting = self.waiting, frozenset()
        core_types = self.core_types.for_family(self.family)
        self._beside = opened = Object(self.image.data, self.family, core_types)
        for name, table in opened.maps.items():
            if (fd := self.map(name).fd) < 0:
                table.leave_out()
            else:
                table.reuse(fd)
        for program in opened.programs.values():
            program.set_autoload(program.name in waiting)
        opened.load()
        programs = [opened.programs[name] for name in sorted(waiting)]
        self.programs += programs
        return programs

    def take_links(self) -> list[Link]:
        """All that are attached, for who takes them off."""
        links, self.links = self.links, []
        return links

    def close(self) -> None:
        """Detach and free; idempotent."""
        detach_all(self.take_links())
        if self._beside is not None:
            self._beside.close()
        if (found := self.__dict__.pop("_globals", None)) is not None:
            found.close()
        self.ring.close()
        self.object.close()


class Loader:
    """Loads families that share the scope and the contexts of ``process``, now or later.

    ``ring_bytes`` by family; ``core_types`` and ``trace_contexts`` as :func:`load_family` has them, closed with this.
    """

    def __init__(
        self,
        process: LoadedFamily,
        *,
        constants: Mapping[str, int],
        ring_bytes: Callable[[str], int],
        sessions: bool,
        returns: bool,
        core_types: CoreBtf,
        trace_contexts: int | None,
    ) -> None:
        self._process, self._constants, self._ring_bytes = process, constants, ring_bytes
        self._sessions, self._returns, self._trace_contexts = sessions, returns, trace_contexts
        self._core_types = core_types

    def load(
        self,
        image: Image,
        *,
        constants: Mapping[str, int] | None = None,
        wanted: Callable[[str], bool] | None = None,
        waits: Callable[[Program], bool] | None = None,
    ) -> LoadedFamily:
        """One family; may be called from several threads. Raises :class:`BpfError`.

        ``constants``: of its own; ``wanted``: whether to load a program, by its name (None: all); ``waits``: whether
        that has time until :meth:`LoadedFamily.load_waiting`.
        """
        size = self._ring_bytes(image.family)
        return load_family(
            image,
            constants={"ring_wake_bytes": size // 4, **self._constants, **(constants or {})},
            ring_bytes=size,
            shared=self._process,
            sessions=self._sessions,
            returns=self._returns,
            core_types=self._core_types,
            trace_contexts=self._trace_contexts,
            wanted=wanted,
            waits=waits,
        )

    def close(self) -> None:
        """Load no more; idempotent."""
        self._core_types.close()
        if self._trace_contexts is not None:
            os.close(self._trace_contexts)
            self._trace_contexts = None


def needed_programs(sections: Mapping[str, str], *, sessions: bool, returns: bool) -> frozenset[str]:
    """The programs of an object to load, of ``sections`` by name.

    What the kernel can do decides between those that are for the same functions: one ``usession`` for entry
    and return, else ``uprobe`` and ``uretprobe``, else (without ``returns``) ``uprobe`` alone.
    """
    places = {name: section.partition("/")[::2] for name, section in sections.items()}
    alternatives = {place for kind, place in places.values() if kind == "usession"}
    unwanted = {"uprobe", "uretprobe"} if sessions and returns else {"usession"}
    if not returns:
        unwanted.add("uretprobe")
    return frozenset(
        name for name, (kind, place) in places.items() if place not in alternatives or kind not in unwanted
    )


def lacking(programs: Iterable[Program]) -> frozenset[str]:
    """Those marked optional (``SEC("?tp_btf/…")``) whose typed tracepoint this kernel does not have."""
    return frozenset(
        program.name
        for program in programs
        if not program.autoload and program.probes == "tp_btf"
        if not has_typed_tracepoint(program.section.partition("/")[2])
    )


def entries_of(declared: int, processors: int) -> int:
    """Of a table of what is under way at once: all from 32 processors on, else in proportion, a quarter at least."""
    return declared * min(max(processors, _MANY_PROCESSORS // 4), _MANY_PROCESSORS) // _MANY_PROCESSORS


def load_family(
    image: Image,
    *,
    constants: dict[str, int],
    ring_bytes: int,
    shared: LoadedFamily | None = None,
    programs: tuple[str, ...] | None = None,
    sessions: bool = False,
    returns: bool = True,
    core_types: CoreBtf | None = None,
    trace_contexts: int | None = None,
    wanted: Callable[[str], bool] | None = None,
    waits: Callable[[Program], bool] | None = None,
) -> LoadedFamily:
    """Load one family.

    ``constants`` are ``const volatile`` globals by name; ``ring_bytes`` a power of two of at least a page;
    ``shared`` the family whose scope and contexts this one uses; ``core_types`` what of the kernel's types is looked
    through (None: all); ``trace_contexts`` the descriptor of the map
    that OBI writes contexts into, None without one; ``programs`` those to load (None: all that are
    :func:`needed <needed_programs>`), ``wanted`` a choice among them by name; those that ``waits`` says have time are
    left for :meth:`LoadedFamily.load_waiting`.
    Raises :class:`BpfError`.
    """
    core_types = core_types or CoreBtf()
    opened = Object(image.data, image.family, core_types.for_family(image.family))
    constants = {**constants, "context_obi": int(trace_contexts is not None)}
    try:
        known = image.variables(".rodata")
        memory = next(m for n, m in opened.maps.items() if n.endswith(".rodata")).memory()
        for name, value in constants.items():
            if name not in known:
                continue
            offset, size = known[name]
            struct.pack_into("<" + _FORMATS[size], memory, offset, value)
        opened.maps["ring"].set_max_entries(ring_bytes)
        for name in image.btf.tagged(_BY_PROCESSORS):
            table = opened.maps[name]
            table.set_max_entries(entries_of(table.max_entries, possible_cpus()))
        if shared is not None:
            for name in (*SHARED_MAPS, *(name for name in _SHARED_WHERE_USED if name in opened.maps)):
                opened.maps[name].reuse(shared.map(name).fd)
        if trace_contexts is not None:
            opened.maps[_TRACE_CONTEXTS].reuse(trace_contexts)
        elif _TRACE_CONTEXTS in opened.maps:
            opened.maps[_TRACE_CONTEXTS].leave_out()
        sections = {program.name: program.section for program in opened.programs.values()}
        loaded = (
            needed_programs(sections, sessions=sessions, returns=returns) - lacking(opened.programs.values())
            if programs is None
            else programs
        )
        if wanted is not None:
            loaded = frozenset(filter(wanted, loaded))
        waiting = frozenset(name for name in loaded if waits is not None and waits(opened.programs[name]))
        loaded = frozenset(loaded) - waiting
        for program in opened.programs.values():
            program.set_autoload(program.name in loaded)
        opened.load()
        running = [program for name, program in opened.programs.items() if name in loaded]
        longest = max(
            image.btf.dtype(name).itemsize for name in record_structs(image.btf, image.family).values()
        )
        ring = Ring(opened.maps["ring"].fd, ring_bytes, longest=longest)
        if shared is not None:
            offer_call_stacks(shared.object, running)
        return LoadedFamily(image, opened, ring, running, waiting, core_types)
    except BaseException:
        opened.close()
        raise
