"""Addresses in running processes → function names.

In: (process, address). Out: (name, known), or the text that lies there. Reads ``/proc/PID/maps``, the mapped
ELF files, their debugging symbols, and ``/proc/PID/mem`` for text that is in no file; the look-up
itself is in :mod:`otelgpu.symbols` and :mod:`otelgpu.elf.image`. Never raises for what a process or its
files do: an address without a name gets a substitute and its reason is counted.
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from msgspec import Struct, field

from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.elf.symbols import MAX_NAME_BYTES
from otelgpu.model.losses import Reasons
from otelgpu.model.text import printable
from otelgpu.processes.demangler import Demangler, session_demangler
from otelgpu.processes.elf_files import ElfFile, Identity, find_symbols, identity_of, open_mapping
from otelgpu.processes.function_finder import FunctionFinder, session_function_finder
from otelgpu.processes.maps import Mapping, find, read_maps
from otelgpu.processes.memory import ProcessMemory, session_memory
from otelgpu.processes.reader.accounts import GONES, Accounts, Owner, Owners
from otelgpu.symbols.functions import FunctionTable, unknown_name

MAX_FILES: Final = 64
MAX_PROCESSES: Final = 256
MAX_NAMES_BYTES: Final = 16 << 20
MAX_TABLES_BYTES: Final = 64 << 20
"""Of what is made to name functions, for all files: libtorch_cpu's 348,000 take 9.8 MB, libLLVM's 35,000 one."""
_MAX_MISSES: Final = 4096  # addresses per process that are known to be mapped nowhere
_MAX_FRUITLESS: Final = 16
_LOOK_AGAIN_S: Final = 0.1
_MAX_PLACES: Final = 32_768  # of all files; some 250 bytes each
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_ENTRY_BYTES: Final = 300  # of a cached name beside its text: key, tuple, table slot; measured
_SHARE: Final = 0.1
_ADVANCE_S: Final = 2.0
_FREE_S: Final = 0.001
"""A name costs some 30 µs, the first one of a file with a million functions half a second."""

REASONS: Final = Reasons(
    "symbols",
    {
        "process_gone": "a kernel name was asked for after its process had ended",
        "process_denied": "the mappings of a process may not be read; more capabilities are needed",
        "address_unmapped": "no mapping holds the address of a kernel's host stub",
        "mapping_anonymous": "the stub lies in code that was made at run time",
        "file_unreadable": "the file that holds the stub cannot be opened",
        "file_not_elf": "the file that holds the stub is damaged or no ELF file",
        "file_changed": "the file was overwritten while it was in use",
        "symbol_missing": "nothing says the stub's name: the file is stripped",
        "owner_over_share": "looking into a container's or user's programs for names has taken its share of time: "
        "addresses of theirs stay without names for now",
        "text_unreadable": "a kernel's name, where the program registered it, is not readable any more",
    },
)
"""Why an address got no name: keys of :attr:`AddressResolver.counters`, beside what the tables of single
files count (:mod:`otelgpu.symbols.functions`).

``process_denied`` and ``file_unreadable`` want more capabilities; ``symbol_missing`` is a stripped file.
"""


class CodeLocation(Struct, frozen=True, kw_only=True):
    """Where an address lies. ``mapping`` is None where nothing is mapped, or the process is gone.

    ``name`` is demangled, ``system_name`` the linker's; both are "" where no symbol reports them. ``path`` is that
    of the mapped file as text that can be shown, ``offset`` the one in it; "" and 0 for what is in no file.
    """

    mapping: Mapping | None
    name: str = ""
    system_name: str = ""
    path: str = ""
    build_id: str = ""
    offset: int = 0


class _Owned(Protocol):
    owner: Owner


K = TypeVar("K")
V = TypeVar("V", bound=_Owned)


class _Process(Struct):
    """A snapshot of a process' executable mappings, and what is known of them."""

    mappings: list[Mapping]
    owner: Owner = GONES
    files: dict[int, Identity | None] = field(
        default_factory=dict
    )  # by mapping start; None: counted, useless
    reasons: dict[int, str] = field(default_factory=dict)
    misses: deque[int] = field(default_factory=lambda: deque(maxlen=_MAX_MISSES))
    fruitless: int = 0  # snapshots in a row that did not have the address they were taken for
    taken_s: float = field(default_factory=time.monotonic)

    def is_settled(self) -> bool:
        """Whether to look again is too soon: each time, a process' maps are megabytes to read."""
        return self.fruitless >= _MAX_FRUITLESS and time.monotonic() - self.taken_s < _LOOK_AGAIN_S


