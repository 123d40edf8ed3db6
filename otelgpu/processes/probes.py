"""Which files get probes: whatever has a wanted function in it, once per inode, whoever maps it and whenever.

A library is reported by its symbols, not by its name: a runtime may be linked into the program, or into any shared
library. In: processes, executable mappings as they are made, files that a program will load. Out: probes
attached, and a :class:`ProbedFile` for each file that has any. An inode probe serves every process that maps
the file, so a file is never attached to twice.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit
from typing import Final

from msgspec import Struct

from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.kernel.attach import GO, GO_RETURNS, Hook, attach_go_hooks, attach_hooks
from otelgpu.kernel.clock import monotonic_ns
from otelgpu.kernel.features import filesystem_magic
from otelgpu.kernel.libbpf import BpfError, Link, detach_all
from otelgpu.kernel.statx import cached_status
from otelgpu.model.losses import Reasons
from otelgpu.model.shares import OF_CONTAINER, Refusals, described
from otelgpu.processes.elf_files import map_elf, open_regular, paths_of
from otelgpu.processes.function_finder import FoundFunctions, FunctionFinder
from otelgpu.processes.libraries import library_name_of
from otelgpu.processes.listing import list_processes
from otelgpu.processes.maps import Inode, Mapping, executable_mappings
from otelgpu.processes.mounts import UntrustedMount
from otelgpu.processes.process_probes import FileProbes, ProcessProbes
from otelgpu.processes.reader.accounts import NOBODYS, Owner, owner_of
from otelgpu.processes.reader.client import ReaderError

REASONS: Final = Reasons(
    "probes",
    {
        "process_denied": "the program of a process may not be looked at; more capabilities are needed",
        "process_vanished": "a process ended before its program could be looked at",
        "mapping_vanished": "a library was unmapped before it could be probed",
        "file_not_asked": "a library or program on a file system that its process may have made itself, in a user "
        "namespace of its own: it is not opened, for it may keep who opens it waiting",
        "file_unreadable": "a library or program cannot be opened or read",
        "file_not_elf": "a library or program is damaged, of another machine, or no ELF file",
        "mapped_file_replaced": "another file lies where a mapped one was: the mapped one got no probes",
        "probed_file_changed": "a probed file was written over in place: its probes were taken off",
        "probes_refused": "the kernel refused a probe; the log says which and why",
        "go_program_unknown": "a Go program whose table of functions, or the code of those that are to be probed, is "
        "not understood: Go's own functions are not probed there",
        "probe_share_spent": "a library or program that is to be probed, of a container or user whose files have two "
        "thirds of the probes already: its calls are not seen",
        "file_postponed": "a process, or a library or program of it, was not looked at, as that took too long or its "
        "container or user has spent its share of time: it is looked at again",
    },
)
"""What one count of (``probes``, reason) means."""

_log = logging.getLogger("otelgpu.discover")

EXAMINED_FILES: Final = 65_536
PROBED_FILES: Final = 1024
"""Files with probes, each of which has some descriptors. One owner's may have twice as many as are free: two thirds."""
_DESCRIPTORS_EACH: Final = 32
_LIBRARY: Final = "lib"  # what the library_names of libraries begin with
_OF_GO: Final = (GO, GO_RETURNS)
_SHARED_OBJECT: Final = re.compile(r".\.so(?:\.|$)")
_CUT_NAME_BYTES: Final = 63  # of a name of process.h: the suffix may be cut off
_PLAIN_NS: Final = (
    10_000_000_000  # how long an inode without probes is not looked at: it may be another file's
)
_FIRST_PAUSE_NS: Final = 1_000_000_000
_LONGEST_PAUSE_NS: Final = 60_000_000_000
_NEVER_NS: Final = 1 << 63
IN_EVERY_PROCESS: Final = frozenset({"libc"})
"""Libraries: to have mapped one says nothing of a process."""
POSTPONED_AT_ONCE: Final = 16
"""Processes that are looked at again in one collection; the others wait for the next."""
KEEP_NS: Final = 300_000_000_000
"""How long a file that no process has mapped keeps its probes, which keep it (and its file system) from being freed."""
_OVERLAYFS_MAGIC: Final = 0x794C7630  # include/uapi/linux/magic.h
_TMPFS_MAGIC: Final = 0x01021994
_FUSE_MAGIC: Final = 0x65735546
_OVERLAY: Final = "overlay"  # stands for every device of an overlayfs


