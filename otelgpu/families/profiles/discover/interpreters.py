"""CPython in the observed processes: found, said to the BPF programs, and its code objects named.

In: processes as they are met. Out: entries of the map ``interpreters`` (bpf/profile/python.h), by which the Python
frames of a stack are taken; the addresses between which a process evaluates frames; frames by name.

An interpreter is the program itself or a library that it has mapped; what a file holds is read once for all
processes, through ``map_files``, so that containers, virtual environments and deleted files are no different.
"""

from __future__ import annotations

import logging
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from otelgpu.elf.image import ElfError, Load
from otelgpu.families.profiles.discover.python_code import REASONS as CODE_REASONS
from otelgpu.families.profiles.discover.python_code import UNREADABLE as UNREADABLE_CODE
from otelgpu.families.profiles.discover.python_code import CodeNames
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.losses import Reasons
from otelgpu.model.samples import Frame
from otelgpu.processes.maps import Mapping, executable_mappings
from otelgpu.processes.program_files import FileAnswers, base_of, name_of, program_and_interpreters
from otelgpu.symbols.cpython.image import (
    FREE_THREADED,
    STRIPPED,
    UNKNOWN_VERSION,
    Interpreter,
    find_interpreter,
    may_be_interpreter,
)
from otelgpu.symbols.cpython.layout import CPython

_log = logging.getLogger("otelgpu.discover")

UNREADABLE: Final = "interpreter_unreadable"
TABLE_FULL: Final = "interpreter_table_full"
REASONS: Final = Reasons(
    "profile",
    {
        UNKNOWN_VERSION: "a process with a CPython of a version that is not known: its stacks have no Python frames",
        FREE_THREADED: "a process with a free-threaded CPython, which is not followed",
        STRIPPED: "a process with a CPython whose state has no name in the file",
        UNREADABLE: "a file that may hold a CPython and could not be read",
        TABLE_FULL: "a process with a CPython beyond those that can be followed",
        **CODE_REASONS,
    },
)
"""What is counted, and what one count means."""

MAX_ENDED: Final = 256
"""Processes that have ended, whose last stacks may be named yet."""
_MAX_PROCESSES: Final = 1 << 16


class _File(Struct, frozen=True):
    """A file as far as it matters here: what is found in it, or why nothing is (None: no interpreter)."""

    found: Interpreter | str | None
    loads: tuple[Load, ...]


class _Process(Struct):
    """A process that was looked at. ``interpreter`` None: none was found, look again when it maps something."""

    interpreter: Interpreter | None = None
    base: int = 0
    evaluators: tuple[tuple[int, int], ...] = ()
    look_again: bool = False
    refused: str = ""  # the reason that was counted

    @property
    def code_type(self) -> int | None:
        """Address of PyCode_Type, where the file says it."""
        known = self.interpreter.code_type if self.interpreter is not None else None
        return self.base + known if known is not None else None


