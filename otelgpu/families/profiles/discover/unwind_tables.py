"""Tables by which BPF unwinds the stacks of observed processes; see bpf/profile/unwind.h.

In: processes as they are met, map something or end. Out: entries of the maps ``unwind_processes`` and ``unwind_files``.
A table is made by a process of its own (:mod:`otelgpu.families.profiles.discover.unwinder`), in milliseconds; a
thread waits for it, and until it is there stacks are walked by frame pointers and say so. What callers do here only
queues. A file is read once for all processes that map it, and its table is kept for some time after the last has
ended. Both memories are bounded, and whose file was met first has his share of them: files without a table for lack of
room are counted. No table is held here: rows go to the kernel as they come.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping as Named
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct, field

from otelgpu.elf.eh_frame import find_frames
from otelgpu.elf.image import ElfError, ElfImage, Load
from otelgpu.families.profiles.discover.unwinder import ROW_BYTES, Rows, Unwinder, UnwinderError
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.kernel.nested_maps import MapOfArrays
from otelgpu.kernel.statx import cached_status
from otelgpu.model.losses import Reasons
from otelgpu.model.shares import OF_CONTAINER
from otelgpu.processes.elf_files import open_elf, open_mapping
from otelgpu.processes.maps import Mapping, executable_mappings, read_maps
from otelgpu.processes.reader.accounts import NOBODYS, Owner, Owners

_log = logging.getLogger("otelgpu.discover")

NO_TABLE: Final = "unwind_table_missing"
UNREADABLE: Final = "unwind_file_unreadable"
DAMAGED: Final = "unwind_functions_damaged"
NOT_MADE: Final = "unwind_table_not_made"
TABLES_FULL: Final = "unwind_tables_full"
PROCESSES_FULL: Final = "unwind_processes_full"
REASONS: Final = Reasons(
    "profile",
    {
        NO_TABLE: "a mapped file without a readable .eh_frame: stacks through it are walked by frame pointers",
        UNREADABLE: "a mapped file that could not be opened: likewise",
        DAMAGED: "functions whose .eh_frame entry makes no sense: stacks end there",
        NOT_MADE: "a mapped file by which the program that makes tables was ended, or that it took too long "
        "for: likewise",
        TABLES_FULL: "a mapped file whose unwind table has no room: stacks through it are walked by frame pointers",
        PROCESSES_FULL: "a process beyond those whose mappings are kept: its stacks are walked by frame pointers",
    },
)
"""What is counted, and what one count means."""

MAX_ROWS: Final = 8 << 20
"""Of all files together, 8 bytes each in the kernel. One owner's may have twice as many as are free: two thirds."""

_UNUSED_ROWS: Final = 1 << 20  # of files that no process has mapped any more
_UNUSED_FILES: Final = 128
_MAX_PROCESSES: Final = 8000  # UNWIND_PROCESSES, with room for some that are being replaced
_MAX_FILES: Final = 4000
_MAX_MAPPINGS: Final = (1 << 15) - 1  # MAPPING_STEPS
_TELL_AFTER_S: Final = 0.25  # what was read so long is reported at once, before more is read
_VDSO: Final = "[vdso]"
_WANTED: Final = ("libc.", "libc-", "ld-", "libpython", "libstdc++", "libcuda", "libnccl", _VDSO)
_TURN_S: Final = 0.2  # of a process, while others wait
_SETTLE_S: Final = 0.1  # processes map libraries one after the other
_MAX_UNPUT: Final = 64  # each is a descriptor
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

FileKey = tuple[int, ...]


class _File(Struct):
    """A file that was read. ``number``: in the kernel, 0 without a table."""

    number: int
    blocks: int
    rows: int
    loads: tuple[Load, ...]
    owner: Owner
    users: set[int] = field(default_factory=set)

    def bias(self, start: int, offset: int) -> int | None:
        """Address in the process less that in the file, of a mapping."""
        for load in self.loads:
            if load.executable and load.offset // _PAGE * _PAGE <= offset < load.offset + max(load.size, 1):
                return start - (offset - load.offset + load.address)
        return None