_Identity = tuple[int, int, int, int]
"""Inode number, size, times of the last write and of the last change in ns; the last nobody can set."""
FileState = tuple[int, int]
"""Of these the size and the time of the last change: who writes to a file changes them."""


_Device = tuple[int | str, bool]
"""st_dev, or that it is an overlayfs; and whether anybody can make such a file system and choose its inode numbers."""


@dataclass(slots=True, kw_only=True, eq=False)
class ProbedFile:
    """One file with probes on it. Times are CLOCK_MONOTONIC ns."""

    path: str
    library: str
    identity: _Identity = field(repr=False)
    symbols: tuple[str, ...]
    refused: tuple[str, ...]  # what the kernel said about probes it did not take
    ready_ns: int
    links: list[Link] = field(repr=False)
    blind_ns: int = 0  # longest time that a process had the file mapped before the probes were there
    used_ns: int  # when a process was last known to have it
    expected: bool = False  # a program is about to load it, whenever that is
    of_process: FileProbes | None = None  # probes that each process has for itself
    owner: Owner = NOBODYS


class _Later(Struct, frozen=True):
    """Hooks that there will be when a file has one of ``symbols``."""

    symbols: frozenset[str]
    load: Callable[[], None]


class InspectedFile(Struct, frozen=True):
    """A file that is about to get probes. ``descriptor``: open for now; ``owner``: who pays for what is read of it."""

    image: ElfImage
    path: str
    descriptor: int
    owner: Owner