class Interpreters:
    """The processes that run CPython. Call :meth:`forget` at exec and when one ends."""

    def __init__(self, loaded: LoadedFamily, *, proc: Path = Path("/proc")) -> None:
        self._table = loaded.map("interpreters")
        self._dtype = loaded.image.btf.dtype("python_process")
        self._proc = proc
        self._files = FileAnswers(
            lambda image, name: _File(find_interpreter(image, name), image.loads), proc=proc
        )
        self._processes: dict[int, _Process] = {}
        self._ended: OrderedDict[int, _Process] = OrderedDict()  # whose last stacks may be named yet
        self.counters: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._names = CodeNames(self.counters, proc=proc)

    def see(self, tgid: int) -> bool:
        """Look at a process, unless it was and has mapped nothing since; whether it runs CPython."""
        process = self._processes.get(tgid)
        if process is not None and (process.interpreter is not None or not process.look_again):
            return process.interpreter is not None
        mappings = executable_mappings(tgid, proc=self._proc)
        if not mappings:
            return False  # it has ended, or is a thread of the kernel
        if process is None:
            if len(self._processes) >= _MAX_PROCESSES:
                self.counters[TABLE_FULL] += 1
                return False
            self._drop(tgid)
            process = self._processes[tgid] = _Process()
        process.look_again = False
        self._look(tgid, process, mappings)
        return process.interpreter is not None

    def mapped(self, tgid: int) -> None:
        """It has mapped a file: if it has no interpreter yet, that may be one. Looks at nothing yet."""
        if process := self._processes.get(tgid):
            process.look_again = True

    def forget(self, tgid: int) -> None:
        """It has ended, or is another program. Stacks that were taken before can still be named for a while."""
        process = self._processes.pop(tgid, None)
        self._names.release(tgid)
        if process is None or process.interpreter is None:
            return
        self._table.delete(struct.pack("<I", tgid))
        self._ended[tgid] = process
        self._ended.move_to_end(tgid)
        if len(self._ended) > MAX_ENDED:
            self._drop(next(iter(self._ended)))

    def _drop(self, tgid: int) -> None:
        """Know no more of a process that has ended."""
        if self._ended.pop(tgid, None) is not None:
            self._names.forget(tgid)

    def _known(self, tgid: int) -> _Process | None:
        if tgid in self._ended and tgid not in self._processes:
            return self._ended[tgid]
        return self._processes[tgid] if self.see(tgid) else None

    def evaluators(self, tgid: int) -> Sequence[tuple[int, int]]:
        """[start, end) of the native code that evaluates Python frames, as addresses in that process."""
        process = self._known(tgid)
        return process.evaluators if process else ()

    def has_tail_calls(self, tgid: int) -> bool:
        """Whether what an evaluator has called is one instruction's function, and so a part of it (3.14)."""
        process = self._known(tgid)
        return bool(process and process.interpreter and process.interpreter.has_tail_calls)

    def version(self, tgid: int) -> str:
        """``3.12.1``; empty where no interpreter is followed."""
        process = self._processes.get(tgid)
        return str(process.interpreter.version) if process and process.interpreter else ""

    def expect(self, tgid: int, addresses: Iterable[int]) -> None:
        """These code objects are named next: what they are now is read in one go."""
        process = self._known(tgid)
        if process is not None and process.interpreter is not None:
            self._names.expect(tgid, process.interpreter.layout, process.code_type, addresses)

    def code(self, tgid: int, address: int, instruction: int) -> Frame | None:
        """The Python frame of a code object, at an instruction as the BPF program gives it; None is counted."""
        process = self._known(tgid)
        if process is None or process.interpreter is None:
            self.counters[UNREADABLE_CODE] += 1
            return None
        return self._names.name(tgid, process.interpreter.layout, process.code_type, address, instruction)

    def close(self) -> None:
        """Let go of what is open."""
        self._names.close()

    # -- Finding -----------------------------------------------------------------------------------------------

    def _look(self, tgid: int, process: _Process, mappings: Sequence[Mapping]) -> None:
        for mapping in program_and_interpreters(tgid, mappings, proc=self._proc):
            try:
                file = self._files.of(tgid, mapping)
            except (OSError, ElfError):
                if may_be_interpreter(name_of(mapping)):
                    self.counters[UNREADABLE] += 1
                continue
            if file.found is None:
                continue
            if isinstance(file.found, str):
                if process.refused != file.found:
                    self.counters[file.found] += 1
                    _log.info("process %d: %s (%s)", tgid, REASONS[file.found], mapping.path)
                process.refused = file.found
                continue
            base = base_of(file.loads, mapping)
            if base is not None and self._report(tgid, file.found, base):
                process.interpreter, process.base = file.found, base
                process.evaluators = tuple((base + start, base + end) for start, end in file.found.evaluators)
                return

    def _report(self, tgid: int, interpreter: Interpreter, base: int) -> bool:
        value = entry_of(self._dtype, interpreter.layout, base + interpreter.runtime)
        try:
            self._table.put(struct.pack("<I", tgid), value)
        except BpfError:
            self.counters[TABLE_FULL] += 1
            return False
        return True


def entry_of(dtype: np.dtype[np.void], layout: CPython, runtime: int) -> bytes:
    """A ``struct python_process``: its members have the names of the layout's."""
    value = np.zeros(1, dtype)
    for name in dtype.names or ():
        if name == "runtime":
            value[name] = runtime
        elif hasattr(layout, name):
            value[name] = getattr(layout, name)
    return value.tobytes()