class _Module(Struct):
    file: ElfFile
    table: FunctionTable
    owner: Owner
    held_bytes: int = 0  # by the table, as it was counted last


class AddressResolver:
    """Names for addresses, with bounded caches: files, process snapshots, and names by (file, offset).

    A snapshot of a process' mappings is taken at the first question about it and again when an address is
    in none of them. One that was unmapped and mapped anew with another file in between would go unnoticed:
    call :meth:`remember` when a process execs or maps code, :meth:`forget` when it exits.

    Worked example: the kernel launch of ``_Z4axpyfPfS_`` passes 0x55d0c0001189; the process maps
    ``/app/axpy`` at 0x55d0c0001000 from file offset 0x1000 on; its symbol table has ``_Z4axpyfPfS_`` at file
    offset 0x1169 with 0x61 bytes, so the answer is ``("axpy(float, float*, float*)", True)``.

    ``demangle``: readable names of a process, for others who have names of theirs.
    """

    def __init__(
        self,
        *,
        proc: Path = Path("/proc"),
        max_files: int = MAX_FILES,
        max_processes: int = MAX_PROCESSES,
        max_names_bytes: int = MAX_NAMES_BYTES,
        max_tables_bytes: int = MAX_TABLES_BYTES,
        demangler: Demangler | None = None,
        accounts: Accounts | None = None,
        memory: ProcessMemory | None = None,
        finder: FunctionFinder | None = None,
    ) -> None:
        self.demangle = demangler or session_demangler()
        self._finder = finder or session_function_finder()
        self._memory = memory or session_memory()
        self.counters: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._proc = proc
        self._owners = Owners(proc=proc)
        self._accounts = accounts or Accounts(share=_SHARE, advance_s=_ADVANCE_S)
        self._max_files = max_files
        self._max_processes = max_processes
        self._max_names_bytes = max_names_bytes
        self._max_tables_bytes = max_tables_bytes
        self._tables_bytes = 0
        self._processes: OrderedDict[int, _Process] = OrderedDict()
        self._modules: OrderedDict[Identity, _Module] = OrderedDict()
        self._names: OrderedDict[tuple[Identity, int, bool], tuple[str, bool]] = OrderedDict()
        self._names_bytes = 0
        self._places: OrderedDict[tuple[Identity, int], tuple[str, str]] = OrderedDict()

    def resolve(self, tgid: int, address: int) -> tuple[str, bool]:
        """The demangled name of the function at ``address`` of process ``tgid``, and whether it is known.

        Unknown ones are ``module+0xoffset`` (the offset in the file), ``[anonymous]+0xoffset`` for code
        that was made at run time, ``[unknown]+0xaddress`` where nothing is mapped or the process is gone.
        """
        return self._answer(tgid, address, is_return=False)

    def resolve_return(self, tgid: int, address: int) -> tuple[str, bool]:
        """Where a call came from that returns to ``address``: ``function+0xoffset``; unknown as above."""
        return self._answer(tgid, address, is_return=True)

    def place(self, tgid: int, address: int) -> CodeLocation:
        """Where ``address`` of process ``tgid`` lies, with the function's name if there is one.

        Of a return address ask for the byte before: the call may have been the function's last instruction.
        """
        located = self._locate(tgid, address)
        if isinstance(located, str):
            self.counters[located] += 1
            return CodeLocation(mapping=None)
        process, mapping = located
        if not mapping.is_file:
            return CodeLocation(mapping=mapping)
        offset = mapping.file_offset(address)
        label = _label(mapping.path)
        module = self._module_of(tgid, process, mapping, label)
        if module is None:
            self.counters[process.reasons[mapping.start]] += 1
            return CodeLocation(mapping=mapping, path=shown(mapping.path), offset=offset)
        name, system_name = self._function_in(process, mapping, module, offset)
        return CodeLocation(
            mapping=mapping,
            name=name,
            system_name=system_name,
            path=shown(mapping.path),
            build_id=module.file.image.build_id or "",
            offset=offset,
        )

    def _function_in(
        self, process: _Process, mapping: Mapping, module: _Module, offset: int
    ) -> tuple[str, str]:
        key = (module.file.identity, offset)
        found = self._places.get(key)
        if found is None:
            if not module.file.unchanged():
                self._drop_module(module.file.identity)
                process.files.pop(mapping.start, None)
                self.counters["file_changed"] += 1
                return "", ""
            if self._accounts.of(process.owner).is_spent():
                self.counters["owner_over_share"] += 1
                return "", ""
            try:
                with self._accounts.charged(process.owner, _FREE_S):
                    found = module.table.function_at(offset) or ("", "")
            except ElfError:
                self.counters["file_not_elf"] += 1
                found = ("", "")
            self._bound_tables(module)
            if module.table.counters:
                self.counters.update(module.table.counters)
                module.table.counters.clear()
            self._places[key] = found
            if len(self._places) > _MAX_PLACES:
                self._places.popitem(last=False)
        else:
            self._places.move_to_end(key)
        if not found[0]:
            self.counters["symbol_missing"] += 1
        return found

    def build_id_at(self, tgid: int, address: int) -> str:
        """Of the file in which ``address`` lies; empty where it has none, or cannot be read. Counts nothing."""
        located = self._locate(tgid, address)
        if isinstance(located, str) or not located[1].is_file:
            return ""
        module = self._module_of(tgid, *located, _label(located[1].path))
        return (module.file.image.build_id or "") if module is not None else ""

    def text_at(self, tgid: int, address: int, near: int) -> bytes | None:
        """The zero-terminated text at ``address``, as a rule a constant of the module with ``near`` in it.

        None, counted, when it is unreadable or longer than MAX_NAME_BYTES. The module's file is asked first:
        it outlives the process.
        """
        located = self._locate(tgid, near)
        if isinstance(located, tuple):
            process, mapping = located
            if mapping.is_file:
                module = self._module_of(tgid, process, mapping, _label(mapping.path))
                if module is not None and module.file.unchanged():
                    base = module.file.image.address_of(mapping.file_offset(near))
                    if base is not None:
                        text = module.file.image.constant_text(address - near + base)
                        if text is not None:
                            return text
        text = self._read_text(tgid, address)
        if text is None:
            self.counters["text_unreadable"] += 1
        return text

    def _read_text(self, tgid: int, address: int) -> bytes | None:
        """A zero-terminated text in a process' memory."""
        on_page = min(_PAGE_BYTES - address % _PAGE_BYTES, MAX_NAME_BYTES)
        try:
            with self._memory.open(tgid, proc=self._proc) as memory:
                (text,) = memory.read((address, on_page))
                if len(text) == on_page and b"\0" not in text:  # the next page may not be there
                    (rest,) = memory.read((address + on_page, MAX_NAME_BYTES - on_page))
                    text += rest
        except OSError:  # gone, or denied
            return None
        return text.partition(b"\0")[0] if b"\0" in text else None

    def _answer(self, tgid: int, address: int, *, is_return: bool) -> tuple[str, bool]:
        located = self._locate(tgid, address)
        if isinstance(located, str):
            return self._unknown(located, "[unknown]", address)
        process, mapping = located
        if not mapping.is_file:
            return self._unknown("mapping_anonymous", mapping.path or "[anonymous]", address - mapping.start)
        return self._resolve_in_file(tgid, process, mapping, mapping.file_offset(address), is_return)

    def _locate(self, tgid: int, address: int) -> tuple[_Process, Mapping] | str:
        """The mapping that holds ``address``, or the reason why there is none."""
        process = self._processes.get(tgid)
        mapping = None
        if process is not None:
            self._processes.move_to_end(tgid)
            mapping = find(process.mappings, address)
        if process is None or mapping is None:
            if process is not None and (address in process.misses or process.is_settled()):
                return "address_unmapped"
            try:
                process = self._snapshot(tgid)
            except PermissionError:
                return "process_denied"
            except OSError:
                return "process_gone"
            mapping = find(process.mappings, address)
            if mapping is None:
                process.misses.append(address)
                process.fruitless += 1
                return "address_unmapped"
            process.fruitless = 0
        return process, mapping

    def remember(self, tgid: int, earlier: Sequence[Mapping] = ()) -> None:
        """Take a new snapshot now, and open the program: the process exec'd or mapped something.

        It may have ended by the time that it is asked about. If it has ended already, what it had mapped
        ``earlier`` is taken.
        """
        try:
            process = self._snapshot(tgid)
        except OSError:
            if not earlier:
                return  # counted when, and if, a name is wanted
            process = self._keep(tgid, list(earlier))
        process.fruitless = 0
        program = next((mapping for mapping in process.mappings if mapping.is_file), None)
        if program is not None:
            self._module_of(tgid, process, program, _label(program.path))

    def renew(self, tgid: int) -> bool:
        """Take a new snapshot; whether all files that were mapped before still are.

        True, too, of a process that has ended or may not be read: what was known of it is all that will be.
        """
        before = self._processes.get(tgid)
        try:
            process = self._snapshot(tgid)
        except OSError:
            return True
        process.fruitless = 0
        if before is None:
            return False
        return {mapping for mapping in before.mappings if mapping.is_file} <= set(process.mappings)

    def inherit(self, parent: int, child: int) -> None:
        """A process forked: as :meth:`remember`, but a child that has ended had mapped what its parent has."""
        known = self._processes.get(parent)
        self.remember(child, known.mappings if known is not None else ())

    def forget(self, tgid: int) -> None:
        """Drop the snapshot of a process that ended."""
        self._processes.pop(tgid, None)

    def close(self) -> None:
        """Let all files go."""
        self._processes.clear()
        self._places.clear()
        self._names.clear()
        self._names_bytes = 0
        while self._modules:
            self._drop_module(next(iter(self._modules)))

    # -- Processes -------------------------------------------------------------------------------------

    def _snapshot(self, tgid: int) -> _Process:
        mappings = read_maps(tgid, proc=self._proc, executable_only=True)
        if not mappings:  # exiting: what was known of it is worth more
            raise ProcessLookupError(tgid)
        return self._keep(tgid, mappings)

    def _keep(self, tgid: int, mappings: list[Mapping]) -> _Process:
        previous = self._processes.pop(tgid, None)
        process = _Process(mappings, self._owners.of(tgid))
        if previous is not None:
            if process.owner == GONES:
                process.owner = previous.owner
            process.misses, process.fruitless = previous.misses, previous.fruitless
            kept = set(previous.mappings)
            for mapping in mappings:
                if mapping in kept and mapping.start in previous.files:
                    process.files[mapping.start] = previous.files[mapping.start]
                    process.reasons[mapping.start] = previous.reasons.get(mapping.start, "")
        self._processes[tgid] = process
        if len(self._processes) > self._max_processes:
            del self._processes[_oldest_of_most(self._processes)]
        return process

    def _unknown(self, reason: str, module: str, offset: int) -> tuple[str, bool]:
        self.counters[reason] += 1
        return unknown_name(module, offset), False

    # -- Files -----------------------------------------------------------------------------------------

    def _resolve_in_file(
        self, tgid: int, process: _Process, mapping: Mapping, offset: int, is_return: bool
    ) -> tuple[str, bool]:
        label = _label(mapping.path)
        module = self._module_of(tgid, process, mapping, label)
        if module is None:
            return self._unknown(process.reasons[mapping.start], label, offset)
        key = (module.file.identity, offset, is_return)
        answer = self._names.get(key)
        if answer is None:
            if not module.file.unchanged():
                self._drop_module(module.file.identity)
                process.files.pop(mapping.start, None)
                return self._unknown("file_changed", label, offset)
            if self._accounts.of(process.owner).is_spent():
                return self._unknown("owner_over_share", label, offset)
            try:
                with self._accounts.charged(process.owner, _FREE_S):
                    answer = module.table.place_at(offset) if is_return else module.table.name_at(offset)
            except ElfError:
                return self._unknown("file_not_elf", label, offset)
            self._bound_tables(module)
            if module.table.counters:
                self.counters.update(module.table.counters)
                module.table.counters.clear()
            if module.table.has_read_code():
                module.file.forget_pages()
            self._remember(key, answer)
        else:
            self._names.move_to_end(key)
        if not answer[1]:
            # Under its own label: two processes may know the file by different names.
            return self._unknown("symbol_missing", label, offset)
        return answer

    def _module_of(self, tgid: int, process: _Process, mapping: Mapping, label: str) -> _Module | None:
        if mapping.start in process.files:
            identity = process.files[mapping.start]
            if identity is None:
                return None
            module = self._modules.get(identity)
            if module is not None:
                self._modules.move_to_end(identity)
                return module
        known = self._modules.get(identity_of(tgid, mapping, proc=self._proc))
        if known is not None and known.file.unchanged():  # another process has it mapped too
            process.files[mapping.start] = known.file.identity
            self._modules.move_to_end(known.file.identity)
            return known
        try:
            file = open_mapping(tgid, mapping, proc=self._proc)
            if not _is_code_of(file.image, mapping):
                file.close()
                raise OSError(errno.ESTALE, "the file was replaced by another one")
        except (OSError, ElfError) as error:
            reason = "file_not_elf" if isinstance(error, ElfError) else "file_unreadable"
            process.files[mapping.start] = None
            process.reasons[mapping.start] = (
                "file_changed" if getattr(error, "errno", 0) == errno.ESTALE else reason
            )
            return None
        process.files[mapping.start] = file.identity
        module = self._modules.get(file.identity)
        if module is not None and module.file.unchanged():
            file.close()
            self._modules.move_to_end(file.identity)
            return module
        if module is not None:
            self._drop_module(file.identity)
        module = self._modules[file.identity] = _Module(
            file, self._table(tgid, file, process.owner, label), process.owner
        )
        while len(self._modules) > self._max_files:
            self._drop_module(_oldest_of_most(self._modules))
        return module

    def _table(self, tgid: int, file: ElfFile, owner: Owner, label: str) -> FunctionTable:
        build_id = file.image.build_id or ""
        roots = (self._proc / str(tgid) / "root", Path("/"))
        return FunctionTable(
            file.image,
            label,
            find_symbols=lambda: find_symbols(build_id, roots),
            demangle=lambda name: self.demangle(name, tgid),
            registrations=lambda: self._finder.registrations(owner, file.descriptor),
        )

    def _drop_module(self, identity: Identity) -> None:
        """Close a file and forget its names: once it is closed, its identity may become another file's."""
        module = self._modules.pop(identity)
        module.file.close()
        self._tables_bytes -= module.held_bytes
        for key in [key for key in self._names if key[0] == identity]:
            self._names_bytes -= _cost(self._names.pop(key))
        for place in [place for place in self._places if place[0] == identity]:
            del self._places[place]

    def _bound_tables(self, asked: _Module) -> None:
        """Give back what is beyond the bound, of the files that were asked least lately; ``asked`` keeps what it has.

        They stay open: they are read again when they are asked again.
        """
        held = asked.table.held_bytes
        self._tables_bytes += held - asked.held_bytes
        asked.held_bytes = held
        for module in self._modules.values():
            if self._tables_bytes <= self._max_tables_bytes:
                return
            if module is not asked and module.held_bytes:
                module.table.forget()
                self._tables_bytes -= module.held_bytes
                module.held_bytes = 0

    def give_back(self) -> None:
        """Forget what can be read again: names, and the tables that they are found in."""
        self._names.clear()
        self._names_bytes = 0
        for module in self._modules.values():
            if module.held_bytes:
                module.table.forget()
                self._tables_bytes -= module.held_bytes
                module.held_bytes = 0

    def _remember(self, key: tuple[Identity, int, bool], answer: tuple[str, bool]) -> None:
        self._names[key] = answer
        self._names_bytes += _cost(answer)
        while self._names_bytes > self._max_names_bytes:
            self._names_bytes -= _cost(self._names.popitem(last=False)[1])


def _oldest_of_most(entries: OrderedDict[K, V]) -> K:
    """Of whose owner has most of them, the one that was asked for least lately."""
    most = Counter(each.owner for each in entries.values()).most_common(1)[0][0]
    return next(key for key, each in entries.items() if each.owner == most)


def _cost(answer: tuple[str, bool]) -> int:
    return len(answer[0]) + _ENTRY_BYTES


def _label(path: str) -> str:
    """The base name of a mapped file as text that can be shown and exported."""
    return shown(path.rpartition("/")[2])[:255]


def shown(path: str) -> str:
    """A path as text that can be shown and exported; at most 4,096 characters (PATH_MAX)."""
    return printable(path.encode("utf-8", "backslashreplace").decode()[:4096])


def _is_code_of(image: ElfImage, mapping: Mapping) -> bool:
    """Whether the mapping shows code of this image: another file with the number of a deleted one seldom does."""
    return any(
        load.executable
        and load.offset // _PAGE_BYTES * _PAGE_BYTES <= mapping.offset < load.offset + load.size
        for load in image.loads
    )