class ProbePlacer:
    """Inspects files and attaches what belongs to them."""

    def __init__(self, hooks: Iterable[Hook], finder: FunctionFinder, *, with_returns: bool) -> None:
        self._hooks: list[Hook] = []
        self._nameless: list[Hook] = []
        self._go_hooks: list[Hook] = []
        self._go_symbols: frozenset[str] = frozenset()  # and those that there will be hooks for
        self._later: list[_Later] = []
        self._hooked: set[str] = set()
        self._symbols: frozenset[str] = frozenset()  # and those that there will be hooks for
        self.library_names: frozenset[str] = frozenset()
        """What the libraries are called that some probe is for."""
        self.add(hooks)
        self.file_cookies: dict[str, Callable[[InspectedFile], int]] = {}
        """By library: what a file says to its programs, in their cookies (31 bits)."""
        self.with_returns = with_returns
        self.process_probes: ProcessProbes | None = None
        """Of what each process is to have for itself; set before any file is examined."""
        self._finder = finder
        self._postponed: dict[
            int, tuple[int, int]
        ] = {}  # process → when to look again, and the pause after that
        self._inspected: dict[_Identity, dict[_Device, ProbedFile | None]] = {}
        self._by_inode: dict[Inode, ProbedFile] = {}
        self._plain: dict[Inode, tuple[int, _Identity]] = {}  # files without probes: when that was found
        self._probed_of: Counter[Owner] = Counter()
        self._refused = Refusals()
        self.counters: Counter[str] = Counter()

    def add_later(self, functions: dict[str, str], load: Callable[[], None]) -> None:
        """``load`` is to add hooks once a file has one of ``functions`` (symbol → its library)."""
        symbols = frozenset(symbol for symbol, library in functions.items() if library.startswith(_LIBRARY))
        of_go = frozenset(symbol for symbol, library in functions.items() if library in _OF_GO)
        self._later.append(_Later(symbols | of_go, load))
        self._symbols |= symbols
        self._go_symbols |= of_go
        self.library_names |= {functions[symbol] for symbol in symbols}

    def add(self, hooks: Iterable[Hook]) -> None:
        """More hooks, before any file is inspected."""
        for hook in hooks:
            self._list_for(hook.library).append(hook)
        self._hooked |= {hook.symbol for hook in self._hooks}
        self._go_symbols |= {hook.symbol for hook in self._go_hooks}
        self._symbols |= self._hooked
        self.library_names |= {hook.library for hook in self._hooks}

    def _list_for(self, library: str) -> list[Hook]:
        if library in _OF_GO:
            return self._go_hooks
        return self._hooks if library.startswith(_LIBRARY) else self._nameless

    def _load_for(self, found: FoundFunctions) -> None:
        """What a file with these functions is the first to need."""
        has = found.offsets.keys() | found.go.found.keys()
        for later in [each for each in self._later if not each.symbols.isdisjoint(has)]:
            self._later.remove(later)
            later.load()

    @property
    def probed_files(self) -> list[ProbedFile]:
        """Files that have probes, in the order they were found."""
        return [
            probed_file
            for found in self._inspected.values()
            for probed_file in found.values()
            if probed_file is not None
        ]

    def is_wanted(self, name: str) -> bool:
        """Whether a file is called like a library that probes are for: those are looked at before others."""
        return library_name_of(name) in self.library_names

    def nothing_in(self, inode: Inode) -> FileState | None:
        """What a file was when it was found to say nothing of a process that has mapped it; None: it was not."""
        if (probed_file := self._by_inode.get(inode)) is not None:
            if probed_file.library not in IN_EVERY_PROCESS:
                return None
            _, size, _, changed = probed_file.identity
        elif inode in self._plain:
            _, size, _, changed = self._plain[inode][1]
        else:
            return None
        return size, changed

    def examine_process(self, tgid: int, mappings: Sequence[Mapping] | None = None) -> list[ProbedFile]:
        """Everything that a running process has mapped, program and libraries: those files that carry probes.

        ``mappings``: its executable ones, if they have been read.
        """
        if mappings is None:
            mappings = executable_mappings(tgid)
        found = [self.examine_program(tgid)]
        postponed = self.counters["file_postponed"]
        for each in mappings if self._symbols else ():
            if self.counters["file_postponed"] != postponed:
                break  # the others would be too
            inode = (each.device[0] << 20 | each.device[1], each.inode)
            found.append(self.examine_mapping(tgid, each.start, each.end, each.path, 0, inode))
        return [probed_file for probed_file in found if probed_file is not None]

    def examine_program(self, tgid: int) -> ProbedFile | None:
        """The program of a process, which may have a library linked into it."""
        try:
            path = os.readlink(f"/proc/{tgid}/exe")
        except PermissionError:
            self.counters["process_denied"] += 1
            return None
        except OSError:
            self.counters["process_vanished"] += 1
            return None
        return self._examine(f"/proc/{tgid}/exe", path, mapped_ns=0, tgid=tgid)

    def examine_mapping(
        self,
        tgid: int,
        start: int,
        end: int,
        path: str,
        mapped_ns: int,
        inode: Inode | None = None,
    ) -> ProbedFile | None:
        """An executable mapping; ``mapped_ns`` is when it was made, 0 when long ago.

        ``path`` may be the last component only. ``inode``: if the kernel reported it. A file that has its probes is
        then known without being opened, for they hold it, and the number cannot pass to another; one that has
        none is for a while. Opened through ``/proc/PID/map_files``, which reaches into containers and to
        deleted files; where that is forbidden or the mapping has changed, through ``/proc/PID/root``.
        """
        if not self._symbols or not _may_be_library(path):
            return None
        exact = f"/proc/{tgid}/map_files/{start:x}-{end:x}"
        if inode is not None:
            probed_file = self._by_inode.get(inode)
            if probed_file is not None and not _changed(exact, probed_file):
                return _mapped(probed_file, mapped_ns)
            if inode in self._plain and monotonic_ns() - self._plain[inode][0] < _PLAIN_NS:
                return None
        if _leads_somewhere(exact):
            return self._examine(exact, _full_path(exact, path), mapped_ns=mapped_ns, tgid=tgid)
        for mapping in executable_mappings(tgid):
            if mapping.path == path or os.path.basename(mapping.path) == path:
                for candidate in paths_of(tgid, mapping):
                    if _can_be_opened(str(candidate)):
                        return self._examine(
                            str(candidate), mapping.path, mapped_ns=mapped_ns, number=mapping.inode, tgid=tgid
                        )
        self.counters["mapping_vanished"] += 1
        return None

    def examine_file(self, path: Path) -> ProbedFile | None:
        """A file that a program is about to load."""
        probed_file = self._examine(str(path), str(path), mapped_ns=0)
        if probed_file is not None:
            probed_file.expected = True
            if probed_file.of_process is not None:
                probed_file.of_process.expect()
        return probed_file

    def release(self, used: Iterable[ProbedFile], now_ns: int, *, keep_ns: int = KEEP_NS) -> list[ProbedFile]:
        """Take the probes off files that nobody has had for ``keep_ns``: those of containers that are gone, say.

        ``used``: those that a process is known to have. Before any is let go, all processes are looked at.
        """
        if found := self._refused.due(now_ns):
            _log.warning("%s has its share of files with probes; others have theirs", described(found))
        for probed_file in used:
            probed_file.used_ns = now_ns
        idle = [each for each in self.probed_files if not each.expected and each.used_ns + keep_ns <= now_ns]
        if not idle:
            return []
        mapped = {each.inode for tgid in list_processes() for each in executable_mappings(tgid)}
        released: list[ProbedFile] = []
        for probed_file in idle:
            if probed_file.identity[0] in mapped:
                probed_file.used_ns = now_ns
            else:
                released.append(probed_file)
        for inode in [inode for inode, each in self._by_inode.items() if each in released]:
            del self._by_inode[inode]
        for probed_file in released:
            self._inspected.pop(probed_file.identity, None)
            self._take_off(probed_file)
        return released

    def place_at(self, path: str, library: str, offsets: dict[str, int]) -> tuple[list[Link], list[BpfError]]:
        """Put the probes of ``library`` on a file's functions that have no names, at file ``offsets`` by symbol.

        ``library`` is one that no library has: those are placed here and nowhere else. The links are the caller's.
        """
        chosen = [hook for hook in self._nameless if hook.library == library]
        return attach_hooks(chosen, path, offsets, with_returns=self.with_returns)

    def take_links(self) -> list[Link]:
        """Every probe that is on a file, for who takes them off."""
        links = [link for probed_file in self.probed_files for link in probed_file.links]
        for probed_file in self.probed_files:
            probed_file.links.clear()
        return links

    def take_postponed(self, now_ns: int) -> list[int]:
        """Processes of which a file could not be looked into, and that are to be looked at again now.

        Each is ever more seldom.
        """
        due = [tgid for tgid, (at_ns, _) in self._postponed.items() if at_ns <= now_ns][:POSTPONED_AT_ONCE]
        for tgid in due:
            pause_ns = self._postponed[tgid][1]
            self._postponed[tgid] = _NEVER_NS, min(2 * pause_ns, _LONGEST_PAUSE_NS)
        return due

    def settle_postponed(self, tgid: int) -> None:
        """A process was looked at again: unless there was something again, it is as any other."""
        if self._postponed.get(tgid, (0, 0))[0] == _NEVER_NS:
            del self._postponed[tgid]

    def forget_process(self, tgid: int) -> None:
        """It has ended."""
        self._postponed.pop(tgid, None)

    def postpone(self, tgid: int) -> None:
        """A process could not be looked at now."""
        self.counters["file_postponed"] += 1
        if tgid in self._postponed or (tgid and len(self._postponed) < EXAMINED_FILES):
            _, pause_ns = self._postponed.get(tgid, (0, _FIRST_PAUSE_NS))
            self._postponed[tgid] = monotonic_ns() + pause_ns, pause_ns

    def _examine(
        self, open_path: str, path: str, *, mapped_ns: int, number: int | None = None, tgid: int = 0
    ) -> ProbedFile | None:
        """``number``: of the inode, where ``open_path`` may have come to name another file since.

        ``tgid``: the process that has it, which pays for reading it; 0: this program's own.
        """
        try:
            descriptor = open_regular(open_path)
        except (FileNotFoundError, ProcessLookupError) as error:
            self.counters["process_vanished" if open_path.startswith("/proc/") else "file_unreadable"] += 1
            _log.debug("cannot open %s (%s): %s", open_path, path, error)
            return None
        except UntrustedMount as error:
            self.counters["file_not_asked"] += 1
            _log.debug("not opened: %s (%s): %s", open_path, path, error)
            return None
        except OSError as error:
            self.counters["file_unreadable"] += 1
            _log.debug("cannot open %s (%s): %s", open_path, path, error)
            return None
        try:
            if number is not None and os.fstat(descriptor).st_ino != number:
                self.counters["mapped_file_replaced"] += 1
                return None
            probed_file = self.examine_open(descriptor, path, tgid)
        finally:
            os.close(descriptor)
        return None if probed_file is None else _mapped(probed_file, mapped_ns)

    def examine_open(self, descriptor: int, path: str, tgid: int) -> ProbedFile | None:
        """A regular file that is open; ``tgid``: the process that has it, which pays for reading it."""
        try:
            return self._examine_open(descriptor, path, tgid)
        except ReaderError as error:
            _log.debug("not looked into: %s: %s", path, error)
            self.postpone(tgid)
        except OSError as error:
            self.counters["file_unreadable"] += 1
            _log.debug("cannot read %s: %s", path, error)
        return None

    def _examine_open(self, descriptor: int, path: str, tgid: int) -> ProbedFile | None:
        identity, device = _identity(descriptor)
        inode = _kernel_inode(descriptor)
        before = self._by_inode.get(inode)
        if before is not None:
            if not _is_written(before.identity, identity):
                return before
            self._forget_changed(inode, before)
        if identity not in self._inspected and len(self._inspected) >= EXAMINED_FILES:
            self._forget_plain_files()
        found = self._inspected.setdefault(identity, {})
        known = next((each for each in found if _may_be_one(device, each)), None)
        if known is None:
            found[device] = self._place(descriptor, path, identity, tgid)
            known = device
        probed_file = found[known]
        if probed_file is not None:
            self._by_inode[inode] = probed_file
        else:
            self._plain[inode] = monotonic_ns(), identity
            if len(self._plain) > EXAMINED_FILES:
                self._plain.clear()
        return probed_file

    def _forget_changed(self, inode: Inode, probed_file: ProbedFile) -> None:
        """It was written over: its probes would be in the middle of other instructions."""
        self.counters["probed_file_changed"] += 1
        _log.warning("%s was written over in place: its probes are taken off", probed_file.path)
        self._take_off(probed_file)
        del self._by_inode[inode]
        self._inspected.pop(probed_file.identity, None)

    def _take_off(self, probed_file: ProbedFile) -> None:
        detach_all(probed_file.links)
        if probed_file.of_process is not None:
            probed_file.of_process.close()
        self._probed_of[probed_file.owner] -= 1

    def _has_room(self, owner: Owner) -> bool:
        """Whether one more file of an owner may have probes; this program's own may as long as there are any."""
        descriptors, _ = getrlimit(RLIMIT_NOFILE)
        free = min(PROBED_FILES, descriptors // _DESCRIPTORS_EACH) - self._probed_of.total() - 1
        return free >= 0 and (owner == NOBODYS or self._probed_of[owner] + 1 <= OF_CONTAINER * free)

    def _forget_plain_files(self) -> None:
        for identity in [i for i, found in self._inspected.items() if not any(found.values())]:
            del self._inspected[identity]

    def _place(self, descriptor: int, path: str, identity: _Identity, tgid: int) -> ProbedFile | None:
        """Attach what the file has symbols for; None when it has none. Raises :class:`ReaderError`."""
        owner = owner_of(tgid) if tgid else NOBODYS
        try:
            found = self._finder.find(owner, descriptor, self._symbols, self._go_symbols)
        except ElfError as error:
            self.counters["file_not_elf"] += 1
            _log.debug("not an ELF file that can be probed: %s: %s", path, error)
            return None
        self._load_for(found)
        self.counters["go_program_unknown"] += found.go.unknown
        offsets = {symbol: offset for symbol, offset in found.offsets.items() if symbol in self._hooked}
        of_go = found.go.found if self._go_hooks else {}
        if not offsets and not of_go:
            return None
        if not self._has_room(owner):
            self.counters["probe_share_spent"] += 1
            self._refused.add(tgid, owner[0])
            return None
        # The descriptor's own path: right in every mount namespace, and for deleted files.
        # Go moves its stacks, return addresses included: a return probe would crash it.
        opened = f"/proc/self/fd/{descriptor}"
        with_returns = self.with_returns and not found.is_go
        cookies = self._cookies_of(owner, descriptor, path, offsets)
        shared, of_process = offsets, None
        if (probes := self.process_probes) is not None:
            of_process = probes.of_file(
                descriptor, self._hooks, offsets, with_returns=with_returns, file_cookies=cookies
            )
        if of_process is not None:
            shared = {symbol: at for symbol, at in offsets.items() if at not in of_process.places}
        links, refused = attach_hooks(
            self._hooks, opened, shared, with_returns=with_returns, file_cookies=cookies
        )
        links_of_go, refused_of_go = attach_go_hooks(self._go_hooks, opened, found.go.places)
        links, refused = links + links_of_go, refused + refused_of_go
        self.counters["probes_refused"] += len(refused)
        for refusal in refused:
            _log.warning("%s: %s", path, refusal)
        ready_ns = monotonic_ns()
        self._probed_of[owner] += 1
        return ProbedFile(
            path=path,
            library=library_name_of(path) or "",
            identity=identity,
            symbols=tuple(sorted((*offsets, *of_go))),
            refused=tuple(refusal.message for refusal in refused),
            ready_ns=ready_ns,
            links=links,
            used_ns=ready_ns,
            owner=owner,
            of_process=of_process,
        )

    def _cookies_of(
        self, owner: Owner, descriptor: int, path: str, offsets: Container[str]
    ) -> dict[str, int]:
        hooked = {hook.library for hook in self._hooks if hook.symbol in offsets}
        asked = {library: self.file_cookies[library] for library in hooked & self.file_cookies.keys()}
        if not asked:
            return {}
        with self._finder.accounts.charged(owner):
            try:
                file = InspectedFile(map_elf(descriptor), path, descriptor, owner)
            except ElfError:  # written over since
                return {}
            return {library: cookie_of(file) for library, cookie_of in asked.items()}


def _may_be_library(path: str) -> bool:
    name = path.rpartition("/")[2]
    return _SHARED_OBJECT.search(name) is not None or len(os.fsencode(name)) >= _CUT_NAME_BYTES


def _leads_somewhere(link: str) -> bool:
    """Whether a link of /proc may be followed, and there is something."""
    try:
        cached_status(link)
    except OSError:
        return False
    return True


def _can_be_opened(path: str) -> bool:
    """Whether it is there and can be read, or is one that is refused, which is to be said."""
    try:
        os.close(open_regular(path))
    except UntrustedMount:
        return True
    except OSError:
        return False
    return True


def _changed(open_path: str, probed_file: ProbedFile) -> bool:
    """Whether a file that has probes is not what it was; not, as far as can be reported, if it cannot be looked at."""
    try:
        status = cached_status(open_path)
    except OSError:
        return False
    return (status.size_bytes, status.modified_ns) != probed_file.identity[1:3]


def _is_written(before: _Identity, now: _Identity) -> bool:
    """Whether a file has other content: a new link to it or other permissions are none."""
    return before[:3] != now[:3]


def _mapped(probed_file: ProbedFile, mapped_ns: int) -> ProbedFile:
    """Note how long a process had the file before its probes were there."""
    if mapped_ns and mapped_ns < probed_file.ready_ns:
        probed_file.blind_ns = max(probed_file.blind_ns, probed_file.ready_ns - mapped_ns)
    return probed_file


def _full_path(link: str, path: str) -> str:
    """The whole path behind a ``map_files`` link, of which an event reported only the last component."""
    try:
        return os.readlink(link).removesuffix(" (deleted)")
    except OSError:
        return path


def _kernel_inode(descriptor: int) -> Inode:
    """(device, inode) as process.bpf.c reads them: MKDEV of include/linux/kdev_t.h."""
    status = os.fstat(descriptor)
    return (os.major(status.st_dev) << 20 | os.minor(status.st_dev), status.st_ino)


def _identity(descriptor: int) -> tuple[_Identity, _Device]:
    """What makes two open files the same inode to a uprobe, where the device is the same too, as far as it counts.

    On overlayfs the device differs from container to container, and from the file system below, while the
    probe goes to the one file below: there the others stand for it.
    """
    status = os.fstat(descriptor)
    magic = filesystem_magic(descriptor)
    device = _OVERLAY if magic == _OVERLAYFS_MAGIC else status.st_dev
    identity = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return identity, (device, magic in (_TMPFS_MAGIC, _FUSE_MAGIC))


def _may_be_one(one: _Device, other: _Device) -> bool:
    """Whether files of one identity on these devices are one: of overlayfs and of what can lie below an image's."""
    return one == other or (_OVERLAY in (one[0], other[0]) and not (one[1] or other[1]))
