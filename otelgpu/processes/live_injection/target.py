"""A process that is to be given a library: its memory, the modules in it, and where their functions are.

In: ``/proc/PID``. Out: addresses. What lies in the process's memory is looked at with bounds, and believed no further
than that a wrong address would be the process's own harm: functions are found in the files that it has mapped.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import Final

from msgspec import Struct

from otelgpu.elf.eh_frame import PT_GNU_EH_FRAME
from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.processes.live_injection.amd64 import FUNCTIONS, SIGRETURN
from otelgpu.processes.live_injection.refusals import InjectionRefused
from otelgpu.processes.maps import Mapping, find, read_maps

_HEADERS: Final = 4096
_PT_LOAD: Final = 1
_ALLOCATORS: Final = ("malloc", "free", "calloc", "realloc", "memalign", "aligned_alloc", "posix_memalign")
_MORE_OF_MALLOC: Final = ("valloc", "pvalloc", "malloc_trim", "malloc_usable_size", "mallinfo", "mallopt")
_LOCKING: Final = (
    *("fork", "_Fork", "__libc_fork", "vfork", "posix_spawn", "posix_spawnp", "system", "popen"),
    *("pthread_create", "pthread_exit", "pthread_join", "pthread_attr_setstack", "pthread_getattr_np"),
    *("dlopen", "dlmopen", "dlclose", "dlsym", "dlvsym", "dlinfo", "dladdr", "dl_iterate_phdr"),
    *("exit", "_exit", "quick_exit", "abort", "atexit", "__cxa_atexit", "__cxa_finalize", "on_exit"),
    *("__cxa_thread_atexit_impl", "pthread_atfork", "__register_atfork", "setxid", "setuid", "setgid"),
)
_LIBC: Final = ("libc.so.6", "libc-2.")
_THREADS: Final = ("libpthread", "libdl")  # apart from libc before glibc 2.34
_LINKER: Final = ("ld-linux-x86-64.so", "ld-2.")
_MALLOC_NAMED: Final = ("alloc",)  # jemalloc, tcmalloc, mimalloc
_MOST_BYTES: Final = 256 << 20
_GAP: Final = 1 << 30
_USER_END: Final = 1 << 47


class Module(Struct, frozen=True):
    """A file's code in the process: [start, end), and its table of frames; 0 without one."""

    start: int
    end: int
    path: str
    frames: int
    frames_size: int