class UnwindTables:
    """One family's."""

    def __init__(
        self,
        loaded: LoadedFamily,
        *,
        max_rows: int = MAX_ROWS,
        proc: Path = Path("/proc"),
        unwinder: Unwinder | None = None,
    ) -> None:
        btf = loaded.image.btf
        self._block, self._entry = btf.dtype("unwind_block"), btf.dtype("unwind_mapping")
        ends = btf.enumerators("stack_end")
        self._not_ready, self._no_table = ends["STACK_NOT_READY"], ends["STACK_NO_TABLE"]
        self._processes_map = MapOfArrays(loaded.map("unwind_processes"), self._entry.itemsize)
        self._files_map = MapOfArrays(loaded.map("unwind_files"), self._block.itemsize)
        self._max_rows, self._proc = max_rows, proc
        self._files: OrderedDict[FileKey, _File] = OrderedDict()  # those used least lately first
        self._known: dict[int, set[FileKey]] = {}
        self._rows = 0
        self._owners = Owners(proc=proc)
        self._rows_of: Counter[Owner] = Counter()
        self._files_of: Counter[Owner] = Counter()
        self._unwinder = unwinder if unwinder is not None else Unwinder()
        self._unput: dict[int, int] = {}  # arrays by number, which come before who uses them
        self._last_number = 0
        self._counters: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._due: OrderedDict[int, float] = OrderedDict()  # tgid → when to look at it; 0.0: it has ended
        self._ahead: deque[Path] = deque()
        self._seen: set[int] = set()
        self._busy = self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def counters(self) -> Named[str, int]:
        """Losses by reason, since the start."""
        with self._changed:
            return dict(self._counters)

    @property
    def rows(self) -> int:
        """Rows in the kernel."""
        return self._rows

    def see(self, tgid: int) -> None:
        """A process whose stacks are wanted: its tables are made, unless they are there."""
        with self._changed:
            self._seen.add(tgid)
            self._queue(tgid, time.monotonic())

    def mapped(self, tgid: int) -> None:
        """A process has mapped something: where it is one of those that were seen, it is looked at soon."""
        with self._changed:
            if tgid in self._seen and tgid not in self._due:
                self._queue(tgid, time.monotonic() + _SETTLE_S)

    def hurry(self, tgid: int) -> None:
        """It has samples: if it is to be looked at, before those that may have some (at the start a whole host)."""
        with self._changed:
            if tgid in self._due:
                self._due.move_to_end(tgid, last=False)

    def prepare(self, path: Path) -> None:
        """A program is about to load a file: its table is made before."""
        with self._changed:
            if not self._closed:
                self._ahead.append(path)
                self._wake()

    def forget(self, tgid: int) -> None:
        """A process has ended, or is another program now: then it is seen again."""
        with self._changed:
            if tgid in self._seen:
                self._seen.discard(tgid)
                self._queue(tgid, 0.0)

    def settle(self, seconds: float) -> bool:
        """Wait until all that was asked for is done, at most so long; whether it is."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._due and not self._ahead and not self._busy, seconds
            )

    def close(self) -> None:
        """End the thread; the maps go with the family. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._unwinder.close()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._let_go(self._unput)

    # -- The thread ------------------------------------------------------------------------------------

    def _queue(self, tgid: int, at: float) -> None:
        if self._closed:
            return
        ended = self._due.get(tgid) == 0.0
        self._due[tgid] = -at if ended and at else at  # ended, and seen again
        self._wake()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="unwind-tables", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                found = path = None
                while found is None:
                    if self._closed:
                        return
                    if self._ahead:
                        path = self._ahead.popleft()
                        break
                    now = time.monotonic()
                    found = next((tgid for tgid, at in self._due.items() if at <= now), None)
                    if found is None:
                        soonest = min(self._due.values(), default=None)
                        self._changed.wait(None if soonest is None else max(soonest - now, 0.0))
                at = self._due.pop(found) if found is not None else 0.0
                self._busy = True
            try:
                if found is None:
                    assert path is not None, "one of them was found"
                    self._read_ahead(path)
                    continue
                if at <= 0.0:
                    self._drop(found)
                if at != 0.0:
                    self._look(found)
            except BpfError as error:  # the kernel has no memory, or the object is gone
                _log.warning("no unwind tables for process %d: %s", found, error)
                self._count(TABLES_FULL)

    def _count(self, reason: str, amount: int = 1) -> None:
        with self._changed:
            self._counters[reason] += amount

    def _drop(self, tgid: int) -> None:
        if tgid not in self._known:
            return
        for key in self._known.pop(tgid):
            self._files[key].users.discard(tgid)
        self._processes_map.delete(tgid)
        self._trim(0)

    def _trim(self, needed: int) -> None:
        """Free files that nobody uses, beyond what is kept of them, or for so many rows that are needed."""
        unused = [(key, file) for key, file in self._files.items() if not file.users]
        spare = sum(file.rows for _, file in unused)
        for left, (key, file) in zip(range(len(unused), 0, -1), unused, strict=True):
            full = self._rows + needed > self._max_rows or len(self._files) >= _MAX_FILES
            if spare <= _UNUSED_ROWS and left <= _UNUSED_FILES and not full:
                break
            del self._files[key]
            self._files_of[file.owner] -= 1
            self._rows_of[file.owner] -= file.rows
            if (made := self._unput.pop(file.number, None)) is not None:
                os.close(made)
            elif file.number:
                self._files_map.delete(file.number)
            self._rows -= file.rows
            spare -= file.rows

    def _look(self, tgid: int) -> None:
        """Report the mappings of a process; those of files that are read for it once more afterwards."""
        mappings = [
            (mapping, self._key(tgid, mapping))
            for mapping in executable_mappings(tgid, proc=self._proc)[:_MAX_MAPPINGS]
            if mapping.is_file or mapping.path == _VDSO
        ]
        if not mappings:
            self._drop(tgid)
            return
        if tgid not in self._known and len(self._known) >= _MAX_PROCESSES:
            self._count(PROCESSES_FULL)
            return
        users = self._known.setdefault(tgid, set())
        for key in users - {key for _, key in mappings}:
            self._files[key].users.discard(tgid)
            users.discard(key)
        reported = self._report(tgid, mappings, None)
        started = began = time.monotonic()
        pause_s = _TELL_AFTER_S
        for mapping, key in sorted(mappings, key=partial(_wanted_first, self._program(tgid))):
            is_new = key not in self._files
            if is_new:
                self._trim(0)
                self._add(key, self._read(tgid, mapping))
            if key not in users:
                users.add(key)
                self._files[key].users.add(tgid)
                self._files.move_to_end(key)
            if (now := time.monotonic()) - began > pause_s:
                reported = self._report(tgid, mappings, reported)
                began = time.monotonic()
                pause_s = max(_TELL_AFTER_S, 4 * (began - now))  # a busy kernel takes its time for each
            if self._closed or self._is_due(tgid):  # what was read so far is kept
                break
            if is_new and now - started > _TURN_S and self._give_way(tgid):  # each turn is one file at least
                break
        self._report(tgid, mappings, reported)
        self._trim(0)

    def _is_due(self, tgid: int) -> bool:
        """Whether the process has become another program meanwhile, has ended, or has mapped more."""
        with self._changed:
            at = self._due.get(tgid)
            return at is not None and at <= time.monotonic()

    def _give_way(self, tgid: int) -> bool:
        """Go on with a process after the others that are due, if there are any: one may have a hundred libraries."""
        with self._changed:
            now = time.monotonic()
            if not self._ahead and not any(at <= now for at in self._due.values()):
                return False
            self._due[tgid] = now
            return True

    def _program(self, tgid: int) -> str:
        try:
            return os.readlink(f"{self._proc}/{tgid}/exe")
        except OSError:
            return ""

    def _key(self, tgid: int, mapping: Mapping) -> FileKey:
        """What stays the same as long as the content does."""
        if not mapping.is_file:
            return (0, mapping.end - mapping.start)
        try:
            status = cached_status(f"{self._proc}/{tgid}/map_files/{mapping.start:x}-{mapping.end:x}")
        except OSError:
            return (*mapping.device, mapping.inode)
        return (status.device, status.inode, status.modified_ns, status.size_bytes)

    def _report(self, tgid: int, mappings: Sequence[tuple[Mapping, FileKey]], before: bytes | None) -> bytes:
        """Put the mappings into the kernel's map, unless that is what is there; before them new tables."""
        self._put_tables()
        rows = np.zeros(len(mappings), self._entry)
        rows["mappings"] = len(mappings)
        for row, (mapping, key) in zip(rows, mappings, strict=True):
            row["start"], row["end"] = mapping.start, mapping.end
            file = self._files.get(key)
            bias = file.bias(mapping.start, mapping.offset) if file is not None else None
            row["why"] = self._not_ready if file is None else self._no_table
            if file is not None and file.number and bias is not None:
                row["bias"] = bias & (1 << 64) - 1
                row["file"], row["blocks"] = file.number, file.blocks
        content = rows.tobytes()
        if content != before:
            self._processes_map.put(tgid, content)
        return content

    def _put_tables(self) -> None:
        if not self._unput:
            return
        made, self._unput = self._unput, {}
        try:
            self._files_map.put_all(made)
        except BpfError as error:
            _log.warning("no room for %d unwind tables: %s", len(made), error)
            self._count(TABLES_FULL, len(made))
            for file in self._files.values():
                if file.number in made:
                    self._rows -= file.rows
                    self._rows_of[file.owner] -= file.rows
                    file.number = file.rows = 0
        finally:
            self._let_go(made)

    @staticmethod
    def _let_go(made: dict[int, int]) -> None:
        while made:
            os.close(made.popitem()[1])

    def _read_ahead(self, path: Path) -> None:
        try:
            with open_elf(path) as file:
                status = os.fstat(file.descriptor)
                key = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
                if key in self._files:
                    return
                self._trim(0)
                self._add(key, self._make(file.descriptor, file.image, NOBODYS))
        except (OSError, ElfError, UnwinderError) as error:  # counted when a process has it
            _log.debug("no unwind table of %s yet: %s", path, error)
            return
        self._put_tables()

    # -- Files -----------------------------------------------------------------------------------------

    def _read(self, tgid: int, mapping: Mapping) -> _File:
        loads: tuple[Load, ...] = ()
        owner = self._owners.of(tgid)
        try:
            if mapping.path == _VDSO:
                descriptor, image = read_vdso()
                try:
                    return self._make(descriptor, image, NOBODYS)
                finally:
                    os.close(descriptor)
            with open_mapping(tgid, mapping, proc=self._proc) as file:
                loads = file.image.loads
                return self._make(file.descriptor, file.image, owner)
        except OSError:
            self._count(UNREADABLE)
        except ElfError:
            self._count(NO_TABLE)
        except UnwinderError as error:
            if not self._closed:
                _log.warning("no unwind table of %s: %s", mapping.path, error)
                self._count(NOT_MADE)
        return _File(0, 0, 0, loads, owner)

    def _make(self, descriptor: int, image: ElfImage, owner: Owner) -> _File:
        """The table of an open file. Raises ElfError: it has none; UnwinderError; BpfError."""
        with self._unwinder.rows(descriptor, find_frames(image)) as rows:
            if rows.damaged:
                self._count(DAMAGED, rows.damaged)
            return self._keep(rows, image.loads, owner)

    def _add(self, key: FileKey, file: _File) -> None:
        self._files[key] = file
        self._files_of[file.owner] += 1

    def _has_room(self, owner: Owner, rows: int) -> bool:
        """Whether one file more is within the share of its owner; this program's own have what is free."""
        free, files_free = self._max_rows - self._rows - rows, _MAX_FILES - len(self._files) - 1
        if owner == NOBODYS:
            return free >= 0 and files_free >= 0
        return (
            self._rows_of[owner] + rows <= OF_CONTAINER * free
            and self._files_of[owner] + 1 <= OF_CONTAINER * files_free
        )

    def _keep(self, table: Rows, loads: tuple[Load, ...], owner: Owner) -> _File:
        per_block = self._block.itemsize // ROW_BYTES
        blocks = -(-table.count // per_block)
        rows = blocks * per_block
        if not rows:
            self._count(NO_TABLE)
            return _File(0, 0, 0, loads, owner)
        self._trim(rows)
        if not self._has_room(owner, rows):
            self._count(TABLES_FULL)
            return _File(0, 0, 0, loads, owner)
        made = self._files_map.make(blocks, table.parts(per_block))
        self._last_number += 1
        self._unput[self._last_number] = made
        self._rows += rows
        self._rows_of[owner] += rows
        if len(self._unput) >= _MAX_UNPUT:
            self._put_tables()
        return _File(self._last_number, blocks, rows, loads, owner)


def _wanted_first(program: str, mapping: tuple[Mapping, FileKey]) -> tuple[bool, int]:
    """All stacks go through the program, most through the C library or an interpreter's; few need a large one."""
    path = mapping[0].path
    is_wanted = path == program or path.rpartition("/")[2].startswith(_WANTED)
    return not is_wanted, mapping[1][3] if len(mapping[1]) == 4 else 0


def read_vdso() -> tuple[int, ElfImage]:
    """Of this program, as a file in memory, which the caller closes: all processes of one word size have the same."""
    for mapping in read_maps(os.getpid()):
        if mapping.path == _VDSO:
            with open("/proc/self/mem", "rb", buffering=0) as memory:
                memory.seek(mapping.start)
                content = memory.read(mapping.end - mapping.start)
            image = ElfImage(content)
            descriptor = os.memfd_create("vdso", os.MFD_CLOEXEC)
            os.write(descriptor, content)
            return descriptor, image
    raise ElfError("this program has no vdso")
