"""Python frames by name: code objects read from the memory of the process that runs them.

In: the address of a code object and an instruction in it, as the BPF program saw them some milliseconds ago. Out:
:class:`~otelgpu.model.samples.Frame` with the qualified name, the file and the line. What is read is checked (type,
lengths, kinds), because the object may be gone by now and its memory something else; what does not hold is counted.

A code object is read whole once. At each later use its head is read and compared: memory that was given to another
code object is noticed. Example: a function that is reloaded at the same address with the same first line but another
table of lines has another head.
"""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otelgpu.families.profiles.python.layout import CodeHead, CPython, code_head, text_place
from otelgpu.families.profiles.python.lines import LineTable, line_table
from otelgpu.model.profiles import FrameType
from otelgpu.model.samples import Frame

UNREADABLE: Final = "python_code_unreadable"
IMPLAUSIBLE: Final = "python_code_implausible"
LINES_CUT: Final = "python_lines_cut"
REASONS: Final[Mapping[str, str]] = {
    UNREADABLE: "a Python frame whose code object's memory was gone when it was to be named",
    IMPLAUSIBLE: "a Python frame whose code object's memory was something else when it was to be named",
    LINES_CUT: "a code object with a table of lines beyond the bound: lines behind it are wrong",
}

_MAX_CODES: Final = 1 << 15  # of all processes: a large service runs some thousands
_MAX_MEMORIES: Final = 64
_MAX_TABLE_BYTES: Final = 1 << 20
_MAX_FRAMES_OF_CODE: Final = 1 << 10
_FIRST_ADDRESS: Final = 1 << 16  # vm.mmap_min_addr
_TYPE_NAME: Final = b"code\0"


@dataclass(slots=True)
class _Code:
    """One that was read. ``frames``: by line."""

    head: CodeHead
    name: str
    file: str
    lines: LineTable
    frames: dict[int, Frame] = field(default_factory=dict)


class _Gone(Exception):
    """The memory cannot be read."""


class _Implausible(Exception):
    """It holds no code object."""


class CodeNames:
    """Code objects of all processes, those that were used last."""

    def __init__(self, counters: Counter[str], *, proc: Path = Path("/proc")) -> None:
        """Counts into ``counters``."""
        self._counters = counters
        self._proc = proc
        self._codes: OrderedDict[tuple[int, int], _Code] = OrderedDict()
        self._memories: OrderedDict[int, int] = OrderedDict()  # tgid -> descriptor of its memory
        self._known: set[int] = set()  # processes that have codes

    def name(
        self, tgid: int, layout: CPython, code_type: int | None, address: int, instruction: int
    ) -> Frame | None:
        """``code_type``: address of PyCode_Type, if it is known. ``instruction``: bytes into the code, 32 bits."""
        try:
            code = self._code(tgid, layout, code_type, address)
        except _Gone:
            self._counters[UNREADABLE] += 1
            return None
        except _Implausible:
            self._counters[IMPLAUSIBLE] += 1
            return None
        line = code.lines.line_at(instruction - (1 << 32) if instruction >> 31 else instruction)
        frame = code.frames.get(line)
        if frame is None:
            frame = Frame(type=FrameType.PYTHON, name=code.name, file=code.file, line=line)
            if len(code.frames) < _MAX_FRAMES_OF_CODE:
                code.frames[line] = frame
        return frame

    def release(self, tgid: int) -> None:
        """Let go of the process' memory; what was read of it stays known."""
        descriptor = self._memories.pop(tgid, None)
        if descriptor is not None:
            os.close(descriptor)

    def forget(self, tgid: int) -> None:
        """What was read is not of this process."""
        self.release(tgid)
        if tgid in self._known:
            self._known.discard(tgid)
            for key in [key for key in self._codes if key[0] == tgid]:
                del self._codes[key]

    def close(self) -> None:
        """Let go of the processes' memories."""
        while self._memories:
            os.close(self._memories.popitem()[1])

    # -- Reading -----------------------------------------------------------------------------------------------

    def _code(self, tgid: int, layout: CPython, code_type: int | None, address: int) -> _Code:
        known = self._codes.get((tgid, address))
        try:
            head = code_head(layout, self._read(tgid, address, layout.code_bytes))
        except _Gone:
            if known is None:
                raise
            return known  # it has ended, or freed this: nothing else can be there
        if head is None:
            raise _Implausible
        if known is not None and known.head == head:
            self._codes.move_to_end((tgid, address))
            return known
        if not head.is_plausible() or not self._is_code_type(tgid, layout, code_type, head.type):
            raise _Implausible
        name = self._text(tgid, layout, head.name)
        if not name:
            raise _Implausible
        code = _Code(
            head=head,
            name=name,
            file=self._text(tgid, layout, head.filename),
            lines=line_table(self._bytes(tgid, layout, head.line_table), head.first_line, layout.minor),
        )
        self._known.add(tgid)
        self._codes[(tgid, address)] = code
        self._codes.move_to_end((tgid, address))
        if len(self._codes) > _MAX_CODES:
            self._codes.popitem(last=False)
        return code

    def _is_code_type(self, tgid: int, layout: CPython, code_type: int | None, found: int) -> bool:
        if code_type is not None:
            return found == code_type
        name = int.from_bytes(self._read(tgid, found + layout.type_name, 8), "little")
        return self._read(tgid, name, len(_TYPE_NAME)) == _TYPE_NAME

    def _text(self, tgid: int, layout: CPython, address: int) -> str:
        place = text_place(layout, self._read(tgid, address, layout.ascii_at))
        if place is None:
            raise _Implausible
        text = place.decode(self._read(tgid, address + place.offset, place.letters * place.letter_bytes))
        if place.ascii and not text.isascii():
            raise _Implausible
        return text

    def _bytes(self, tgid: int, layout: CPython, address: int) -> bytes:
        size = int.from_bytes(self._read(tgid, address + layout.size, 8), "little")
        if size >= 1 << 40:
            raise _Implausible
        if size > _MAX_TABLE_BYTES:
            self._counters[LINES_CUT] += 1
            size = _MAX_TABLE_BYTES
        return self._read(tgid, address + layout.bytes_at, size)

    def _read(self, tgid: int, address: int, size: int) -> bytes:
        """All of it; raises _Gone."""
        if not size:
            return b""
        if not _FIRST_ADDRESS <= address < 1 << 47:
            raise _Implausible
        was_open = tgid in self._memories
        data = self._pread(tgid, address, size)
        if len(data) != size and was_open:  # of the program before exec, perhaps
            self.release(tgid)
            data = self._pread(tgid, address, size)
        if len(data) != size:
            raise _Gone
        return data

    def _pread(self, tgid: int, address: int, size: int) -> bytes:
        try:
            return os.pread(self._memory(tgid), size, address)
        except OSError:
            return b""

    def _memory(self, tgid: int) -> int:
        descriptor = self._memories.get(tgid)
        if descriptor is None:
            descriptor = os.open(self._proc / str(tgid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
            self._memories[tgid] = descriptor
            if len(self._memories) > _MAX_MEMORIES:
                os.close(self._memories.popitem(last=False)[1])
        else:
            self._memories.move_to_end(tgid)
        return descriptor