class Target:
    """Open until closed. Raises OSError where the process may not be traced, or has ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        self.refresh()

    def refresh(self) -> None:
        """Read anew what is mapped."""
        self.maps = read_maps(self.pid)
        self.__dict__.pop("modules", None)

    def close(self) -> None:
        """Let go of its memory."""
        os.close(self._memory)

    def read(self, address: int, count: int) -> bytes:
        """Raises OSError where not all of it is mapped."""
        found = os.pread(self._memory, count, address) if address < 1 << 63 else b""
        if len(found) != count:
            raise OSError(f"nothing is mapped at {address:#x}")
        return found

    def write(self, address: int, data: bytes) -> None:
        """Also where the process itself may only execute. Raises OSError."""
        if os.pwrite(self._memory, data, address) != len(data):
            raise OSError(f"nothing is mapped at {address:#x}")

    def mapping_at(self, address: int) -> Mapping | None:
        """What lies there, as of the last look."""
        return find(self.maps, address)

    def room(self, count: int) -> int:
        """An address where so much is free, far from what grows."""
        ends = [(0x10000, 0x10000), *((each.start, each.end) for each in self.maps if each.end < _USER_END)]
        ends.append((_USER_END, _USER_END))
        gaps = [(after[0] - before[1], before[1]) for before, after in itertools.pairwise(ends)]
        size, begin = max(gaps)
        if size < _GAP:
            raise InjectionRefused(f"process {self.pid} has no room for {count} bytes")
        return (begin + size // 2) & -mmap.PAGESIZE

    # -- Modules ------------------------------------------------------------------------------------

    @cached_property
    def modules(self) -> list[Module]:
        """Of every file with code, and of the vDSO."""
        return list(self._read_modules())

    def _read_modules(self) -> Iterator[Module]:
        bases: dict[str, int] = {}
        for each in self.maps:
            if each.offset == 0 and (each.is_file or each.path == "[vdso]"):
                bases[each.path] = each.start
            if not each.executable or not (each.is_file or each.path == "[vdso]"):
                continue
            frames, size = self._frames_of(bases.get(each.path, 0))
            yield Module(each.start, each.end, each.path, frames, size)

    def _frames_of(self, base: int) -> tuple[int, int]:
        """By the program headers in memory."""
        try:
            head = self.read(base, 64)
            count = int.from_bytes(head[56:58], "little")
            table = int.from_bytes(head[32:40], "little")
            if head[:4] != b"\x7fELF" or count > 64 or table + 56 * count > _HEADERS:
                return 0, 0
            headers = self.read(base + table, 56 * count)
        except OSError:
            return 0, 0
        bias = None
        found = (0, 0)
        for number in range(count):
            header = headers[56 * number : 56 * (number + 1)]
            kind = int.from_bytes(header[:4], "little")
            address, size = (int.from_bytes(header[at : at + 8], "little") for at in (16, 40))
            if kind == _PT_LOAD and bias is None:
                bias = base - (address & -mmap.PAGESIZE)
            if kind == PT_GNU_EH_FRAME:
                found = (address, size)
        return (found[0] + (bias or 0), found[1]) if found[0] else (0, 0)

    def module_at(self, address: int) -> Module | None:
        """Whose code lies there."""
        return next((each for each in self.modules if each.start <= address < each.end), None)

    # -- Functions ----------------------------------------------------------------------------------

    def _image(self, mapping: Mapping) -> ElfImage:
        path = Path(f"/proc/{self.pid}/map_files/{mapping.start:x}-{mapping.end:x}")
        if not os.access(path, os.R_OK):  # that folder is for root
            path = Path(f"/proc/{self.pid}/root{mapping.path}")
        if path.stat().st_size > _MOST_BYTES:
            raise OSError("the file is too large")
        return ElfImage(path.read_bytes())

    def _files(self, names: tuple[str, ...]) -> list[Mapping]:
        code = (each for each in self.maps if each.executable and each.is_file)
        return [each for each in code if os.path.basename(each.path).startswith(names)]

    def _functions(self, mapping: Mapping, names: Collection[str]) -> dict[str, tuple[int, int]]:
        """Name → [start, end) in the process."""
        image, found = self._image(mapping), {}
        for name, offset in image.function_offsets(names).items():
            if not mapping.offset <= offset < mapping.offset + mapping.end - mapping.start:
                continue
            symbol = image.symbol_at(offset)
            start = mapping.start + offset - mapping.offset
            found[name] = (start, start + max(symbol.size_bytes if symbol is not None else 0, 1))
        return found

    @cached_property
    def functions(self) -> dict[str, int]:
        """Those that are called: of the C library. Raises InjectionRefused where one is missing."""
        wanted = {*FUNCTIONS, "pthread_create", "mmap", "munmap"}
        found: dict[str, int] = {}
        try:
            for mapping in self._files((*_LIBC, *_THREADS)):
                for name, (start, _) in self._functions(mapping, wanted).items():
                    found.setdefault(name, start)
        except (OSError, ElfError) as error:
            raise InjectionRefused(
                f"no library is loaded into process {self.pid}: its C library cannot be read"
            ) from error
        if missing := sorted(wanted - found.keys()):
            raise InjectionRefused(
                f"no library is loaded into process {self.pid}: its C library lacks {', '.join(missing)}",
                hint="glibc before 2.34 brings them with -lpthread and -ldl; start the program with otelgpu run",
            )
        return found

    @cached_property
    def way_back(self) -> int:
        """Where ``rt_sigreturn`` is called. Raises InjectionRefused without such a place."""
        for mapping in self._files((*_LIBC, "libpthread")):
            at = self.read(mapping.start, mapping.end - mapping.start).find(SIGRETURN)
            if at >= 0:
                return mapping.start + at
        raise InjectionRefused(f"no library is loaded into process {self.pid}: it is not linked to glibc")

    @cached_property
    def unsafe(self) -> list[tuple[int, int]]:
        """[start, end) of code within which a lock may be held that loading a library, or starting a thread, needs."""
        found: list[tuple[int, int]] = []
        for mapping in self.maps:
            if not (mapping.executable and mapping.is_file):
                continue
            name = os.path.basename(mapping.path)
            if name.startswith(_LINKER) or any(word in name for word in _MALLOC_NAMED):
                found.append((mapping.start, mapping.end))
                continue
            try:
                if name.startswith((*_LIBC, *_THREADS)):
                    functions = self._functions(mapping, (*_ALLOCATORS, *_MORE_OF_MALLOC, *_LOCKING))
                    found += self._of_libc(functions)
                elif mapping.path == self._program:
                    found += self._functions(mapping, _ALLOCATORS).values()
            except (OSError, ElfError):
                continue
        return found

    @cached_property
    def _program(self) -> str:
        return os.readlink(f"/proc/{self.pid}/exe")

    @staticmethod
    def _of_libc(functions: dict[str, tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """malloc's object file as a whole: its functions without a name lie between those with one."""
        malloc = [functions[name] for name in (*_ALLOCATORS, *_MORE_OF_MALLOC) if name in functions]
        if malloc:
            yield min(start for start, _ in malloc), max(end for _, end in malloc)
        yield from (functions[name] for name in _LOCKING if name in functions)
